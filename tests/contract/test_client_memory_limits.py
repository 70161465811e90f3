"""CUDA_MPS_PINNED_DEVICE_MEM_LIMIT in a client's environment, under a server that limits
nothing."""

import pytest

from mpsd.model.cuda_limit_parser import (
    MEMORY_LIMIT,
    THREAD_PERCENT,
    Lifted,
    Limited,
    Unset,
    Unusable,
    memory_limit_as_read,
)
from tests.contract.gpus import NVML_NEAR_MIB, Gpu, Seen, near
from tests.contract.results import OUT_OF_MEMORY, SUCCESS
from tests.contract.world import Daemon, World

ASKED_MIB = 4096

HOLD = [
    *("0=2G", "0=2g", "0=2048M", "0=2048m", "0=2048MB", "0=2Gi", "0 = 1G", "0=1G,"),
    *("{uuid}=1G", "{uuid}=2g", "{uuid}=2048m", "{first_8}=1G"),
]
LIFT = [
    "0=2147483648",
    "0=2097152K",
    "{uuid}=2097152K",
    "1G",
    "0=abc",
    "0=0",
    "0=",
    "garbage",
    " 0=1G",
    *("5=1G", "0=1G,1=1G", "GPU-00000000-0000-0000-0000-000000000000=1G"),
    "{uuid}=1G,GPU-00000000-0000-0000-0000-000000000000=1G",
]
READ = [
    *[(value, Unusable) for value in ("0=1.5G", "0=1T", "0=100T")],
    *[("", Unset), ("0=-1G", Limited), ("0=18446744073709551615G", Limited)],
]


def _of(gpu: Gpu, value: str) -> str:
    return value.format(uuid=gpu.uuid, first_8=gpu.uuid[: len("GPU-") + 8])


class TestAClientsMemoryLimit:
    @pytest.mark.parametrize("value", HOLD)
    def test_a_limit_in_this_form_holds(self, daemon: Daemon, world: World, value: str) -> None:
        value = _of(world.gpu, value)
        assert isinstance(memory_limit_as_read(value, [world.gpu.uuid]), Limited)
        expected = world.gpu.seen(memory=value)
        assert isinstance(expected, Seen)
        client = daemon.client(f"alloc={ASKED_MIB}", environment={MEMORY_LIMIT: value}).finished()
        assert client.saw(expected)
        free_mib, tried = client.line("pid")["meminfo_free_MiB"], client.line("rc")
        assert tried["rc"] == OUT_OF_MEMORY
        assert tried["alloc_MiB"] == near(free_mib - free_mib % 32, within=32)
        assert tried["free_after_MiB"] == near(free_mib - tried["alloc_MiB"])
        assert tried["total_after_MiB"] == world.gpu.memory_mib

    @pytest.mark.parametrize("value", LIFT)
    def test_a_limit_in_this_form_is_silently_no_limit(
        self, daemon: Daemon, world: World, value: str
    ) -> None:
        value = _of(world.gpu, value)
        assert isinstance(memory_limit_as_read(value, [world.gpu.uuid]), Lifted)
        client = daemon.client(f"alloc={ASKED_MIB}", environment={MEMORY_LIMIT: value}).finished()
        assert client.saw(world.gpu.seen(memory=value))
        assert client.result == SUCCESS

    @pytest.mark.parametrize(("value", "read"), READ)
    def test_a_limit_in_this_form_leaves_no_context_or_changes_nothing(
        self, daemon: Daemon, world: World, value: str, read: type
    ) -> None:
        assert isinstance(memory_limit_as_read(value, [world.gpu.uuid]), read)
        assert daemon.shows(world.gpu.seen(memory=value), environment={MEMORY_LIMIT: value})

    @pytest.mark.parametrize("percent", ["100", "40", "20"])
    def test_it_includes_the_context_which_costs_by_the_sm(
        self, daemon: Daemon, world: World, percent: str
    ) -> None:
        cost_mib = world.gpu.context_mib(
            world.gpu.capability.sms_given(int(percent), world.gpu.sms)
        )
        for limit_mib in (cost_mib - 8, cost_mib + 64):
            limits = {MEMORY_LIMIT: f"0={limit_mib}M", THREAD_PERCENT: percent}
            expected = world.gpu.seen(memory=limits[MEMORY_LIMIT], percent=percent)
            assert daemon.shows(expected, environment=limits)

    def test_what_is_freed_may_be_taken_again(self, daemon: Daemon) -> None:
        client = daemon.client(
            "alloc=1024", "free", "info", "alloc=1024", environment={MEMORY_LIMIT: "0=2G"}
        )
        first, taken, _, freed, again, _ = client.finished().lines
        assert freed["meminfo_free_MiB"] == near(first["meminfo_free_MiB"])
        assert taken == again

    def test_it_is_one_limit_for_each_process(self, daemon: Daemon, world: World) -> None:
        limit = {MEMORY_LIMIT: "0=2G"}
        two = [
            daemon.ready_client(f"alloc={ASKED_MIB}", "hold", environment=limit) for _ in range(2)
        ]
        held = world.mib_on_mps()
        for client in two:
            taken_mib = client.line("rc")["alloc_MiB"]
            assert held[client.pid] == near(
                taken_mib + world.gpu.context_mib(), within=NVML_NEAR_MIB
            )
        assert sum(held.values()) > 3 * 1024
