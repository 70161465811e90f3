"""Who is on the GPU: as the daemon lists them, as NVML does, and what the difference says."""

from dataclasses import dataclass

import pytest

from mpsd.model.cuda_limit_parser import MEMORY_LIMIT, THREAD_PERCENT
from mpsd.platform.mappings import MappedBytes
from tests.contract.gpus import NVML_NEAR_MIB, Seen, near
from tests.contract.processes import SOON_S, Client
from tests.contract.world import Daemon, World


@dataclass
class Present:
    """Two clients on MPS, the second on a quarter of the GPU, and a CUDA process outside it."""

    one: Client
    quarter: Client
    outside: Client

    @property
    def on_mps(self) -> set[int]:
        return {self.one.pid, self.quarter.pid}


@pytest.fixture(scope="class")
def present(daemon: Daemon, world: World) -> Present:
    one = daemon.ready_client("alloc=512", "hold")
    quarter = daemon.ready_client("alloc=1024", "hold", environment={THREAD_PERCENT: "25"})
    outside = world.client("alloc=256", "hold")
    outside.next_line("ready", SOON_S)
    return Present(one, quarter, outside)


class TestTheDaemonsLists:
    def test_get_client_list_has_the_clients(self, daemon: Daemon, present: Present) -> None:
        assert set(daemon.command(f"get_client_list {daemon.server}").pids) == present.on_mps

    @pytest.mark.parametrize("command", ["ps", "ps -p {server}"])
    def test_ps_has_a_row_for_each_client(
        self, daemon: Daemon, present: Present, world: World, command: str
    ) -> None:
        server = daemon.server
        heading, *rows = daemon.command(command.format(server=server)).text.splitlines()
        assert heading.split() == ["PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"]
        fields = [row.split() for row in rows]
        assert {int(row[0]) for row in fields} == present.on_mps
        assert len({row[1] for row in fields}) == len(fields)
        assert {row[2] for row in fields} == {str(server)}
        assert {row[3] for row in fields} == {"-".join(world.gpu.uuid.split("-")[:4])}
        assert all(row[4].isdigit() and row[5] for row in fields)

    @pytest.mark.parametrize(
        "command", ["get_device_client_list", "get_device_client_list {server}"]
    )
    def test_get_device_client_list_has_them_under_their_gpu(
        self, daemon: Daemon, present: Present, world: World, command: str
    ) -> None:
        heading, *rows = daemon.command(command.format(server=daemon.server)).text.splitlines()
        assert heading.startswith("[0] ")
        assert heading.endswith(f", {world.gpu.name}")
        assert {int(row.partition(".")[0]) for row in rows} == present.on_mps


class TestWhatNvmlLists:
    def test_clients_are_listed_as_such_beside_the_server_and_who_is_outside(
        self, daemon: Daemon, world: World, present: Present
    ) -> None:
        on_mps, computing = set(world.mib_on_mps()), set(world.mib_on())
        assert on_mps == present.on_mps
        assert computing == on_mps | {daemon.server, present.outside.pid}
        assert world.mib_drawing(world.gpu).keys().isdisjoint(computing - {daemon.server})

    def test_a_clients_figure_has_its_context_in_it_and_the_servers_is_small(
        self, daemon: Daemon, world: World, present: Present
    ) -> None:
        gpu, held = world.gpu, world.mib_on_mps()
        assert held[present.one.pid] == near(512 + gpu.context_mib(), within=NVML_NEAR_MIB)
        quarter_mib = gpu.context_mib(gpu.capability.sms_given(25, gpu.sms))
        assert held[present.quarter.pid] == near(1024 + quarter_mib, within=NVML_NEAR_MIB)
        assert 0 < world.mib_on(gpu)[daemon.server] <= gpu.capability.server_mib

    def test_managed_memory_is_in_no_clients_figure_but_in_use_and_mapped(
        self, daemon: Daemon, world: World
    ) -> None:
        """And counted against its limit, as any other memory."""
        client = daemon.ready_client(
            "step", "managed=2048", "step", environment={MEMORY_LIMIT: "0=4G"}
        )
        before, in_use_mib = world.mib_on_mps()[client.pid], world.used_mib(world.gpu)
        client.go_on()
        line = client.next_line("managed_MiB")
        client.next_line("ready")
        limit_mib = 4096 - world.gpu.context_mib()
        assert line["meminfo_free_MiB"] == near(limit_mib - 2048)
        assert world.mib_on_mps()[client.pid] == before
        assert world.used_mib(world.gpu) == near(in_use_mib + 2048, within=8)
        mapped = MappedBytes(client.pid, b"nvidia-uvm")
        mapped.go_on()
        assert mapped.is_whole
        assert mapped.bytes // 1024**2 == near(2048, within=2)
        assert mapped.is_all, "its name is known wherever it is mapped as that device is"
        client.go_on()
        client.finished()

    def test_free_memory_falls_by_what_the_others_hold(
        self, daemon: Daemon, world: World, present: Present
    ) -> None:
        expected = world.gpu.seen()
        assert isinstance(expected, Seen)
        held_mib = sum(world.mib_on_mps().values()) + world.mib_on()[present.outside.pid]
        free_mib = daemon.client().finished().line("pid")["meminfo_free_MiB"]
        assert free_mib == near(expected.free_mib - held_mib, within=32)
