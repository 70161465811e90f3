"""How long a program has more than it was given: on the simulator, and with `--gpu` on real GPUs.

    pytest -n 0 -s --gpu tests/whole/machine/test_escape_times.py

prints the figures.
"""

import os
import shlex
import signal
import sys
from collections.abc import Callable
from ctypes.util import find_library
from dataclasses import dataclass
from statistics import median

import pytest

from mpsd.model.cuda_limit_parser import MEMORY_LIMIT, PIPE_DIRECTORY
from mpsd.model.violations import ViolationKind
from mpsd.platform.processes import identity_of
from tests.whole.machine import hardware, vulkan_client
from tests.whole.machine.hardware import (
    AnyMachine,
    SimulatedMachine,
    assert_within,
    cuda,
    seconds_over,
    used_mib,
)
from tests.whole.machine.machine import Program, eventually

here = pytest.fixture(hardware.here, scope="module")

GRANTED_GIB, TAKEN_MIB = 2, 4000
GRANTED_MIB, TOLERANCE_MIB = GRANTED_GIB * 1024, 32
CLIENTS_PER_GRANT = 2  # as shipped
# from the first byte too many until it is stopped, and beside MPS until the memory is back
PROMISED_S = 0.5
# for what it has queued, and then until the memory of a client of MPS is back
DRAIN_S, BACK_S = 0.3, 0.2
MANAGED_S, MANAGED_TRIES, MANAGED_OFF_MIB = 0.3 + DRAIN_S, 20, 2
ENDED = 128 + 9


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


@pytest.mark.parametrize("value", ["5=1G", "garbage"])
def test_who_lifts_his_limit_within_his_program(
    here: AnyMachine, neighbour: Program, value: str
) -> None:
    def escape() -> Program:
        return cuda(here, GRANTED_GIB, f"lift={value}", f"alloc={TAKEN_MIB}", "hold")

    way = f"{MEMORY_LIMIT}={value}, set by the program itself"
    _is_ended_soon(
        here, Escape(way, escape, GRANTED_MIB + TOLERANCE_MIB, ViolationKind.MEMORY_OVER_GRANT)
    )
    _computes_on(neighbour)


def test_who_takes_managed_memory_beyond_a_lifted_limit(
    here: AnyMachine, neighbour: Program
) -> None:
    """It is in no process's figure of NVML's."""

    def escape() -> Program:
        return cuda(here, GRANTED_GIB, "lift=garbage", f"managed={TAKEN_MIB}", "hold")

    managed = Escape(
        "managed memory", escape, GRANTED_MIB + TOLERANCE_MIB, ViolationKind.MEMORY_OVER_GRANT
    )
    if isinstance(here, SimulatedMachine):
        _is_ended_soon(here, managed)
    else:
        took_s = median(_contained(here, managed) for _ in range(MANAGED_TRIES))
        print(f"\nmanaged memory: median of {MANAGED_TRIES}: {took_s:.3f} s")
        assert_within(here, MANAGED_S, took_s)
    _computes_on(neighbour)


def test_managed_memory_within_its_limit_is_shown(here: AnyMachine, neighbour: Program) -> None:
    program = cuda(here, GRANTED_GIB, "managed=1000", "hold")
    program.heard("ready")

    def shown() -> bool:
        (client,) = [one for one in here.node().clients or () if one.pid == program.pid]
        return (
            client.used_mib is not None
            and abs(client.used_mib - used_mib(here, program.pid)) <= MANAGED_OFF_MIB
        )

    eventually(shown, "its status has the managed memory")
    assert used_mib(here, program.pid) > 1000
    assert program.running
    program.kill()
    _computes_on(neighbour)


def test_who_starts_a_program_without_its_limit(here: AnyMachine, neighbour: Program) -> None:
    changed = f"{MEMORY_LIMIT}=0=0"

    def escape() -> Program:
        return here.run(
            f"--gpu-mem {GRANTED_GIB}", "env", changed, *here.cuda, f"alloc={TAKEN_MIB}", "hold"
        )

    way = f"{changed} in its environment"
    _is_ended_soon(
        here, Escape(way, escape, GRANTED_MIB + TOLERANCE_MIB, ViolationKind.MEMORY_OVER_GRANT)
    )
    _computes_on(neighbour)


def test_who_takes_memory_through_a_graphics_interface(
    here: AnyMachine, neighbour: Program
) -> None:
    """NVML lists it among the processes that compute too. The simulator's are in
    test_watchdog.py."""
    if isinstance(here, SimulatedMachine) or not find_library("vulkan"):
        pytest.skip("needs --gpu, and libvulkan.so.1 with NVIDIA's driver for it")
    draws = here.run(
        f"--gpu-mem {GRANTED_GIB}", sys.executable, vulkan_client.__file__, str(TAKEN_MIB)
    )
    assert draws.exit_code() == ENDED, str(draws)
    _is_told_of(here, draws, ViolationKind.MEMORY_OVER_GRANT)
    _computes_on(neighbour)


def test_who_goes_beside_mps(here: AnyMachine, neighbour: Program) -> None:
    """Ended for its context, before it has taken anything."""
    changed = f"{PIPE_DIRECTORY}=/nowhere"

    def escape() -> Program:
        return here.run(f"--gpu-mem {GRANTED_GIB}", "env", changed, *here.cuda, "hold")

    _is_ended_soon(
        here, Escape(f"{changed} in its environment", escape, 0, ViolationKind.OUTSIDE_MPS)
    )
    _computes_on(neighbour)


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
        _computes_on(neighbour)
    finally:
        for pid in living():
            os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Escape:
    """way: in words. begin: starts the program. most_mib: what is too much. kind: what it is told
    of as."""

    way: str
    begin: Callable[[], Program]
    most_mib: int
    kind: ViolationKind


def _is_ended_soon(here: AnyMachine, escape: Escape) -> None:
    promised_s = (
        PROMISED_S if escape.kind == ViolationKind.OUTSIDE_MPS else PROMISED_S + DRAIN_S + BACK_S
    )
    assert_within(here, promised_s, _contained(here, escape))


def _contained(here: AnyMachine, escape: Escape) -> float:
    """Seconds from the first byte too many until the memory is back."""
    tenant = escape.begin()
    took_s = seconds_over(
        escape.most_mib, lambda: used_mib(here, tenant.pid), lambda: not tenant.running
    )
    print(f"\n{escape.way}: {took_s:.3f} s over {escape.most_mib} MiB")
    assert tenant.exit_code() == ENDED
    _is_told_of(here, tenant, escape.kind)
    return took_s


def _is_told_of(here: AnyMachine, tenant: Program, kind: ViolationKind) -> None:
    def told() -> bool:
        violations = here.node().violations
        assert violations is not None
        return any(
            (one.kind, one.pid) == (kind, tenant.pid) and one.outcome for one in violations.last
        )

    eventually(told, f"{kind} is told of {tenant}")


def _computes_on(neighbour: Program) -> None:
    said = len(neighbour.lines)
    eventually(lambda: len(neighbour.lines) > said + 1, f"more is heard of {neighbour}")
    launches = [line["launches"] for line in neighbour.lines[said - 1 :]]
    assert launches == sorted(set(launches)), "it computes on"
