"""Faults, terminations and deaths, as transcripts have them and where no card was asked: what both
have is in tests/contract."""

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tests.simulator.machine import PATIENCE_S, Client, Daemon, Machine, wait_until
from tests.simulator.transcripts import transcript

NOT_READY = "807:CUDA_ERROR_MPS_SERVER_NOT_READY"
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
    theirs = transcript(4, "R2").partition("encountered a fatal GPU error")
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


def test_terminating_no_client_is_answered_as_it_was(machine: Machine, daemon: Daemon) -> None:
    answer = machine.ask(f"terminate_client {machine.start_server()} 999999")
    assert f"{answer.output}  [rc={answer.exit}]" in transcript(2, "P4")


def computing(machine: Machine, *chosen: str, **options: object) -> Client:
    client = machine.start_client(*chosen, "work", **options)  # type: ignore[arg-type]
    client.heard("launches")
    return client


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


def test_a_client_of_a_daemon_without_its_gpu_has_no_device(
    pair: Machine, flags: tuple[str, ...]
) -> None:
    pair.start_daemon(*flags, environment={"CUDA_VISIBLE_DEVICES": pair.uuids[0]})
    client = pair.run_client(environment={"CUDA_VISIBLE_DEVICES": pair.uuids[1]})
    assert client.process.returncode == 3
    assert f'"{client.lines[0]["fail"]}", "err": "{client.lines[0]["err"]}"' in transcript(3, "Q9")


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
