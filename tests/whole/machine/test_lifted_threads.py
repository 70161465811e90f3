"""A program that takes more threads than its share is reported, and no other: on a simulated H200, and with `--gpu` on
real GPUs of compute capability 9.0.

    pytest -n 0 -s --gpu tests/whole/machine/test_lifted_threads.py

prints the figures. The 100 honest contexts take most of its time.
"""

import shlex
import time
from collections.abc import Iterator

import pytest

from mpsd.model.node_status import ViolationStatus
from mpsd.model.policy import Response
from mpsd.model.violations import ViolationKind
from tests.whole.machine import hardware
from tests.whole.machine.hardware import AnyMachine
from tests.whole.machine.machine import Program, eventually
from tests.whole.machine.promises import is_kept_within

PROMISED_S = 1.0  # from the context until it is reported
SHARES = range(5, 105, 5)  # percent
EACH = 5  # contexts one after the other, each with other allocations
HELD_S = 0.6  # so that each is in several scans
ALLOCATED_MIB = (0, 32, 200, 390, 700)


@pytest.fixture(scope="module")
def here(request: pytest.FixtureRequest) -> Iterator[AnyMachine]:
    for machine in hardware.here(request, "H200"):
        machine.set_policy(canary="skip", exclusive_process=False, oversubscription={"thread_percent": 2000})
        machine.up()
        yield machine


def under(here: AnyMachine, percent: int, *command: str) -> Program:
    return here.run(f"--gpu-mem 2 --gpu-core {percent}", *command)


def violations(here: AnyMachine) -> tuple[ViolationStatus, ...]:
    found = here.node().violations
    assert found is not None
    assert not found.unjudged
    return found.last


def test_of_100_honest_contexts_of_all_sizes_none_is_reported(here: AnyMachine) -> None:
    each = [shlex.join([*here.cuda, f"alloc={mib}", f"hold={HELD_S}"]) for mib in ALLOCATED_MIB]
    programs = [under(here, percent, "sh", "-c", "; ".join(each)) for percent in SHARES]
    assert [program.exit_code(60) for program in programs] == [0] * len(SHARES)
    sms = [[line["sms"] for line in program.lines if "init_s" in line] for program in programs]
    assert [len(set(each)) for each in sms] == [1] * len(SHARES)
    assert sum(map(len, sms)) == len(SHARES) * EACH == 100
    assert violations(here) == ()


def test_a_program_that_takes_all_threads_is_reported_in_time(here: AnyMachine) -> None:
    def lift() -> float:
        program = under(here, 30, *here.cuda, "threads=100", "hold")
        program.heard("pid")
        made = time.time()
        found = reported(here, program)
        assert (found.action, found.gpu) == (Response.WARN, here.node().gpus[0].uuid)
        assert program.running
        program.kill()
        print(f"\nreported {found.at - made:.3f} s after the context was made")
        return found.at - made

    is_kept_within(PROMISED_S, lift)


def reported(here: AnyMachine, program: Program) -> ViolationStatus:
    def look() -> list[ViolationStatus]:
        kind = ViolationKind.THREADS_LIFTED
        return [one for one in violations(here) if (one.kind, one.pid) == (kind, program.pid)]

    return eventually(look, f"the threads of {program} are reported")[0]
