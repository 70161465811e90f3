"""Faults, terminations and deaths: who notices what, against transcripts 2 (P4 on), 3 (Q5 on) and 4
(R2 on)."""

import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from mpsd.simulator.card import process_start_ticks
from tests.simulator.machine import PATIENCE_S, Client, Daemon, Machine, wait_until
from tests.simulator.transcripts import transcript

ILLEGAL_ADDRESS = "700:CUDA_ERROR_ILLEGAL_ADDRESS"
NOT_READY = "807:CUDA_ERROR_MPS_SERVER_NOT_READY"
RPC_FAILURE = "806:CUDA_ERROR_MPS_RPC_FAILURE"
TERMINATED = "810:CUDA_ERROR_MPS_CLIENT_TERMINATED"
SUCCESS = "0:CUDA_SUCCESS"


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def holding(machine: Machine, *actions: str, **options: object) -> Client:
    client = machine.start_client(*(actions or ("hold",)), **options)  # type: ignore[arg-type]
    client.heard("ready")
    return client


def status(machine: Machine) -> str:
    return machine.ask(f"get_server_status {machine.server()}").output


def test_a_fault_takes_every_client_of_the_gpu_and_no_other(
    pair: Machine, pair_daemon: Daemon
) -> None:
    neighbours = [holding(pair), holding(pair)]
    elsewhere = holding(pair, environment={"CUDA_VISIBLE_DEVICES": "1"})
    culprit = pair.run_client("fault")
    assert culprit.process.returncode == 0
    assert culprit.lines[1:] == [{"bad": ILLEGAL_ADDRESS}, {"end": ILLEGAL_ADDRESS}]
    for neighbour in neighbours:
        assert neighbour.heard("broke")["broke"] == ILLEGAL_ADDRESS
        assert neighbour.finish() == 4
    wait_until(lambda: status(pair) == "ACTIVE", "the server is well again")
    elsewhere.process.terminate()
    assert elsewhere.heard("end")["end"] == SUCCESS


def test_a_lingering_process_keeps_the_server_in_fault_until_it_is_killed(
    machine: Machine, daemon: Daemon
) -> None:
    culprit = machine.start_client("fault", "linger")
    culprit.heard("lingering")
    assert status(machine) == "FAULT"
    late = machine.run_client()
    assert late.process.returncode == 3
    theirs = transcript(4, []).section("R2")
    assert f'"{late.lines[0]["fail"]}", "err": "{late.lines[0]["err"]}"' in theirs
    assert len(machine.ask("ps").output.splitlines()) == 2
    culprit.process.kill()
    wait_until(lambda: status(machine) == "ACTIVE", "the server is well again")
    assert machine.run_client().process.returncode == 0


def test_the_log_of_a_fault_has_the_real_one_s_lines_and_names_an_innocent(
    machine: Machine, daemon: Daemon
) -> None:
    innocent = holding(machine)
    culprit = machine.start_client("fault", "linger")
    culprit.heard("lingering")
    innocent.finish()
    machine.run_client()
    culprit.process.kill()
    wait_until(
        lambda: f"Client process {culprit.pid} disconnected" in daemon.log,
        "the culprit is forgotten",
    )
    theirs = transcript(4, []).section("R2").partition("encountered a fatal GPU error")
    expected = set(map(shape, ("x " + theirs[1] + theirs[2]).splitlines()[1:-1]))
    assert {line for line in expected if " Server " in line} <= set(
        map(shape, daemon.log.splitlines())
    )
    assert (
        f"Client {{PID: {innocent.pid}, Context: 1}} encountered a fatal GPU error." in daemon.log
    )


def shape(line: str) -> str:
    """A log line without its time and numbers."""
    return re.sub(r" +", " ", re.sub(r"\d+", "N", line.partition(" ")[2].partition(" ")[2])).strip()


def test_a_terminated_client_that_looks_is_told_so_and_ends(
    machine: Machine, daemon: Daemon
) -> None:
    client = holding(machine, "alloc=512", "step")
    free = machine.free_mib()
    assert machine.ask(f"terminate_client {machine.server()} {client.pid}").output == "0"
    assert client.heard("broke")["broke"] == TERMINATED
    assert client.finish() == 4
    wait_until(lambda: machine.free_mib() > free, "the memory is back when the process is gone")


def test_a_terminated_client_that_does_not_look_keeps_its_memory_and_connects_again(
    machine: Machine, daemon: Daemon
) -> None:
    client = machine.start_client("alloc=512", "step", "linger=2", "reconnect", "step")
    client.heard("ready")
    free, row = machine.free_mib(), machine.ask("ps").output
    terminate = f"terminate_client {machine.server()} {client.pid}"
    client.proceed()
    client.heard("lingering")
    assert machine.ask(terminate).output == "0"
    with stopped(client.pid):  # however long the questions take
        assert machine.free_mib() == free
        assert machine.ask("ps").output == row
    theirs = transcript(3, []).section("Q5")
    again = client.heard("again")
    assert f'"destroy": "{again["destroy"]}"' in theirs
    assert f'{{"again": "{again["again"]}"}}' in theirs
    assert machine.ask("ps").output == row
    assert machine.free_mib() == free + 512


def test_terminating_no_client_is_answered_as_it_was(machine: Machine, daemon: Daemon) -> None:
    answer = machine.ask(f"terminate_client {machine.start_server()} 999999")
    assert f"{answer.output}  [rc={answer.exit}]" in transcript(2, []).section("P4")


def test_a_killed_client_frees_its_memory_and_harms_nobody(
    machine: Machine, daemon: Daemon
) -> None:
    neighbour = holding(machine)
    free = machine.free_mib()
    client = holding(machine, "alloc=1024", "hold")
    client.process.kill()
    wait_until(lambda: machine.free_mib() == free, "the memory is back")
    assert status(machine) == "ACTIVE"
    neighbour.process.terminate()
    assert neighbour.heard("end")["end"] == SUCCESS


# -- ends in mid-kernel: tests/contract/test_ends.py has those that were counted on a card -------


def computing(machine: Machine, *chosen: str, **options: object) -> Client:
    client = machine.start_client(*chosen, "work", **options)  # type: ignore[arg-type]
    client.heard("launches")
    return client


def test_a_death_in_mid_kernel_takes_the_clients_of_its_gpu_and_no_other(
    pair: Machine, pair_daemon: Daemon
) -> None:
    elsewhere = holding(pair, environment={"CUDA_VISIBLE_DEVICES": "1"})
    neighbour = pair.start_client("linger")
    neighbour.heard("lingering")
    victim = computing(pair, "kernel=100")
    victim.process.kill()
    wait_until(lambda: status(pair) == "FAULT", "the neighbour is hit")
    assert re.search(rf"sticky error set:\n.*\] {neighbour.pid}\n", pair_daemon.log)
    assert pair.run_client().lines == [{"fail": "cuInit", "err": NOT_READY}]
    neighbour.process.kill()
    wait_until(lambda: status(pair) == "ACTIVE", "the server is well again")
    assert pair.run_client().lines[-1] == {"end": SUCCESS}
    elsewhere.process.terminate()
    assert elsewhere.heard("end")["end"] == SUCCESS


def test_those_whom_a_death_hit_harm_nobody_by_theirs(machine: Machine, daemon: Daemon) -> None:
    victim, hit = computing(machine, "kernel=1000"), computing(machine, "kernel=1000")
    with stopped(hit.pid):
        victim.process.kill()
        wait_until(lambda: status(machine) == "FAULT", "the neighbour is hit")
        hit.process.kill()
    wait_until(lambda: status(machine) == "ACTIVE", "the server is well again")
    assert machine.run_client().lines[-1] == {"end": SUCCESS}


def test_a_death_in_mid_kernel_beside_mps_harms_nobody(machine: Machine, daemon: Daemon) -> None:
    neighbour = holding(machine)
    beside = computing(machine, "kernel=1000", pipe=machine.folder / "nowhere")
    beside.process.kill()
    beside.process.wait()
    neighbour.process.terminate()
    assert neighbour.heard("end")["end"] == SUCCESS
    assert machine.run_client().lines[-1] == {"end": SUCCESS}


def test_a_context_that_is_destroyed_leaves_nothing_behind(
    machine: Machine, daemon: Daemon
) -> None:
    neighbour = holding(machine)
    client = machine.start_client("kernel=100", "work=0.1", "reconnect", "linger")
    client.heard("lingering")
    client.process.kill()
    client.process.wait()
    neighbour.process.terminate()
    assert neighbour.heard("end")["end"] == SUCCESS


def test_while_terminate_client_hangs_others_are_answered_and_a_kill_strikes(
    machine: Machine, daemon: Daemon
) -> None:
    neighbour, client = holding(machine), computing(machine, "kernel=1000")
    server = machine.server()
    with stopped(client.pid), ThreadPoolExecutor() as pool:
        asked = pool.submit(machine.ask, f"terminate_client {server} {client.pid}")
        said = f"requesting client {{PID: {client.pid}, Context ID: 1}} to exit"
        wait_until(lambda: said in daemon.log, "the server has heard it")
        assert str(client.pid) in machine.ask(f"get_client_list {server}").output
        assert not asked.done()
        client.process.kill()
        assert asked.result(PATIENCE_S).output != "0"
    assert neighbour.heard("broke")["broke"] == ILLEGAL_ADDRESS


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_daemon_s_death_reaches_its_clients(
    machine: Machine, flags: Sequence[str], how: signal.Signals
) -> None:
    daemon = machine.start_daemon(*flags)
    client, server = holding(machine), machine.server()
    daemon.process.send_signal(how)
    assert client.heard("broke")["broke"] == RPC_FAILURE
    assert client.finish() == 4
    assert daemon.process.wait() == -how
    wait_until(lambda: process_start_ticks(server) == 0, "the server is gone")
    outside = machine.run_client()
    assert outside.lines[0]["meminfo_free_MiB"] == 142629
    machine.start_daemon(*flags)
    assert machine.run_client().lines[0]["meminfo_free_MiB"] == 142565


def test_one_daemon_s_death_is_nothing_to_the_other_gpu_s_clients(
    pair: Machine, flags: tuple[str, ...]
) -> None:
    daemons = [
        pair.start_daemon(
            *flags, pipe=f"g{gpu.ordinal}", environment={"CUDA_VISIBLE_DEVICES": gpu.uuid}
        )
        for gpu in pair.node.gpus
    ]
    clients = [holding(pair, pipe=daemon.pipe) for daemon in daemons]
    daemons[0].end()
    assert clients[0].heard("broke")["broke"] == RPC_FAILURE
    clients[1].process.terminate()
    assert clients[1].heard("end")["end"] == SUCCESS


def test_a_client_of_a_daemon_without_its_gpu_has_no_device(
    pair: Machine, flags: tuple[str, ...]
) -> None:
    pair.start_daemon(*flags, environment={"CUDA_VISIBLE_DEVICES": pair.uuids[0]})
    client = pair.run_client(environment={"CUDA_VISIBLE_DEVICES": pair.uuids[1]})
    assert client.process.returncode == 3
    assert f'"{client.lines[0]["fail"]}", "err": "{client.lines[0]["err"]}"' in transcript(
        3, []
    ).section("Q9")


def test_a_killed_server_is_replaced_for_the_next_client(machine: Machine, daemon: Daemon) -> None:
    client, server = holding(machine), machine.server()
    os.kill(server, signal.SIGKILL)
    assert client.heard("broke")["broke"] == RPC_FAILURE
    wait_until(lambda: machine.ask("get_server_list").output == "", "the server is gone")
    assert machine.run_client().process.returncode == 0
    assert machine.server() != server


def test_while_the_server_is_stopped_only_the_daemon_answers(
    machine: Machine, daemon: Daemon
) -> None:
    running, server = holding(machine, "step", "launch=0.1", "step"), machine.server()
    asked = [f"get_server_status {server}", f"get_client_list {server}", "ps"]
    with stopped(server):
        assert machine.ask("get_server_list").output == str(server)
        running.proceed()
        assert running.heard("launches_per_s")["launches_per_s"] > 0
        newcomer = machine.start_client()
        assert newcomer.silent(0.1)
        for command in asked:
            with pytest.raises(TimeoutError):
                machine.ask(command, patience_s=0.15)
    assert newcomer.heard("end")["end"] == SUCCESS
    assert status(machine) == "ACTIVE"


def test_while_the_daemon_is_stopped_no_command_is_answered(
    machine: Machine, daemon: Daemon
) -> None:
    running = holding(machine, "step", "launch=0.1")
    with stopped(daemon.process.pid):
        with pytest.raises(TimeoutError):
            machine.ask("get_server_list", patience_s=0.15)
        newcomer = machine.start_client()
        assert newcomer.silent(0.1)
        running.proceed()
        assert running.heard("end")["end"] == SUCCESS
    assert newcomer.heard("end")["end"] == SUCCESS


def test_a_quit_with_patience_waits_that_long_and_then_ends_the_clients(
    machine: Machine, daemon: Daemon
) -> None:
    client = holding(machine)
    began = time.monotonic()
    assert machine.ask("quit -t 1").exit == 0
    assert time.monotonic() - began >= 1.0
    assert client.heard("broke")["broke"] == RPC_FAILURE
    assert daemon.process.wait(10) == 0
    assert sorted(path.name for path in machine.pipe.iterdir()) == [
        "control",
        "control_lock",
        "control_privileged",
    ]


def test_a_quit_without_a_time_waits_for_the_clients(machine: Machine, daemon: Daemon) -> None:
    client = holding(machine, "step")
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(machine.ask, "quit")
        wait_until(lambda: "Cmd:quit" in daemon.log, "the daemon has heard it")
        assert machine.run_client().lines[0]["err"] == NOT_READY
        assert not asked.done()
        client.proceed()
        assert client.heard("end")["end"] == SUCCESS
        assert asked.result(PATIENCE_S).exit == 0
    assert daemon.process.wait(10) == 0


def test_a_gpu_serves_48_clients_and_refuses_the_next(machine: Machine, daemon: Daemon) -> None:
    clients = [
        machine.start_client("hold", environment={"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "10"})
        for _ in range(48)
    ]
    for client in clients:
        client.heard("ready", patience_s=30)
    refused = machine.run_client()
    assert (
        f'"fail": "{refused.lines[0]["fail"]}", "err": "{refused.lines[0]["err"]}"'
        in transcript(3, []).section("Q8")
    )
    assert len(machine.ask("ps").output.splitlines()) == 49
    clients[0].process.kill()
    wait_until(lambda: len(machine.mps_pids()) == 47, "one has left")
    wait_until(lambda: machine.run_client().process.returncode == 0, "there is room again")
