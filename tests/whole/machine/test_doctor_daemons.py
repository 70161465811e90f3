"""`mpsd doctor` where daemons do not run as they should: the first line of its answer says why, and
what to do."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.model.domain import State
from mpsd.simulator.card import Quirk
from tests.whole.machine.asking_doctor import first_line, is_first_line
from tests.whole.machine.asking_doctor import untried as untried
from tests.whole.machine.conftest import serving_on
from tests.whole.machine.machine import CONTROL, Machine, eventually


@pytest.fixture(scope="module")
def serving() -> Iterator[Machine]:
    """One A30 where nobody who lingers after a fault is ended soon."""
    yield from serving_on("A30", graces={"fault_grace_s": 60})


def test_another_control_daemon(served: Machine, tmp_path: Path) -> None:
    """NVIDIA/k8s-device-plugin#762: one was started by hand, and "Failed to send command to MPS
    daemon"."""
    pipe = tmp_path / "pipe"
    pipe.mkdir()
    there = {
        **served.simulation.environment,
        "CUDA_MPS_PIPE_DIRECTORY": str(pipe),
        "CUDA_MPS_LOG_DIRECTORY": str(pipe),
    }
    other = served.start([served.program(CONTROL), "-f"], there)
    eventually((pipe / "control").exists, "it listens")
    expected = (
        f"another control daemon (pid {other.pid} in {pipe}) runs on this machine; mpsd did not"
        " start it; stop"
    )
    assert first_line(served).startswith(expected)
    other.kill()


def test_a_daemon_that_cannot_stay_up(served: Machine) -> None:
    """NVIDIA/k8s-device-plugin#1085: the daemon does not start, and nobody says why."""
    served.replace_control_program("echo cannot open the driver; exit 1")
    restarts = served.record().restarts_total
    served.kill(served.daemon())
    eventually(lambda: served.record().restarts_total > restarts + 1, "it was tried again")
    eventually(lambda: is_first_line(served, "gpu0 is down: "), "it says so")
    served.restore_control_program()
    served.in_state(State.READY)


def test_a_server_that_ends_as_soon_as_it_is_started(machine: Machine) -> None:
    """NVIDIA/k8s-device-plugin#1094, #1614: "Server encountered a fatal exception. Shutting down",
    for ever."""
    real = machine.program(CONTROL).with_name("real")
    ends = 'case "$asked" in *start_server*) echo "Server exited with status 1"; exit 1;; esac'
    machine.replace_control_program(
        f'[ $# -gt 0 ] && exec {real} "$@"\nasked=$(cat)\n{ends}\necho "$asked" | exec {real}'
    )
    machine.service("up")
    # Between two daemons it is down, and then starts with nothing known against it for a moment.
    eventually(lambda: is_first_line(machine, "gpu0 is starting: "), "it is named first")
    machine.restore_control_program()


def test_an_agent_without_its_control_daemon(machine: Machine) -> None:
    """NVIDIA/k8s-device-plugin#982: one DaemonSet takes the other's pods, so MPS never starts."""
    machine.service("agent")
    eventually((machine.run_directory / "mpsd.sock").exists, "it answers")
    line = first_line(machine)
    machine.service("control")
    machine.until_ready()
    assert line == "neither mpsd nor a daemon of mpsd runs here; start it with `mpsd up`"


def test_a_daemon_on_the_host_before_ours(machine: Machine, tmp_path: Path) -> None:
    """bottlerocket-os/bottlerocket#4673: the host's own daemon has the GPU, and ours cannot
    serve."""
    there = {
        **machine.simulation.environment,
        "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path),
        "CUDA_MPS_LOG_DIRECTORY": str(tmp_path),
    }
    other = machine.start([machine.program(CONTROL), "-d"], there)
    eventually((tmp_path / "control").exists, "it listens")
    line = first_line(machine)
    quitting = machine.start(["sh", "-c", f"echo quit | {machine.program(CONTROL)}"], there)
    assert (other.exit_code(), quitting.exit_code()) == (0, 0)
    assert line.startswith("another control daemon (pid ")
    assert (
        f" in {tmp_path}) runs on this machine; mpsd did not start it; stop it (echo quit | "
        in line
    )


def test_a_daemon_that_is_wedged(served: Machine) -> None:
    """NVIDIA/k8s-device-plugin#679: every program hangs, and a health check passed once."""
    daemon = served.daemon()
    os.kill(daemon, signal.SIGSTOP)
    served.in_state(State.WEDGED)
    assert first_line(served).startswith(f"gpu0 is wedged: pid {daemon} was stopped by a signal")
    os.kill(daemon, signal.SIGCONT)
    served.in_state(State.READY)


def test_a_fault(served: Machine) -> None:
    client = served.run("--gpu-mem 4", "sim-cuda", "fault", "linger")
    served.in_state(State.FAULT)
    assert first_line(served).startswith("gpu0 is in fault: ")
    client.kill()
    served.in_state(State.READY)


def test_a_canary_that_failed(untried: Machine) -> None:
    """NVIDIA/k8s-device-plugin#764: memory is not limited, and nobody looked."""
    untried.card().quirks = Quirk.IGNORES_MEMORY_LIMITS
    untried.service("up")
    eventually(
        lambda: untried.folder_of().record.exists() and untried.record().state == State.REFUSED,
        "it is refused",
    )
    assert first_line(untried).startswith("gpu0 is refused: the canary")


def test_an_agent_that_does_not_run(machine: Machine) -> None:
    control, agent = machine.apart()
    agent.kill()
    expected = (
        f"mpsd does not run here as a whole: pid {control.pid} holds its daemons, and no agent"
        " answers on "
    )
    assert first_line(machine).startswith(expected)
    machine.service("agent")
    machine.until_ready()


def test_daemons_that_nobody_looks_after(served: Machine) -> None:
    served.part("up").kill()
    expected = (
        "neither `mpsd up` nor `mpsd control` runs: nothing supervises the daemons of gpu0; start"
        " it again: "
    )
    assert first_line(served).startswith(expected)
    served.up()
