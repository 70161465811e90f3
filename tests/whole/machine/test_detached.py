"""Programs that detach from `mpsd run` are held to its grant: as root, and where cgroups may be
made."""

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from mpsd.model.cuda_limit_parser import MEMORY_LIMIT
from mpsd.model.violations import ViolationKind
from mpsd.platform.containers import ProgramCgroups
from mpsd.platform.processes import identity_of, parent_of
from tests.whole.machine.machine import Machine, Program, eventually

pytestmark = pytest.mark.skipif(bool(ProgramCgroups().why_not), reason=ProgramCgroups().why_not)

GRANTED_GIB, TAKEN_MIB = 2, 4000
POLICY = {"exclusive_process": False}


@contextmanager
def detached(here: Machine, *command: str) -> Iterator[tuple[Program, int]]:
    """The `mpsd run` that has ended, and a child of its own session, forked twice, without
    MPSD_GRANT."""
    child = [
        "env",
        "-u",
        "MPSD_GRANT",
        "setsid",
        "sh",
        "-c",
        f"echo '{{\"child\": '$$'}}'; exec {shlex.join(command)}",
    ]
    left = here.run(f"--gpu-mem {GRANTED_GIB}", "sh", "-c", f"( {shlex.join(child)} & ); exit 0")
    assert left.exit_code() == 0
    pid = said(left, "child")
    try:
        eventually(lambda: parent_of(pid) != left.pid, "it has another parent")
        yield left, pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def said(left: Program, key: str) -> int:
    return int(
        eventually(lambda: [line[key] for line in left.lines if key in line], f"{key} from {left}")[
            0
        ]
    )


def has_grant(here: Machine, left: Program) -> bool:
    return left.pid in here.holders


def test_a_detached_child_that_takes_too_much_is_ended(serving: Machine) -> None:
    """It has lifted its limit, and carries no variable of mpsd."""
    neighbour = serving.client(4, "alloc=1000")
    takes = ["env", f"{MEMORY_LIMIT}=garbage", "sim-cuda", f"alloc={TAKEN_MIB}", "hold"]
    with detached(serving, *takes) as (left, pid):
        eventually(lambda: identity_of(pid) is None, "it is ended")

        def told() -> bool:
            violations = serving.node().violations
            assert violations is not None
            found = [
                one for one in violations.last if one.pid == pid and one.outcome.startswith("ended")
            ]
            return [one.kind for one in found] == [ViolationKind.MEMORY_OVER_GRANT]

        eventually(told, "it was ended for its memory")
        eventually(lambda: not has_grant(serving, left), "its grant has come back")
    assert neighbour.running
    neighbour.kill()
    serving.until_no_grants()


def test_nobody_else_gets_into_a_programs_cgroup(serving: Machine) -> None:
    """Neither by its file, nor by the program's variable."""
    program = serving.client(GRANTED_GIB)
    grant = serving.grant_of(program)
    (cgroup,) = cgroups(grant.id)
    write = ["sh", "-c", f"echo $$ > {cgroup}/cgroup.procs"]
    assert subprocess.run(write, user=65534, stderr=subprocess.DEVNULL).returncode

    borrowed = {"MPSD_GRANT": grant.id, "MPSD_SIMULATION": str(serving.simulation.folder)}
    stranger = serving.start([serving.program("sim-cuda"), "hold"], borrowed)
    stranger.heard("ready")

    def seen() -> list[str | None]:
        return [one.grant for one in serving.node().clients or () if one.pid == stranger.pid]

    assert eventually(seen, "it is seen") == [None]
    assert serving.grant_of(program).clients == 1
    stranger.kill()
    program.kill()
    serving.until_no_grants()


def cgroups(grant: str) -> list[Path]:
    return [*Path("/sys/fs/cgroup").rglob(f"mpsd-{grant}")]
