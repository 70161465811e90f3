"""The wall clock is set while mpsd waits for something, or the machine sleeps: it waits as long."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.model.domain import State
from mpsd.model.times import DAY_S, HOUR_S
from tests.whole.machine.conftest import as_before, on_machine
from tests.whole.machine.machine import Machine, Program, eventually
from tests.whole.machine.test_faults import KILLED, fault_of, healed, lingers
from tests.world.set_clocks import SetClocks

SHORT_S, HASTY_S, LONG_S = 2.0, 5.0, 1000.0


class SetMachine(SetClocks):
    """A machine of two GPUs on which `mpsd up` runs by clocks that a test can set."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        super().__init__(folder)
        self.machine = machine
        self.limits(SHORT_S)
        machine.service("up", self.environment)
        machine.until_ready()

    def sleep(self) -> None:
        """The machine, for an hour: time.monotonic stands still meanwhile."""
        self.set(HOUR_S, HOUR_S)

    def limits(self, limit_s: float) -> None:
        graces = {"command_s": 1, "fault_grace_s": limit_s, "wedged_limit_s": limit_s}
        self.machine.set_policy(canary="skip", graces=graces, restarts={"first_s": 0.1})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SetMachine]:
    for machine in on_machine("A30×2"):
        yield SetMachine(machine, tmp_path_factory.mktemp("site"))


@pytest.fixture
def clocks(made: SetMachine) -> Iterator[SetMachine]:
    yield made
    made.set()
    made.limits(SHORT_S)
    as_before(made.machine)


each_way = pytest.mark.parametrize("ahead_s", [-2 * DAY_S, -HOUR_S, HOUR_S, 2 * DAY_S])


def faulty(machine: Machine) -> tuple[Program, str]:
    """A program that lingers after its fault, and its domain, which knows of it."""
    known = {name: machine.record(name).faults_total for name in ("gpu0", "gpu1")}
    program = lingers(machine, faulting=True)
    name = machine.gpu_of(program)
    fault_of(machine, name, known[name])
    return program, name


@each_way
def test_those_who_linger_after_a_fault_are_ended_after_its_grace(
    clocks: SetMachine, ahead_s: float
) -> None:
    program, name = faulty(clocks.machine)
    clocks.set(ahead_s)
    assert program.exit_code() == KILLED
    healed(clocks.machine, name)
    clocks.machine.in_state(State.READY, name)


@each_way
def test_a_wedged_daemon_is_replaced_after_its_limit(clocks: SetMachine, ahead_s: float) -> None:
    machine = clocks.machine
    daemon = machine.recorded_daemon()
    os.kill(daemon, signal.SIGSTOP)
    machine.in_state(State.WEDGED)
    clocks.set(ahead_s)
    eventually(lambda: (now := machine.record().daemon) and now.pid != daemon, "it is replaced")
    machine.in_state(State.READY)


def test_a_daemon_that_answers_after_the_machine_has_slept_is_not_replaced(
    clocks: SetMachine,
) -> None:
    machine = clocks.machine
    clocks.limits(LONG_S)
    daemon = machine.recorded_daemon()
    os.kill(daemon, signal.SIGSTOP)
    machine.in_state(State.WEDGED)
    os.kill(daemon, signal.SIGCONT)
    clocks.sleep()
    machine.in_state(State.READY)
    assert machine.recorded_daemon() == daemon


@each_way
def test_a_request_waits_for_as_long_as_it_asked(clocks: SetMachine, ahead_s: float) -> None:
    machine = clocks.machine
    holders = [machine.client(20), machine.client(20)]
    patient = machine.run(f"--gpu-mem 20 --wait --timeout {LONG_S:g}", "true")
    eventually(lambda: machine.queue == [patient.pid], "it waits")
    hasty = machine.run(f"--gpu-mem 20 --wait --timeout {HASTY_S:g}", "true")
    eventually(lambda: machine.queue == [patient.pid, hasty.pid], "it waits too")
    clocks.set(ahead_s)
    assert hasty.exit_code() != 0
    assert machine.queue == [patient.pid]
    holders[0].kill()
    assert patient.exit_code() == 0


@each_way
def test_deaths_in_a_row_are_counted_as_such(clocks: SetMachine, ahead_s: float) -> None:
    machine = clocks.machine

    def dies() -> int:
        before = machine.record()
        assert before.daemon
        os.kill(before.daemon.pid, signal.SIGKILL)
        eventually(lambda: machine.record().restarts_total > before.restarts_total, "it is counted")
        eventually(lambda: machine.record().daemon, "another is started")
        machine.in_state(State.READY)
        return machine.record().restarts

    first = dies()
    clocks.set(ahead_s)
    assert dies() == first + 1


def test_what_was_to_end_while_the_machine_slept_ends_when_it_wakes(clocks: SetMachine) -> None:
    machine = clocks.machine
    clocks.limits(LONG_S)
    program, name = faulty(machine)
    other = next(iter({"gpu0", "gpu1"} - {name}))
    holder = machine.client(20)
    assert machine.gpu_of(holder) == other
    waits = machine.run(f"--gpu-mem 20 --wait --timeout {LONG_S:g}", "true")
    eventually(lambda: machine.queue == [waits.pid], "it waits")
    clocks.sleep()
    assert program.exit_code() == KILLED
    assert waits.exit_code() != 0
    assert holder.running
    healed(machine, name)
    machine.in_state(State.READY, name)
