"""CUDA_MPS_ACTIVE_THREAD_PERCENTAGE in a client's environment, the SMs it comes to, and what shows
of them outside."""

import pytest

from mpsd.model.cuda_limit_parser import THREAD_PERCENT
from mpsd.platform.mappings import mappings
from mpsd.platform.process_environment import environment_of
from mpsd.watchdog.rules.escapes import reserved_kib
from tests.contract.gpus import Seen
from tests.contract.processes import Client
from tests.contract.world import Daemon, World


class TestAClientsThreadPercentage:
    @pytest.mark.parametrize(
        "percent", ["1", "10", "20", "25", "30", "33", "40", "50", "99", "100"]
    )
    def test_it_becomes_these_sms(self, daemon: Daemon, world: World, percent: str) -> None:
        assert daemon.shows(world.gpu.seen(percent=percent), environment={THREAD_PERCENT: percent})

    @pytest.mark.parametrize("percent", ["0", "101", "-5", "abc", ""])
    def test_what_is_no_percentage_is_silently_all(
        self, daemon: Daemon, world: World, percent: str
    ) -> None:
        expected = world.gpu.seen(percent=percent)
        assert isinstance(expected, Seen)
        assert expected.sms == world.gpu.sms
        assert daemon.shows(expected, environment={THREAD_PERCENT: percent})


def is_as_known(client: Client, world: World) -> bool:
    """Whether it reserves what its SMs say. Skips where nobody knows what that is."""
    kib, sms, capability = (
        reserved_kib(mappings(client.pid)),
        client.lines[0]["sms"],
        world.gpu.capability,
    )
    if not capability.sms_per_reservation:
        named = f"compute capability {capability.compute_capability}"
        pytest.skip(
            f"limits/gpus.yaml has no sms_per_reservation of {named}; {sms} SMs reserve {kib} KiB"
            " here"
        )
    assert kib == capability.reserved_kib(sms), str(client)
    return True


class TestTheAddressesThatAContextReserves:
    """By which the watchdog knows who takes more than its share (`threads_lifted`)."""

    @pytest.mark.parametrize("percent", ["1", "10", "30", "48", "49", "75", "97", "98", "100"])
    def test_they_grow_with_its_sms(self, daemon: Daemon, world: World, percent: str) -> None:
        assert is_as_known(
            daemon.ready_client("hold", environment={THREAD_PERCENT: percent}), world
        )

    def test_they_tell_who_replaces_its_percentage_itself(
        self, daemon: Daemon, world: World
    ) -> None:
        client = daemon.ready_client("threads=100", "hold", environment={THREAD_PERCENT: "30"})
        assert client.lines[0]["sms"] == world.gpu.sms
        shown = environment_of(client.pid, (THREAD_PERCENT,))
        assert shown == {THREAD_PERCENT: "30"}, "it shows nowhere else"
        assert is_as_known(client, world)

    @pytest.mark.parametrize("action", ["alloc=700", "managed=200", "reconnect", "launch=0.1"])
    def test_they_stay_whatever_it_does(self, daemon: Daemon, world: World, action: str) -> None:
        assert is_as_known(
            daemon.ready_client(action, "hold", environment={THREAD_PERCENT: "50"}), world
        )

    def test_a_server_s_own_percentage_holds_and_they_say_so(
        self, daemon: Daemon, world: World
    ) -> None:
        daemon.ready_client("hold")  # there is a server
        daemon.command(f"set_active_thread_percentage {daemon.server} 30")
        client = daemon.ready_client("threads=100", "hold")
        daemon.command(f"set_active_thread_percentage {daemon.server} 100")
        assert client.lines[0]["sms"] == world.gpu.capability.sms_given(30, world.gpu.sms)
        assert is_as_known(client, world)
