"""How long a program has more than it was given: on the simulator, and with `--gpu` on real GPUs.

    pytest -n 0 -s --gpu tests/whole/machine/test_escape_times.py

prints the figures.
"""

import os
import shlex
import signal
import time
from collections.abc import Iterator

import pytest

from mpsd.model.cuda_limit_parser import MEMORY_LIMIT, PIPE_DIRECTORY
from mpsd.model.node_report import ViolationReport
from mpsd.model.policy import Response
from mpsd.model.violations import ViolationKind
from mpsd.platform.processes import identity_of
from tests.whole.machine import hardware
from tests.whole.machine.hardware import AnyMachine, assert_within, cuda, seconds_over, used_mib
from tests.whole.machine.machine import Program, eventually

GRANTED_GIB, TAKEN_MIB = 2, 4000
MOST_MIB = GRANTED_GIB * 1024 + 32  # with the tolerance as shipped
CLIENTS_PER_GRANT = 2  # as shipped
# from the first byte too many until it is stopped, and beside MPS until the memory is back
PROMISED_S = 0.5
# for what it has queued, and then until the memory of a client of MPS is back
DRAIN_S, BACK_S = 0.3, 0.2
REPORTED_S = 1.0  # threads, from the context on
ENDED = 128 + 9


@pytest.fixture(scope="module")
def here(request: pytest.FixtureRequest) -> Iterator[AnyMachine]:
    """One of a GPU whose contexts show their threads."""
    yield from hardware.here(request, "H200")


@pytest.fixture(scope="module")
def neighbour(here: AnyMachine) -> Program:
    """One who keeps to its grant and computes, on a machine where processes may run beside MPS."""
    here.set_policy(
        canary="skip",
        exclusive_process=False,
        graces={"command_s": 2, "start_s": 30, "end_drain_s": DRAIN_S},
    )
    here.up()
    program = cuda(here, 4, "alloc=1000", "work")
    program.heard("launches")
    return program


# What of its environment a program changes, and what it does then; managed memory is in no
# process's figure of NVML's.
WAYS = {
    "lifts its limit": ("", f"lift=garbage alloc={TAKEN_MIB}"),
    "takes managed memory": ("", f"lift=garbage managed={TAKEN_MIB}"),
    "starts another without its limit": (f"{MEMORY_LIMIT}=0=0", f"alloc={TAKEN_MIB}"),
}


@pytest.mark.parametrize("way", WAYS)
def test_who_takes_more_than_granted_is_ended(
    here: AnyMachine, neighbour: Program, way: str
) -> None:
    changed, actions = WAYS[way]
    tenant = started(here, changed, *actions.split())
    took_s = contained(here, tenant, MOST_MIB, ViolationKind.MEMORY_OVER_GRANT)
    assert_within(here, PROMISED_S + DRAIN_S + BACK_S, took_s)
    computes_on(neighbour)


def test_who_goes_beside_mps_is_ended_for_its_context(here: AnyMachine, neighbour: Program) -> None:
    tenant = started(here, f"{PIPE_DIRECTORY}=/nowhere")
    assert_within(here, PROMISED_S, contained(here, tenant, 0, ViolationKind.OUTSIDE_MPS))
    computes_on(neighbour)


def test_who_takes_all_threads_is_reported_and_goes_on(
    here: AnyMachine, neighbour: Program
) -> None:
    program = here.run("--gpu-mem 2 --gpu-core 30", *here.cuda, "threads=100", "hold")
    program.heard("pid")
    made = time.time()
    found = reported(here, program, ViolationKind.THREADS_LIFTED)
    assert found.action == Response.WARN
    assert program.running
    program.kill()
    took_s = found.at.timestamp() - made
    print(f"\nreported {took_s:.3f} s after the context was made")
    assert_within(here, REPORTED_S, took_s)
    computes_on(neighbour)


def test_a_grant_that_fills_the_gpu_with_programs_shuts_no_other_out(
    here: AnyMachine, neighbour: Program
) -> None:
    """Its newest are ended as soon as another grant comes, which then has the clients that it was
    promised."""
    most = here.clients - CLIENTS_PER_GRANT  # the neighbour's own are kept for it
    start = f"for n in $(seq {most}); do {shlex.join(here.cuda)} hold & done; wait"
    crowd = here.run("--gpu-mem 8 --gpu-core 10", "sh", "-c", start)

    def living() -> set[int]:
        return {pid for line in crowd.lines if (pid := line.get("ready")) and identity_of(pid)}

    try:
        eventually(lambda: len(living()) == most, "the GPU is full", within_s=120.0)
        comes = here.run("--gpu-mem 1 --gpu-core 10", *here.cuda, "hold")
        comes.heard("ready")
        eventually(
            lambda: len(living()) == most - CLIENTS_PER_GRANT,
            "those that took what was its own are ended",
        )
        assert comes.running
        computes_on(neighbour)
    finally:
        for pid in living():
            os.kill(pid, signal.SIGKILL)


def started(here: AnyMachine, changed: str, *actions: str) -> Program:
    """A client under a grant. changed: a variable that it has another value of; empty for none."""
    return here.run(
        f"--gpu-mem {GRANTED_GIB}", "env", *filter(None, [changed]), *here.cuda, *actions, "hold"
    )


def contained(here: AnyMachine, tenant: Program, most_mib: int, kind: ViolationKind) -> float:
    """Seconds from the first byte too many until the memory is back."""
    took_s = seconds_over(most_mib, lambda: used_mib(here, tenant.pid), lambda: not tenant.running)
    print(f"\n{took_s:.3f} s over {most_mib} MiB: {tenant}")
    assert tenant.exit_code() == ENDED
    reported(here, tenant, kind)
    return took_s


def reported(here: AnyMachine, tenant: Program, kind: ViolationKind) -> ViolationReport:
    """What is told of it, once its outcome is where there is one."""

    def look() -> list[ViolationReport]:
        violations = here.node().violations
        assert violations is not None
        own = [one for one in violations.last if (one.kind, one.pid) == (kind, tenant.pid)]
        return [one for one in own if one.outcome or one.action == Response.WARN]

    return eventually(look, f"{kind} is told of {tenant}")[0]


def computes_on(neighbour: Program) -> None:
    said = len(neighbour.lines)
    eventually(lambda: len(neighbour.lines) > said + 1, f"more is heard of {neighbour}")
    launches = [line["launches"] for line in neighbour.lines[said - 1 :]]
    assert launches == sorted(set(launches)), "it computes on"
