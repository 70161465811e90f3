"""How soon a fault is seen, and how soon the GPU serves again: on the simulator, and with `--gpu`
on real GPUs.

    pytest -n 0 -s --gpu tests/whole/machine/test_fault_times.py

prints the figures.
"""

import time
from dataclasses import dataclass

import pytest

from mpsd.model.domain import State
from tests.whole.machine import hardware
from tests.whole.machine.hardware import AnyMachine, assert_within, cuda
from tests.whole.machine.machine import eventually

here = pytest.fixture(hardware.here)

ILLEGAL_ADDRESS = "700:CUDA_ERROR_ILLEGAL_ADDRESS"
KILLED = 128 + 9
GRACE_S = 1.0
SEEN_S = HEALED_S = 0.5


@dataclass(frozen=True, slots=True)
class Healed:
    """Seconds since the fault."""

    seen_s: float
    ready_s: float


def test_a_fault_is_seen_at_once_and_the_gpu_serves_again_right_after_the_grace(
    here: AnyMachine,
) -> None:
    graces = {"command_s": 2, "start_s": 30, "fault_grace_s": GRACE_S}
    here.set_policy(canary="skip", graces=graces)
    _control, _agent = here.apart()

    healed = _faulted(here)
    assert_within(here, SEEN_S, healed.seen_s)
    assert_within(here, GRACE_S + HEALED_S, healed.ready_s)


def _faulted(here: AnyMachine) -> Healed:
    gone_at_once = cuda(here, 2, "hold")
    gone_at_once.heard("ready")
    bystander = cuda(here, 2, "linger")
    bystander.heard("lingering")
    culprit = cuda(here, 2, "fault", "linger")
    assert culprit.heard("bad") == ILLEGAL_ADDRESS
    began = time.time()

    eventually(lambda: here.record().state == State.FAULT, "the fault is seen")

    seen_s = time.time() - began
    *_earlier, fault = here.record().faults
    assert fault.pids == {program.pid for program in (gone_at_once, bystander, culprit)}
    assert fault.unidentified == ()
    assert (bystander.exit_code(), culprit.exit_code()) == (KILLED, KILLED)
    eventually(lambda: here.record().state == State.READY, "the domain serves")
    ready_s = time.time() - began
    after = cuda(here, 2, "hold")
    after.heard("ready")
    *_earlier, fault = here.record().faults
    assert fault.healed_at is not None
    assert {hit.process.pid for hit in fault.hit if hit.ended_at} == {bystander.pid, culprit.pid}
    healed_s = fault.healed_at - began
    print(
        f"\nfault seen after {seen_s:.3f} s; grace {GRACE_S:g} s; server ACTIVE again after"
        f" {healed_s:.3f} s, domain ready after {ready_s:.3f} s, next client's context"
        f" {time.time() - began:.3f} s after the fault"
    )
    after.kill()
    return Healed(seen_s, ready_s)
