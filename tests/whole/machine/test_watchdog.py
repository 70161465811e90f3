"""Programs that take more than they were given are ended, soon and alone, on the simulator.

One machine for all of them, on which processes may run beside MPS, with a neighbour who keeps to its grant.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest

from mpsd.model.node_status import ViolationsStatus, ViolationStatus
from mpsd.model.policy import Response
from mpsd.model.violations import ViolationKind
from mpsd.simulator.card import GRAPHICS, MPS_SERVER, OUTSIDE_MPS, ContextClaim
from mpsd.simulator.gpus import MIB
from tests.whole.machine.hardware import seconds_over
from tests.whole.machine.machine import Machine, Program, eventually
from tests.whole.machine.promises import is_kept_within

LIMIT, PIPE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_PIPE_DIRECTORY"
PROMISED_S = 0.8  # from the first byte too many until the memory is back, 0.3 s of it for what was queued
GRANTED_MIB, TOLERANCE_MIB = 2048, 32
MOST_CLIENTS = 3
KILLED = 128 + signal.SIGKILL


class Watched:
    """The machine, while a test uses it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.up = machine.up()
        self.card = machine.card()
        self._neighbour = machine.client(4, "alloc=1000")
        self._kept_mib = self.used_mib(self._neighbour.pid)

    def shell(self, script: str) -> Program:
        """A shell script under a grant of 2 GiB."""
        return self.machine.run("--gpu-mem 2", "sh", "-c", script)

    def stranger(self, *actions: str) -> Program:
        """sim-cuda beside MPS, without a grant."""
        environment = {"MPSD_SIMULATION": str(self.machine.simulation.folder)}
        return self.machine.start([self.machine.program("sim-cuda"), *actions], environment)

    def used_mib(self, *pids: int) -> int:
        return sum(holding.all_bytes for holding in self.card.holdings() if holding.pid in pids) // MIB

    def others(self) -> set[int]:
        """Whoever is on the GPU beside the neighbour."""
        here = {holding.pid for holding in self.card.holdings() if holding.kind != MPS_SERVER}
        return here - {self._neighbour.pid}

    def seconds_over(self, program: Program, most_mib: int = GRANTED_MIB + TOLERANCE_MIB) -> float:
        """Of a program that is ended for it."""
        return seconds_over(most_mib, lambda: self.used_mib(program.pid), lambda: not program.running)

    def end_others(self) -> None:
        for pid in self.others():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        eventually(lambda: not self.others(), "nobody else is left")

    def set_violations(self, **violations: object) -> None:
        requests = {"clients_per_grant": MOST_CLIENTS}
        self.machine.set_policy(exclusive_process=False, requests=requests, violations=violations)

    @property
    def violations(self) -> ViolationsStatus:
        found = self.machine.node().violations
        assert found is not None
        return found

    def told(self, kind: ViolationKind, program: Program) -> ViolationStatus:
        """What was told of it, once its outcome is known where there is one."""

        def look() -> list[ViolationStatus]:
            found = [one for one in self.violations.last if (one.kind, one.pid) == (kind, program.pid)]
            known = [one for one in found if one.outcome and not one.outcome.startswith("stopped ")]
            return known or [one for one in found if one.action is Response.WARN]

        return eventually(look, f"{kind} is told of {program}")[0]

    def check_neighbour(self) -> None:
        assert self._neighbour.running
        assert self.used_mib(self._neighbour.pid) == self._kept_mib


@pytest.fixture(scope="module")
def shared() -> Iterator[Watched]:
    machine = Machine("A30")
    try:
        machine.set_policy(exclusive_process=False, requests={"clients_per_grant": MOST_CLIENTS})
        yield Watched(machine)
        machine.stop()
    finally:
        machine.destroy()


@pytest.fixture
def watched(shared: Watched) -> Iterator[Watched]:
    """At the end only the neighbour is left, with all that it had."""
    yield shared
    shared.end_others()
    shared.check_neighbour()


def test_a_program_that_lifts_its_limit_and_uses_it_is_ended_in_time(watched: Watched) -> None:
    def escape() -> float:
        program = watched.shell(f"{LIMIT}=garbage exec sim-cuda alloc=4000 hold")
        took_s = watched.seconds_over(program)
        assert program.exit_code() == KILLED
        told = watched.told(ViolationKind.MEMORY_OVER_GRANT, program)
        assert "MiB of gpu0 are in use, 2048 MiB are granted" in told.message
        assert told.outcome.startswith("ended, its memory back ")
        assert watched.up.logged("ended", kind="memory_over_grant", pid=program.pid)
        return took_s

    is_kept_within(PROMISED_S, escape)


def test_a_granted_program_beside_mps_is_ended_though_the_daemon_does_not_answer(watched: Watched) -> None:
    def escape() -> float:
        go = watched.machine.run_directory.parent / "go"
        go.unlink(missing_ok=True)
        wait = f"echo '{{\"granted\": true}}'; until test -e {go}; do sleep 0.02; done"
        program = watched.shell(f"{wait}; {PIPE}=/nowhere exec sim-cuda hold")
        program.heard("granted")  # nobody is once the daemon has failed to answer
        daemon = watched.machine.daemon()
        os.kill(daemon, signal.SIGSTOP)
        try:
            go.touch()
            took_s = watched.seconds_over(program, 0)
        finally:
            os.kill(daemon, signal.SIGCONT)
        assert program.exit_code() == KILLED
        assert "uses gpu0 beside MPS" in watched.told(ViolationKind.OUTSIDE_MPS, program).message
        watched.machine.until_ready()
        return took_s

    is_kept_within(PROMISED_S, escape)


def test_who_may_not_be_ended_is_told_of_and_told_of_again_once_he_is_ended(watched: Watched) -> None:
    watched.set_violations(in_no_pod={"action": "kill"})
    try:
        stranger = watched.machine.start(["sleep", "600"])
        shown = watched.card.claim(ContextClaim(stranger.pid, GRAPHICS, MIB))
        watched.card.claim(ContextClaim(stranger.pid, OUTSIDE_MPS, 100 * MIB))
        goes_on = f"pid {stranger.pid} (sleep) has no grant and uses gpu0, which mpsd shares; it runs beside MPS, "
        goes_on += "without limits; it continues: it shows something on a display, and such a process is never ended"
        eventually(lambda: watched.up.logged("violation", message=goes_on), "he is told of")
        assert stranger.running
        watched.card.release(shown, stranger.pid)
        assert stranger.exit_code() == KILLED
        ended = goes_on.rpartition("; ")[0] + "; it is ended"
        eventually(lambda: watched.up.logged("violation", message=ended), "he is told of again")
    finally:
        watched.set_violations()


def test_a_process_whose_first_thread_has_ended_is_not_hidden(watched: Watched) -> None:
    """/proc shows it as a zombie, and what its other threads hold is in use."""
    script = (
        "import ctypes, os, threading, time\n"
        "from mpsd.simulator.cuda_driver import CudaProcess\n"
        "cuda = CudaProcess(os.environ)\n"
        "cuda.create_context(0)\n"
        "def take():\n"
        "    time.sleep(0.3)\n"
        "    cuda.allocate(4000 * 2**20)\n"
        "    time.sleep(600)\n"
        "threading.Thread(target=take).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )

    def escape() -> float:
        program = watched.machine.run("--gpu-mem 2", "env", f"{LIMIT}=garbage", sys.executable, "-c", script)
        took_s = watched.seconds_over(program)
        assert program.exit_code() == KILLED
        return took_s

    is_kept_within(PROMISED_S, escape)
