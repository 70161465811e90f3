"""What is mpsd's own is left alone, and nobody else can pass for it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mpsd.model.identity import ProcessIdentity
from mpsd.platform import processes, run_directory
from mpsd.watchdog.scanner import OwnProcesses
from tests.model.worlds import record
from tests.whole.machine.machine import eventually

_HOLDS = (
    "import signal, subprocess, sys; from pathlib import Path; from mpsd.platform import"
    " run_directory\nwith run_directory.held(Path(sys.argv[1])):\n   "
    " print(subprocess.Popen(['sleep', '600']).pid, flush=True)\n    signal.pause()\n"
)


@pytest.fixture
def foreign() -> Iterator[ProcessIdentity]:
    """A process that does not descend from this one: its parent has ended."""
    started = subprocess.run(
        ["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!"],
        capture_output=True,
        text=True,
        check=True,
    )
    pid = int(started.stdout)
    eventually(
        lambda: (
            processes.parent_of(pid) != os.getpid() and processes.command_of(pid) == "sleep 600"
        ),
        "it runs",
    )
    found = processes.identity_of(pid)
    assert found
    yield found
    os.kill(pid, 9)


_LOCKS = (
    "import fcntl, os, signal, subprocess, sys\nfor path in sys.argv[1:]:\n   "
    " fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX)\n"
    "print(subprocess.Popen(['sleep', '600']).pid, flush=True)\nsignal.pause()\n"
)


def test_descent_from_who_took_a_lock_spares_nobody(tmp_path: Path) -> None:
    lock = tmp_path / run_directory.LOCK
    with run_directory.held(tmp_path):
        pass
    lock.write_bytes(b"")  # who holds it is no mpsd, which writes its identity there
    parents = ["sh", "-c", f'setsid {sys.executable} -c "$0" {tmp_path} {lock} &', _LOCKS]
    with subprocess.Popen(parents, stdout=-1, text=True) as shell:
        assert shell.stdout
        child = processes.identity_of(int(shell.stdout.readline()))
        assert child
        thief = processes.parent_of(child.pid)
        try:
            assert run_directory.holder(tmp_path) is None
            assert OwnProcesses(tmp_path).among([child], list) == frozenset()
        finally:
            os.kill(thief, 9)
            os.kill(child.pid, 9)


def test_what_descends_from_mpsd_and_what_mpsd_descends_from_are_its_own(
    tmp_path: Path, foreign: ProcessIdentity
) -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        asked = [processes.identity_of(pid) for pid in (os.getpid(), os.getppid(), child.pid)]
        own = [one for one in asked if one]
        assert OwnProcesses(tmp_path).among([*own, foreign], list) == set(own)
        child.kill()


def test_servers_and_what_daemons_start_are_its_own(
    tmp_path: Path, foreign: ProcessIdentity
) -> None:
    own = OwnProcesses(tmp_path)
    assert own.among([foreign], list) == frozenset()
    assert own.among([foreign], lambda: [record(servers=(foreign.pid,))]) == {foreign}
    daemon = replace(record(servers=()), daemon=foreign)
    assert OwnProcesses(tmp_path).among([foreign], lambda: [daemon]) == {foreign}


def test_what_the_holder_of_the_run_directory_starts_is_its_own_even_when_that_ends(
    tmp_path: Path,
) -> None:
    """`mpsd control` beside an agent, and the client that it tries a driver with."""
    # the shell ends at once
    parents = ["sh", "-c", f'setsid {sys.executable} -c "$0" {tmp_path} &', _HOLDS]
    with subprocess.Popen(parents, stdout=-1, text=True) as shell:
        assert shell.stdout
        child = processes.identity_of(int(shell.stdout.readline()))
        assert child
        holder = run_directory.holder(tmp_path)
        assert holder == processes.parent_of(child.pid)
        own = OwnProcesses(tmp_path)
        assert own.among([child], list) == {child}
        os.kill(holder or 0, 9)
        eventually(lambda: run_directory.holder(tmp_path) is None, "nobody holds it")
        assert own.among([child], list) == {child}, "it was, so it is"
        os.kill(child.pid, 9)
    assert OwnProcesses(tmp_path).among([child], list) == frozenset()
