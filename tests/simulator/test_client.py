"""The command line of sim-cuda, which has a twin on real hardware in tests/contract."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.simulator.machine import Daemon, Machine, wait_until


def test_arguments_it_does_not_know_are_refused_before_anything_happens(machine: Machine) -> None:
    client = machine.run_client("hold", "dance")
    assert client.process.returncode == 2
    assert client.lines == []


def test_a_container_with_one_gpus_device_node_sees_it_as_its_first(
    pair: Machine, pair_daemon: Daemon
) -> None:
    client = pair.run_client(environment={"MPSD_SIMULATION_DEVICES": pair.uuids[1]})
    assert (client.lines[0]["uuid"], client.lines[0]["devices"]) == (pair.uuids[1], 1)


def test_sigterm_ends_a_hold_and_nothing_else(machine: Machine, daemon: Daemon) -> None:
    held = machine.start_client("hold", "linger")
    held.heard("ready")
    held.process.terminate()
    held.heard("lingering")
    held.process.terminate()
    assert held.finish() == -signal.SIGTERM


def test_work_says_how_far_it_is_until_sigterm_ends_it(machine: Machine, daemon: Daemon) -> None:
    worker = machine.start_client("work")
    worker.heard("launches")
    worker.process.terminate()
    assert worker.finish() == 0
    launches = [line["launches"] for line in worker.lines if "launches" in line]
    assert launches == sorted(launches)
    assert launches[0] > 0
    assert machine.run_client("work=0.01").lines[1].keys() == {"launches", "at"}


def test_steps_take_a_line_each_and_the_end_of_input_ends_them_all(
    machine: Machine, daemon: Daemon
) -> None:
    client = machine.start_client("step", "alloc=32", "step", "alloc=64", "step")
    client.heard("ready")
    client.proceed()
    client.heard("alloc_MiB")
    assert client.process.stdin
    client.process.stdin.close()
    assert client.finish() == 0
    assert [line["alloc_MiB"] for line in client.lines if "alloc_MiB" in line] == [32, 64]


def test_a_held_context_costs_no_processor_time(machine: Machine, daemon: Daemon) -> None:
    clients = [machine.start_client("hold") for _ in range(4)]
    for client in clients:
        client.heard("ready")
        wait_until(lambda pid=client.pid: asleep(pid), "it sleeps")  # type: ignore[misc]
    before = [switches(client.pid) for client in clients]
    machine.ask("ps")
    assert [switches(client.pid) for client in clients] == before


def asleep(pid: int) -> bool:
    return "\nState:\tS" in Path(f"/proc/{pid}/status").read_text()


def switches(pid: int) -> int:
    """How often the process went to sleep: a process that polls does so all the time."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


def together(
    machine: Machine, work: str, number: int, pipe: Path | None = None
) -> list[list[float]]:
    """What each of so many programs did a second, window by window.

    Only in some windows all of them compute for most of the time: others may want the processors.
    """
    actions = (f"prepare={work}", *("step", "measure=0.4") * 4)
    clients = [machine.start_client(*actions, pipe=pipe) for _ in range(number)]
    for client in clients:
        client.heard("ready")

    def window() -> list[float]:
        for client in clients:
            client.lines.clear()
            client.proceed()
        return [client.heard("launches_per_s")["launches_per_s"] for client in clients]

    return [window() for _ in range(4)]


def test_processes_beside_mps_take_turns_on_the_whole_gpu(machine: Machine, daemon: Daemon) -> None:
    nowhere = machine.folder / "nowhere"
    alone, *_rest = together(machine, "small", 1, nowhere)
    assert min(map(max, together(machine, "small", 2, nowhere))) < 0.5 * alone[0]
    assert min(map(min, together(machine, "small", 2))) > 0.95 * alone[0]


def test_in_exclusive_mode_nothing_runs_beside_the_server(machine: Machine, daemon: Daemon) -> None:
    machine.node.card(0).compute_mode = machine.nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    machine.start_server()
    refused = machine.run_client(pipe=machine.folder / "nowhere")
    assert refused.lines == [{"fail": "ctx", "err": "46:CUDA_ERROR_DEVICE_UNAVAILABLE"}]
    assert refused.process.returncode == 3
    assert machine.run_client().process.returncode == 0


def test_in_exclusive_mode_whoever_is_first_keeps_the_server_out(
    machine: Machine, daemon: Daemon
) -> None:
    machine.node.card(0).compute_mode = machine.nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    first = machine.start_client("step", pipe=machine.folder / "nowhere")
    first.heard("ready")
    assert machine.run_client().process.returncode == 3
    wait_until(lambda: machine.ask("get_server_list").output == "", "the server has given up")
    first.proceed()
    first.finish()
    assert machine.run_client().process.returncode == 0


def test_in_prohibited_mode_no_context_is_made(machine: Machine) -> None:
    machine.node.card(0).compute_mode = machine.nvml.NVML_COMPUTEMODE_PROHIBITED
    assert machine.run_client().lines == [
        {"fail": "ctx", "err": "46:CUDA_ERROR_DEVICE_UNAVAILABLE"}
    ]


def test_a_client_in_a_pid_namespace_of_its_own_is_listed_by_its_host_pid(
    machine: Machine, daemon: Daemon
) -> None:
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*unshare, "true"], capture_output=True, timeout=10).returncode != 0:
        pytest.skip("no namespaces may be made here")
    free = machine.free_mib()
    client = machine.start_client("alloc=64", "step", through=unshare)
    assert client.heard("pid")["pid"] == 1
    client.heard("ready")
    (pid,) = machine.mps_pids()
    assert machine.ask(f"get_client_list {machine.server()}").output == str(pid)
    os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: machine.free_mib() == free - machine.node.gpus[0].server_mib, "its memory is back"
    )
