"""A cgroup's memory limit holds its processes together, in the moment of an allocation, whatever
they set.

From NVIDIA's documentation ("MPS v3 Memory Partitioning", releases 615 and 620; nvml.h): no driver
that has these limits has been tested yet. On real GPUs it runs where NVML has the functions, as
root and on cgroup v2.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mpsd.model.cuda_limit_parser import MEMORY_LIMIT
from mpsd.platform.containers import ProgramCgroups, let_count, v2_tree
from mpsd.platform.nvml import Nvml
from tests.contract.processes import Client, eventually
from tests.contract.results import OUT_OF_MEMORY, SUCCESS
from tests.contract.world import Daemon, World

DRIVER = "615.71.09"
LIMIT_MIB, TAKEN_MIB = 2048, 4096
LIFTED = {MEMORY_LIMIT: "garbage"}

MakeCgroup = Callable[..., Path]


@pytest.fixture(scope="class")
def tree(world: World) -> Path:
    found = v2_tree(Path("/sys/fs/cgroup"))
    if found is None or ProgramCgroups().why_not:
        pytest.skip(ProgramCgroups().why_not or "cgroup v2 is not mounted")
    if not Nvml(world.nvml).has_memory_limits(world.gpu.uuid, found):
        driver = world.nvml.nvmlSystemGetDriverVersion()
        pytest.skip(
            f"NVML of driver {driver} has no nvmlDeviceSetMemoryLimits_v1, which came with 615"
        )
    return found


@pytest.fixture
def made(tree: Path, world: World) -> Iterator[MakeCgroup]:
    folders: list[Path] = []

    def make(name: str, limit_mib: int | None = None, above: Path | None = None) -> Path:
        folder = (above or tree) / f"mpsd-contract-{name}"
        folder.mkdir()
        folders.append(folder)
        let_count(tree, folder)
        if limit_mib is not None:
            set_limit(world, folder, limit_mib * 1024**2)
        return folder

    yield make
    world.end_clients()
    for folder in reversed(folders):
        set_limit(world, folder, world.nvml.NVML_DEVICE_MEMORY_LIMIT_MAX)
        eventually(lambda: not (folder / "cgroup.procs").read_text())  # noqa: B023 (it is called at once)
        with suppress(FileNotFoundError):
            folder.rmdir()


def set_limit(world: World, cgroup: Path, hard: int) -> None:
    limits = world.nvml.c_nvmlSetMemoryLimits_v1_t()
    limits.nameSpace, limits.softLimit, limits.hardLimit = str(cgroup).encode(), 0, hard
    world.nvml.nvmlDeviceSetMemoryLimits_v1(
        world.nvml.nvmlDeviceGetHandleByUUID(world.gpu.uuid), limits
    )


def limits_of(world: World, cgroup: Path) -> Any:
    limits = world.nvml.c_nvmlGetMemoryLimits_v1_t()
    limits.nameSpace = str(cgroup).encode()
    world.nvml.nvmlDeviceGetMemoryLimits_v1(
        world.nvml.nvmlDeviceGetHandleByUUID(world.gpu.uuid), limits
    )
    return limits


def result(client: Client) -> str:
    return str(client.finished().result)


class TestALimit:
    def test_it_is_read_back_in_bytes_and_taken_away_by_the_largest_number(
        self, world: World, made: MakeCgroup
    ) -> None:
        cgroup = made("one", LIMIT_MIB)
        found = limits_of(world, cgroup)
        assert (found.softLimit, found.hardLimit, found.currentUsed) == (0, LIMIT_MIB * 1024**2, 0)
        set_limit(world, cgroup, world.nvml.NVML_DEVICE_MEMORY_LIMIT_MAX)
        assert limits_of(world, cgroup).hardLimit == world.nvml.NVML_DEVICE_MEMORY_LIMIT_MAX

    def test_a_client_of_mps_that_lifts_its_own_is_held_and_a_neighbour_outside_is_not(
        self, daemon: Daemon, made: MakeCgroup
    ) -> None:
        client = daemon.client(
            f"alloc={TAKEN_MIB}", environment=LIFTED, cgroup=made("one", LIMIT_MIB)
        )
        assert result(client) == OUT_OF_MEMORY
        assert client.line("alloc_MiB")["alloc_MiB"] < LIMIT_MIB
        shown = client.line("meminfo_total_MiB")
        assert shown["meminfo_total_MiB"] == LIMIT_MIB > shown["meminfo_free_MiB"] > 0
        assert result(daemon.client(f"alloc={TAKEN_MIB}", environment=LIFTED)) == SUCCESS

    def test_it_holds_all_processes_below_it_together(
        self, daemon: Daemon, made: MakeCgroup
    ) -> None:
        """MPS's limit is each process's."""
        cgroup = made("one", LIMIT_MIB)
        first = daemon.client("alloc=600", "hold", environment=LIFTED, cgroup=cgroup)
        first.next_line("ready")
        below = made("below", above=cgroup)
        assert result(daemon.client("alloc=600", environment=LIFTED, cgroup=below)) == OUT_OF_MEMORY

    def test_the_smaller_of_it_and_the_limit_of_mps_holds(
        self, daemon: Daemon, made: MakeCgroup
    ) -> None:
        own = {MEMORY_LIMIT: "0=1G"}
        client = daemon.client("alloc=1200", environment=own, cgroup=made("one", LIMIT_MIB))
        assert result(client) == OUT_OF_MEMORY

    def test_it_holds_a_process_beside_mps_as_well(self, world: World, made: MakeCgroup) -> None:
        cgroup = made("one", LIMIT_MIB)
        client = world.client(f"alloc={TAKEN_MIB}", directory=world.nowhere, cgroup=cgroup)
        assert result(client) == OUT_OF_MEMORY

    def test_what_is_freed_can_be_taken_again(
        self, daemon: Daemon, world: World, made: MakeCgroup
    ) -> None:
        cgroup = made("one", LIMIT_MIB)
        assert result(daemon.client("alloc=1200", "free", "alloc=1200", cgroup=cgroup)) == SUCCESS
        eventually(lambda: limits_of(world, cgroup).currentUsed == 0)
