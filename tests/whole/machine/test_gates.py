"""The gate of a domain: there while it serves, and whoever is left removes it when that is over."""

import os
import signal

import pytest

from mpsd.model.domain import State
from mpsd.platform import run_directory
from tests.whole.machine.machine import Machine, Program, eventually

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")


GPUS = "A30×2"


def is_open(machine: Machine, name: str = "gpu0") -> bool:
    return machine.folder_of(name).gate.exists()


def until_open(machine: Machine, name: str = "gpu0") -> None:
    eventually(lambda: is_open(machine, name), f"the gate of {name} is open")


def test_it_closes_for_a_fault_and_opens_after_it(served: Machine) -> None:
    lingers = served.run("--gpu-mem 2", "sim-cuda", "fault", "linger")
    lingers.heard("lingering")
    faulty = served.gpu_of(lingers)
    served.in_state(State.FAULT, faulty)
    assert not is_open(served, faulty)
    until_open(served, "gpu1" if faulty == "gpu0" else "gpu0")
    lingers.kill()
    served.in_state(State.READY, faulty)
    until_open(served, faulty)


def test_a_killed_mpsd_leaves_it_open_and_the_next_never_closes_it(served: Machine) -> None:
    until_open(served)
    served.part("up").kill()
    before = served.folder_of().gate.stat().st_ino

    served.up()

    assert served.folder_of().gate.stat().st_ino == before


def test_a_gate_is_closed_even_where_mpsd_cannot_start(served: Machine) -> None:
    until_open(served)
    served.part("up").kill()
    served.kill(served.recorded_daemon())
    served.write_policy("version: v2")
    eventually(lambda: run_directory.holder(served.run_directory) is None, "nobody holds it")
    service = served.service("control")
    assert service.exit_code() != 0
    assert not is_open(served)
    served.set_policy()
    served.up()


def test_without_control_the_agent_closes_the_gate_of_a_daemon_that_dies(pair: Machine) -> None:
    control, agent = pair.apart()
    eventually(lambda: is_open(pair, "gpu0") and is_open(pair, "gpu1"), "both gates are open")
    control.kill()

    pair.kill(pair.recorded_daemon("gpu1"))

    eventually(lambda: not is_open(pair, "gpu1"), "its gate is closed")
    assert is_open(pair, "gpu0")
    eventually(lambda: agent.logged("gate closed", domain="gpu1"), "it says so")
    pair.service("control")
    pair.until_ready()


def test_while_the_agent_is_frozen_nothing_starts_and_everything_goes_on(pair: Machine) -> None:
    _control, agent = pair.apart()
    program = pair.client(2)
    eventually(lambda: is_open(pair, "gpu0") and is_open(pair, "gpu1"), "both gates are open")

    agent.send(signal.SIGSTOP)

    eventually(lambda: not is_open(pair, "gpu0") and not is_open(pair, "gpu1"), "both are closed")
    assert pair.record("gpu0").unwatched
    assert pair.record("gpu0").state == State.READY
    agent.send(signal.SIGCONT)
    eventually(lambda: is_open(pair, "gpu0") and is_open(pair, "gpu1"), "both are open again")
    assert not pair.record("gpu0").unwatched
    assert program.running


def test_an_agent_that_has_gone_for_good_leaves_no_gate_open(pair: Machine) -> None:
    _control, agent = pair.apart()
    eventually(lambda: is_open(pair, "gpu0"), "its gate is open")
    agent.kill()
    eventually(lambda: not is_open(pair, "gpu0") and not is_open(pair, "gpu1"), "both are closed")
    pair.service("agent")
    eventually(lambda: is_open(pair, "gpu0") and is_open(pair, "gpu1"), "both are open again")


def test_it_stays_closed_until_an_agent_has_said_who_holds_what(machine: Machine) -> None:
    """After a reboot a container would else start under the limit of a GPU that nobody holds."""
    machine.service("control")
    eventually(
        lambda: machine.folder_of().record.exists() and machine.record().state == State.READY,
        "it is ready",
    )
    assert not is_open(machine)
    machine.service("agent")
    eventually(lambda: is_open(machine), "the gate is open")


# -- after the last client was killed


def computes(machine: Machine) -> Program:
    program = machine.run("--gpu-mem 2", "sim-cuda", "kernel=100", "work")
    machine.until_listed(program.pid)
    program.heard("launches")
    return program


def test_after_the_last_client_was_killed_in_mid_kernel_the_next_gets_its_context(
    machine: Machine,
) -> None:
    service = machine.up()
    for times in range(1, 4):
        until_open(machine)
        computes(machine).kill()

        after = machine.run("--gpu-mem 2", "sim-cuda")

        assert after.exit_code() == 0, after
        failed = ["719:CUDA_ERROR_LAUNCH_FAILED at ctx"]
        made = service.logged("first context made")
        # one that finds nothing wrong may follow: its client was killed before it was listed
        assert [line["refused"] for line in made if line["refused"]] == [failed] * times
