"""Programs that take more than they were given are ended, soon and alone.

On one machine, where processes may run beside MPS, with a neighbour who keeps to its grant.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest

from mpsd.model.node_report import ViolationReport, ViolationsReport
from mpsd.model.policy import Response
from mpsd.model.violations import ViolationKind
from mpsd.simulator.card import GRAPHICS, MPS_SERVER, OUTSIDE_MPS, ContextClaim
from mpsd.simulator.gpus import MIB
from tests.whole.machine.conftest import on_machine
from tests.whole.machine.machine import Machine, Program, eventually

LIMIT, PIPE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_PIPE_DIRECTORY"
MOST_CLIENTS = 3
KILLED = 128 + signal.SIGKILL


class Watched:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.up = machine.up()
        self.card = machine.card()
        self._neighbour = machine.client(4, "alloc=1000")
        self._kept_mib = self.used_mib(self._neighbour.pid)

    def shell(self, script: str) -> Program:
        """A shell script under a grant of 2 GiB."""
        return self.machine.run("--gpu-mem 2", "sh", "-c", script)

    def used_mib(self, *pids: int) -> int:
        return (
            sum(holding.all_bytes for holding in self.card.holdings() if holding.pid in pids) // MIB
        )

    def others(self) -> set[int]:
        here = {holding.pid for holding in self.card.holdings() if holding.kind != MPS_SERVER}
        return here - {self._neighbour.pid}

    def end_others(self) -> None:
        for pid in self.others():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        eventually(lambda: not self.others(), "nobody else is left")

    def set_violations(self, **violations: object) -> None:
        requests = {"clients_per_grant": MOST_CLIENTS}
        self.machine.set_policy(exclusive_process=False, requests=requests, violations=violations)

    @property
    def violations(self) -> ViolationsReport:
        found = self.machine.node().violations
        assert found is not None
        return found

    def told(self, kind: ViolationKind, program: Program) -> ViolationReport:
        """What was told of it, once its outcome is known where there is one."""

        def look() -> list[ViolationReport]:
            found = [
                one for one in self.violations.last if (one.kind, one.pid) == (kind, program.pid)
            ]
            known = [one for one in found if one.outcome and not one.outcome.startswith("stopped ")]
            return known or [one for one in found if one.action == Response.WARN]

        return eventually(look, f"{kind} is told of {program}")[0]

    def check_neighbour(self) -> None:
        assert self._neighbour.running
        assert self.used_mib(self._neighbour.pid) == self._kept_mib


@pytest.fixture(scope="module")
def shared() -> Iterator[Watched]:
    for machine in on_machine("H200"):  # whose contexts show their threads
        machine.set_policy(exclusive_process=False, requests={"clients_per_grant": MOST_CLIENTS})
        yield Watched(machine)


@pytest.fixture
def watched(shared: Watched) -> Iterator[Watched]:
    """At the end only the neighbour is left, with all that it had."""
    yield shared
    shared.end_others()
    shared.check_neighbour()


# What of its environment a program changes, and what it does then; managed memory is in no
# process's figure of NVML's.
WAYS = {
    "lifts its limit": ("", "lift=garbage alloc=4000"),
    "takes managed memory": ("", "lift=garbage managed=4000"),
    "starts another without its limit": (f"{LIMIT}=0=0", "alloc=4000"),
}


@pytest.mark.parametrize("way", WAYS)
def test_who_takes_more_than_granted_is_ended(watched: Watched, way: str) -> None:
    changed, actions = WAYS[way]
    program = watched.shell(f"{changed} exec sim-cuda {actions} hold")
    assert program.exit_code() == KILLED
    watched.told(ViolationKind.MEMORY_OVER_GRANT, program)


def test_who_takes_all_threads_is_reported_and_goes_on(watched: Watched) -> None:
    asked = "--gpu-mem 2 --gpu-core 30"
    program = watched.machine.run(asked, "sim-cuda", "threads=100", "hold")
    program.heard("pid")
    assert watched.told(ViolationKind.THREADS_LIFTED, program).action == Response.WARN
    assert program.running


def test_a_granted_program_beside_mps_is_ended_though_the_daemon_does_not_answer(
    watched: Watched,
) -> None:
    go = watched.machine.run_directory.parent / "go"
    wait = f"echo '{{\"granted\": true}}'; until test -e {go}; do sleep 0.02; done"
    program = watched.shell(f"{wait}; {PIPE}=/nowhere exec sim-cuda hold")
    program.heard("granted")  # nobody is once the daemon has failed to answer
    daemon = watched.machine.daemon()
    os.kill(daemon, signal.SIGSTOP)
    try:
        go.touch()
        assert program.exit_code() == KILLED
    finally:
        os.kill(daemon, signal.SIGCONT)
    assert "uses gpu0 beside MPS" in watched.told(ViolationKind.OUTSIDE_MPS, program).message
    watched.machine.until_ready()


def test_who_may_not_be_ended_is_told_of_and_told_of_again_once_he_is_ended(
    watched: Watched,
) -> None:
    watched.set_violations(in_no_pod={"action": "kill"})
    try:
        foreign = watched.machine.start(["sleep", "600"])
        shown = watched.card.claim(ContextClaim(foreign.pid, GRAPHICS, MIB))
        watched.card.claim(ContextClaim(foreign.pid, OUTSIDE_MPS, 100 * MIB))
        goes_on = (
            f"pid {foreign.pid} (sleep) has no grant and uses gpu0, which mpsd shares; it runs"
            " beside MPS, "
        )
        goes_on += (
            "without limits; it continues: it shows something on a display, and such a process is"
            " never ended"
        )
        eventually(lambda: watched.up.logged("violation", message=goes_on), "he is told of")
        assert foreign.running
        watched.card.release(shown, foreign.pid)
        assert foreign.exit_code() == KILLED
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

    program = watched.machine.run(
        "--gpu-mem 2", "env", f"{LIMIT}=garbage", sys.executable, "-c", script
    )
    assert program.exit_code() == KILLED
