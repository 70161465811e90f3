"""Faults, terminations and deaths, as transcripts have them and where no card was asked: what both
have is in tests/contract."""

import re
import signal
from concurrent.futures import ThreadPoolExecutor

from tests.contract.processes import Client, eventually
from tests.contract.results import NOT_READY, SUCCESS
from tests.contract.world import Daemon, World
from tests.simulator.transcripts import transcript


def test_the_log_of_a_fault_has_the_real_one_s_lines_and_names_an_innocent(daemon: Daemon) -> None:
    innocent = daemon.ready_client("hold")
    culprit = daemon.client("fault", "linger")
    culprit.next_line("lingering")
    innocent.finished()
    daemon.client().finished()
    culprit.kill()
    eventually(lambda: f"Client process {culprit.pid} disconnected" in daemon.log_since(0))
    said = daemon.log_since(0)
    theirs = transcript(4, "R2").partition("encountered a fatal GPU error")
    expected = set(map(shape, ("x " + theirs[1] + theirs[2]).splitlines()[1:-1]))
    assert {line for line in expected if " Server " in line} <= set(map(shape, said.splitlines()))
    assert f"Client {{PID: {innocent.pid}, Context: 1}} encountered a fatal GPU error." in said


def shape(line: str) -> str:
    """A log line without its time and numbers."""
    return re.sub(r" +", " ", re.sub(r"\d+", "N", line.partition(" ")[2].partition(" ")[2])).strip()


def computing(client: Client) -> Client:
    """Once it has kernels of a second on the GPU."""
    client.next_line("launches")
    return client


def test_those_whom_a_death_hit_harm_nobody_by_theirs(daemon: Daemon) -> None:
    victim, hit = [computing(daemon.client("kernel=1000", "work")) for _client in range(2)]
    hit.send(signal.SIGSTOP)
    victim.kill()
    eventually(lambda: daemon.status == "FAULT")
    hit.kill()
    eventually(lambda: daemon.status == "ACTIVE")
    assert daemon.client().finished().lines[-1] == {"end": SUCCESS}


def test_a_death_in_mid_kernel_beside_mps_harms_nobody(world: World, daemon: Daemon) -> None:
    neighbour = daemon.ready_client("hold")
    computing(world.client("kernel=1000", "work")).close()
    neighbour.terminate()
    assert neighbour.next_line("end")["end"] == SUCCESS
    assert daemon.client().finished().lines[-1] == {"end": SUCCESS}


def test_a_client_of_a_daemon_without_its_gpu_has_no_device(world: World, daemon: Daemon) -> None:
    client = daemon.client(environment={"CUDA_VISIBLE_DEVICES": world.gpus[1].uuid})
    assert client.exit_code() == 3
    failed = client.lines[0]
    assert f'"{failed["fail"]}", "err": "{failed["err"]}"' in transcript(3, "Q9")


def test_a_quit_without_a_time_waits_for_the_clients(daemon: Daemon) -> None:
    client = daemon.ready_client("step")
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(daemon.command, "quit")
        eventually(lambda: "Cmd:quit" in daemon.log_since(0))
        assert daemon.client().finished().lines[0]["err"] == NOT_READY
        assert not asked.done()
        client.go_on()
        assert client.next_line("end")["end"] == SUCCESS
        assert asked.result().exit_code == 0
    assert daemon.process.wait(10) == 0
