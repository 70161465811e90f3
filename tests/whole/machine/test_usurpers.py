"""A process that takes the GPU for itself while its domain has no server, in compute mode EXCLUSIVE_PROCESS."""

import signal
import time

import pytest

from mpsd.model.domain import State
from tests.whole.machine.machine import Machine, Program, Service, eventually
from tests.whole.machine.promises import is_kept_within

BACK_S = 2.5  # from the usurper's end to a domain that serves; who only looked again would do so every 5 s


@pytest.fixture
def control(machine: Machine) -> Service:
    machine.set_policy(canary="skip")
    control, _agent = machine.apart()
    return control


def usurper(machine: Machine, control: Service, *victims: int) -> Program:
    """A process beside MPS that came between the end of these and the next server."""
    control.send(signal.SIGSTOP)
    for victim in victims:
        machine.kill(victim)
    beside = {**machine.simulation.environment, "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}
    # It may come before the server's death is known.
    for _ in range(100):
        took = machine.start([machine.program("sim-cuda"), "hold"], beside)
        eventually(lambda took=took: took.lines or not took.running, "it has tried")  # type: ignore[misc]
        if "fail" not in took.lines[0]:
            break
    took.heard("ready")
    control.send(signal.SIGCONT)
    return took


def serves_after_the_end(machine: Machine, took: Program) -> float:
    """How many seconds after."""
    took.kill()
    ended = time.monotonic()
    eventually(lambda: machine.record().state is State.READY, "the domain serves")
    return time.monotonic() - ended


def test_a_usurper_is_named_while_nothing_starts_and_its_end_lets_the_domain_serve_at_once(
    machine: Machine, control: Service
) -> None:
    took = usurper(machine, control, machine.recorded_daemon())

    starting = machine.in_state(State.STARTING)
    eventually(lambda: f"while pid {took.pid} uses " in machine.record().reason, "the usurper is named")
    assert starting.restarts == 1
    refused = machine.run("--gpu-mem 4", "true")
    assert refused.exit_code() == 1
    assert f"gpu0 is starting: no MPS server can start while pid {took.pid} uses " in refused.errors

    usurpers = [took]

    def back() -> float:
        took_s = serves_after_the_end(machine, usurpers[-1])
        assert machine.record().reason == ""
        machine.client(4).kill()
        assert machine.record().restarts_total == len(usurpers)
        if took_s >= BACK_S:
            usurpers.append(usurper(machine, control, machine.recorded_daemon()))
            machine.in_state(State.STARTING)
        return took_s

    is_kept_within(BACK_S, back)
    named = [line for line in control.logged("no server") if f"pid {took.pid} uses " in line["reason"]]
    assert len(named) == 1  # whoever tried before it and was too late may have been seen, too
