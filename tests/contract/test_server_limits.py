"""Limits on the server: which clients they hold, and which environments defeat them."""

from collections.abc import Iterator

import pytest

from mpsd.model.client_limits import DENY_MIB
from mpsd.model.cuda_limit_parser import MEMORY_LIMIT, PARTITIONING, THREAD_PERCENT
from tests.contract.gpus import OutOfMemory, Seen, near
from tests.contract.results import OUT_OF_MEMORY, SUCCESS
from tests.contract.world import Daemon, World

LIMIT_MIB, PERCENT = 3072, 30

CAPPED = [None, "", "0=2G", "0=9G", "{uuid}=9G", "0=-1G", "0=18446744073709551615G"]
POISONED = [
    "5=1G",
    "0=1G,1=1G",
    "garbage",
    "0=0",
    "0=",
    "GPU-00000000-0000-0000-0000-000000000000=1G",
]


def limit_the_server(daemon: Daemon) -> None:
    server = daemon.start_server()
    daemon.command(f"set_device_pinned_mem_limit {server} 0 {LIMIT_MIB}M")
    daemon.command(f"set_active_thread_percentage {server} {PERCENT}")


def limit_the_next_server(daemon: Daemon, key: str) -> None:
    daemon.command(f"set_default_device_pinned_mem_limit {key} {LIMIT_MIB}M")
    daemon.command(f"set_default_active_thread_percentage {PERCENT}")


@pytest.fixture(scope="class", params=["set on the running server", "defaults", "defaults by UUID"])
def limited(request: pytest.FixtureRequest, world: World) -> Iterator[Daemon]:
    daemon = world.daemon()
    if request.param == "set on the running server":
        limit_the_server(daemon)
    else:
        limit_the_next_server(
            daemon, world.gpu.uuid if request.param == "defaults by UUID" else "0"
        )
    yield daemon
    daemon.stop()


class TestLimitsOfAServer:
    @pytest.mark.parametrize("value", CAPPED)
    def test_the_smaller_memory_limit_wins(
        self, limited: Daemon, world: World, value: str | None
    ) -> None:
        value = value and value.format(uuid=world.gpu.uuid)
        client = limited.client("alloc=4096", environment={MEMORY_LIMIT: value}).finished()
        assert client.saw(
            world.gpu.seen(memory=value, server_mib=LIMIT_MIB, server_percent=PERCENT)
        )
        assert client.result == OUT_OF_MEMORY

    @pytest.mark.parametrize("percent", ["100", "0", "abc", "10"])
    def test_the_smaller_thread_percentage_wins(
        self, limited: Daemon, world: World, percent: str
    ) -> None:
        assert limited.shows(
            world.gpu.seen(percent=percent, server_mib=LIMIT_MIB, server_percent=PERCENT),
            environment={THREAD_PERCENT: percent},
        )

    @pytest.mark.parametrize("value", POISONED)
    def test_a_poisoned_value_gets_the_whole_memory_but_not_the_sms(
        self, limited: Daemon, world: World, value: str
    ) -> None:
        client = limited.client("alloc=4096", environment={MEMORY_LIMIT: value}).finished()
        assert client.saw(
            world.gpu.seen(memory=value, server_mib=LIMIT_MIB, server_percent=PERCENT)
        )
        assert client.result == SUCCESS

    def test_an_impossible_value_gets_no_context(self, limited: Daemon) -> None:
        assert limited.shows(OutOfMemory(), environment={MEMORY_LIMIT: "0=100T"})


@pytest.fixture(scope="class")
def limited_itself(world: World) -> Daemon:
    return world.daemon(environment={MEMORY_LIMIT: "0=1G", THREAD_PERCENT: "50"})


class TestLimitsInTheDaemonsOwnEnvironment:
    @pytest.mark.parametrize("percent", [None, "100", "20"])
    def test_the_percentage_counts_and_the_memory_does_not(
        self, limited_itself: Daemon, world: World, percent: str | None
    ) -> None:
        assert limited_itself.shows(
            world.gpu.seen(percent=percent, server_percent=50),
            environment={THREAD_PERCENT: percent},
        )


@pytest.fixture
def server(daemon: Daemon) -> int:
    """Without limits, whatever the test before did."""
    server = daemon.start_server()
    daemon.command(f"set_device_pinned_mem_limit {server} 0 0")
    daemon.command(f"set_active_thread_percentage {server} 100")
    return server


class TestChangingALimit:
    def test_it_counts_for_new_clients_only(
        self, daemon: Daemon, server: int, world: World
    ) -> None:
        daemon.command(f"set_device_pinned_mem_limit {server} 0 3G")
        early = daemon.ready_client("step", "alloc=2016")
        daemon.command(f"set_device_pinned_mem_limit {server} 0 1G")
        assert daemon.shows(world.gpu.seen(server_mib=1024))
        early.go_on()
        taken = early.next_line("rc")
        assert (taken["alloc_MiB"], taken["rc"]) == (2016, SUCCESS)
        daemon.command(f"set_device_pinned_mem_limit {server} 0 5G")
        assert daemon.shows(world.gpu.seen(server_mib=5120))

    def test_zero_is_no_limit_and_one_near_the_whole_card_is_the_card(
        self, daemon: Daemon, server: int, world: World
    ) -> None:
        gpu = world.gpu
        for limit, server_mib in (("0", None), (f"{gpu.memory_mib}M", gpu.memory_mib)):
            daemon.command(f"set_device_pinned_mem_limit {server} 0 {limit}")
            assert daemon.shows(gpu.seen(server_mib=server_mib))

    @pytest.mark.parametrize("mib", [1, DENY_MIB, 64])
    def test_a_tiny_limit_turns_every_new_client_away(
        self, daemon: Daemon, server: int, mib: int
    ) -> None:
        daemon.command(f"set_device_pinned_mem_limit {server} 0 {mib}M")
        for value in (None, "0=2G"):
            assert daemon.shows(OutOfMemory(), environment={MEMORY_LIMIT: value})

    def test_a_tiny_limit_turns_no_poisoned_client_away(
        self, daemon: Daemon, server: int, world: World
    ) -> None:
        daemon.command(f"set_device_pinned_mem_limit {server} 0 {DENY_MIB}M")
        for value in POISONED:
            expected = world.gpu.seen(memory=value, server_mib=DENY_MIB)
            assert isinstance(expected, Seen)
            assert daemon.shows(expected, environment={MEMORY_LIMIT: value})

    def test_a_percentage_counts_for_new_clients_only(
        self, daemon: Daemon, server: int, world: World
    ) -> None:
        early = daemon.ready_client("step", "info")
        daemon.command(f"set_active_thread_percentage {server} 40")
        early.go_on()
        assert early.next_line("sms")["sms"] == world.gpu.sms
        early.finished()
        assert daemon.shows(world.gpu.seen(server_percent=40))


@pytest.fixture(scope="class")
def limited_server(daemon: Daemon) -> Daemon:
    limit_the_server(daemon)
    return daemon


class TestThePartitioningFlag:
    @pytest.mark.parametrize("percent", [None, "20"])
    def test_0_changes_nothing(
        self, limited_server: Daemon, world: World, percent: str | None
    ) -> None:
        assert limited_server.shows(
            world.gpu.seen(percent=percent, server_mib=LIMIT_MIB, server_percent=PERCENT),
            environment={PARTITIONING: "0", THREAD_PERCENT: percent},
        )

    def test_1_lifts_the_percentage_but_not_the_memory_limit(
        self, limited_server: Daemon, world: World
    ) -> None:
        first = limited_server.client(environment={PARTITIONING: "1"}).finished().line("pid")
        assert first["sms"] == world.gpu.sms
        assert first["meminfo_free_MiB"] == near(LIMIT_MIB - world.gpu.context_mib(), within=6)

    def test_1_leaves_the_clients_own_percentage(
        self, limited_server: Daemon, world: World
    ) -> None:
        assert limited_server.shows(
            world.gpu.seen(percent="20", server_mib=LIMIT_MIB, server_percent=PERCENT),
            environment={PARTITIONING: "1", THREAD_PERCENT: "20"},
        )
