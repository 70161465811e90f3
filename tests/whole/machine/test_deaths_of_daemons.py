"""What the death of a control daemon or of its server costs, and whom."""

import os
import signal
from collections.abc import Iterator

import pytest

from mpsd.model.domain import State
from tests.whole.machine.conftest import serving_on
from tests.whole.machine.machine import Line, Machine, eventually

RPC_FAILURE = "806:CUDA_ERROR_MPS_RPC_FAILURE"
OUT_OF_MEMORY = "2:CUDA_ERROR_OUT_OF_MEMORY"


@pytest.fixture(scope="module")
def serving() -> Iterator[Machine]:
    """Two A30, where no death of a daemon counts as one of several in a row."""
    yield from serving_on("A30×2", restarts={"stable_after_s": 0.001})


def restarts(machine: Machine) -> tuple[int, int]:
    return machine.domain("gpu0").restarts, machine.domain("gpu1").restarts


def said_of(machine: Machine, daemon: int) -> list[Line]:
    """What the log says of the end of this daemon of gpu0."""
    downs = machine.part("up").logged("state", domain="gpu0", state="down")
    return [down for down in downs if f"(pid {daemon})" in down["reason"]]


def test_a_killed_daemon_costs_its_own_clients_and_is_replaced(served: Machine) -> None:
    hit, neighbour = served.client(20), served.client(20)
    assert (served.gpu_of(hit), served.gpu_of(neighbour)) == ("gpu0", "gpu1")
    daemon, before = served.daemon(), restarts(served)

    os.kill(daemon, signal.SIGKILL)

    assert hit.heard("broke") == RPC_FAILURE
    assert hit.exit_code() == 4
    served.new_daemon(daemon)
    assert restarts(served) == (before[0] + 1, before[1])
    after = served.client(20, "alloc=24000")
    assert served.gpu_of(after) == "gpu0"
    assert after.heard("rc") == OUT_OF_MEMORY
    assert after.heard("alloc_MiB") < 20 * 1024
    assert neighbour.running


def test_the_servers_limit_is_back_before_a_client_can_connect(served: Machine) -> None:
    """A client that asks for no limit of its own is held by the server's alone."""
    served.client(7)
    daemon = served.daemon()
    os.kill(daemon, signal.SIGKILL)
    client_directory = served.folder_of().client
    eventually(lambda: not (client_directory / "control").exists(), "clients are let out")
    eventually((client_directory / "control").exists, "clients are let in")

    lifted = {"CUDA_MPS_PIPE_DIRECTORY": str(client_directory), "MPSD_SIMULATION": str(served.simulation.folder)}
    early = served.start([served.program("sim-cuda"), "alloc=24000"], lifted)

    assert early.exit_code() in {0, 3}
    assert all(line.get("alloc_MiB", 0) < 7 * 1024 for line in early.lines), early
    served.new_daemon(daemon)
    assert said_of(served, daemon)


def test_a_crash_loop_is_reported_with_its_delays_and_ends_with_its_cause(machine: Machine) -> None:
    machine.up()
    machine.replace_control_program('echo "the licence has expired"; exit 1')
    os.kill(machine.daemon(), signal.SIGKILL)

    def backs_off() -> bool:
        domain = machine.domain()
        return domain.state is State.DOWN and "3 times in a row, the next start is in 2 s" in domain.reason

    eventually(backs_off, "the third death in a row is reported")
    assert 'ended with code 1; its last line: "the licence has expired"' in machine.domain().reason
    assert machine.domain().restarts == 3
    refused = machine.run("--gpu-mem 7", "true")
    assert refused.exit_code() == 1
    assert "gpu0 is down: the control daemon" in refused.errors

    machine.restore_control_program()

    machine.in_state(State.READY)
    machine.client(7)
