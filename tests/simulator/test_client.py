"""The command line of sim-cuda, and what no card was asked of its contexts: what both have is in
tests/contract."""

import signal
import subprocess
from pathlib import Path

import pytest

from mpsd.simulator.node import SimulatedNode
from tests.contract.processes import Client, eventually
from tests.contract.world import Daemon, World, child_of

UNAVAILABLE = ({"fail": "ctx", "err": "46:CUDA_ERROR_DEVICE_UNAVAILABLE"},)


def test_a_container_with_one_gpus_device_node_sees_it_as_its_first(world: World) -> None:
    second = world.gpus[1].uuid
    daemon = world.daemon(gpus=world.gpus)
    environment = {"CUDA_VISIBLE_DEVICES": None, "MPSD_SIMULATION_DEVICES": second}
    first = daemon.client(environment=environment).finished().lines[0]
    assert (first["uuid"], first["devices"]) == (second, 1)


def test_sigterm_ends_a_hold_and_nothing_else(daemon: Daemon) -> None:
    held = daemon.ready_client("hold", "linger")
    held.terminate()
    held.next_line("lingering")
    held.terminate()
    assert held.exit_code() == -signal.SIGTERM


def test_work_says_how_far_it_is_until_sigterm_ends_it(daemon: Daemon) -> None:
    worker = daemon.client("work")
    worker.next_line("launches")
    worker.terminate()
    assert worker.exit_code() == 0
    launches = [line["launches"] for line in worker.lines if "launches" in line]
    assert launches == sorted(launches)
    assert launches[0] > 0
    assert daemon.client("work=0.01").finished().lines[1].keys() == {"launches", "at"}


def test_steps_take_a_line_each_and_the_end_of_input_ends_them_all(daemon: Daemon) -> None:
    client = daemon.ready_client("step", "alloc=32", "step", "alloc=64", "step")
    client.go_on()
    client.next_line("alloc_MiB")
    client.end_input()
    assert client.exit_code() == 0
    assert [line["alloc_MiB"] for line in client.lines if "alloc_MiB" in line] == [32, 64]


def test_a_held_context_costs_no_processor_time(daemon: Daemon) -> None:
    clients = [daemon.ready_client("hold") for _ in range(4)]
    for client in clients:
        eventually(lambda pid=client.pid: asleep(pid))  # type: ignore[misc]
    before = [switches(client.pid) for client in clients]
    daemon.command("ps")
    assert [switches(client.pid) for client in clients] == before


def asleep(pid: int) -> bool:
    return "\nState:\tS" in Path(f"/proc/{pid}/status").read_text()


def switches(pid: int) -> int:
    """How often the process went to sleep: a process that polls does so all the time."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


def together(world: World, number: int, pipe: Path | None = None) -> list[list[float]]:
    """What each of so many programs did a second, window by window.

    Only in some windows all of them compute for most of the time: others may want the processors.
    """
    actions = ("prepare=small", *("step", "measure=0.4") * 4)
    clients = [world.client(*actions, directory=pipe) for _ in range(number)]
    for client in clients:
        client.next_line("ready")

    def window() -> list[float]:
        for client in clients:
            client.go_on()
        return [client.next_line("launches_per_s")["launches_per_s"] for client in clients]

    return [window() for _ in range(4)]


def test_processes_beside_mps_take_turns_on_the_whole_gpu(world: World, daemon: Daemon) -> None:
    alone, *_rest = together(world, 1)
    assert min(map(max, together(world, 2))) < 0.5 * alone[0]
    assert min(map(min, together(world, 2, daemon.pipe))) > 0.95 * alone[0]


@pytest.fixture
def exclusive(world: World, node: SimulatedNode) -> None:
    """The first GPU is for one process at a time."""
    node.card(0).compute_mode = world.nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS


def refused(client: Client) -> bool:
    return client.exit_code() == 3 and client.lines == UNAVAILABLE


@pytest.mark.usefixtures("exclusive")
def test_in_exclusive_mode_nothing_runs_beside_the_server(world: World, daemon: Daemon) -> None:
    daemon.start_server()
    assert refused(world.client())
    assert daemon.client().exit_code() == 0


@pytest.mark.usefixtures("exclusive")
def test_in_exclusive_mode_whoever_is_first_keeps_the_server_out(
    world: World, daemon: Daemon
) -> None:
    first = world.client("step")
    first.next_line("ready")
    assert daemon.client().exit_code() == 3
    eventually(lambda: not daemon.command("get_server_list").pids)
    first.go_on()
    assert first.exit_code() == 0
    assert daemon.client().exit_code() == 0


def test_in_prohibited_mode_no_context_is_made(world: World, node: SimulatedNode) -> None:
    node.card(0).compute_mode = world.nvml.NVML_COMPUTEMODE_PROHIBITED
    assert refused(world.client())


def test_a_client_in_a_pid_namespace_of_its_own_is_listed_by_its_host_pid(
    world: World, daemon: Daemon
) -> None:
    unshare = ["unshare", "--mount", "--ipc", "--net", "--pid", "--fork", "--mount-proc", "true"]
    if subprocess.run(unshare, capture_output=True, timeout=10).returncode != 0:
        pytest.skip("no namespaces may be made here")
    daemon.start_server()
    used = world.used_mib(world.gpu)
    client = daemon.client("alloc=64", "step", directory=daemon.mounted(daemon.pipe))
    assert client.next_line("pid")["pid"] == 1
    client.next_line("ready")
    inside = child_of(client.pid)
    assert world.mib_on_mps(world.gpu).keys() == {inside}
    assert daemon.command(f"get_client_list {daemon.server}").pids == [inside]
    client.kill()
    eventually(lambda: world.used_mib(world.gpu) == used)
