"""Which of many processes still live: none that has ended, whoever has its pid by now."""

import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.model.identity import ProcessIdentity
from mpsd.platform import processes
from mpsd.platform.processes import ProcessSet
from tests.whole.machine.machine import eventually

Process = subprocess.Popen[bytes]


@pytest.fixture
def three() -> Iterator[list[Process]]:
    started = [subprocess.Popen(["sleep", "600"]) for _ in range(3)]
    yield started
    for process in started:
        process.kill()
        process.wait()


def identity(process: Process) -> ProcessIdentity:
    found = processes.identity_of(process.pid)
    assert found
    return found


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_who_has_ended_is_told_once_and_is_in_here_no_more(three: list[Process]) -> None:
    living = ProcessSet()
    for process in three:
        living.add(identity(process))
    assert living.ask() == set()
    three[1].kill()  # a zombie is dead, too
    eventually(lambda: three[1].pid not in living or living.ask() == {three[1].pid}, "its death is seen")
    assert [process.pid in living for process in three] == [True, False, True]
    assert living.ask() == set()


def test_who_is_dead_already_or_is_another_is_not_in_here(three: list[Process]) -> None:
    living, dead = ProcessSet(), identity(three[0])
    three[0].kill()
    os.waitid(os.P_PID, three[0].pid, os.WEXITED | os.WNOWAIT)
    living.add(dead)
    living.add(ProcessIdentity(three[1].pid, 1, processes.boot_id()))
    assert three[0].pid not in living
    assert three[1].pid not in living


def test_no_file_stays_open(three: list[Process]) -> None:
    before = open_files()
    living = ProcessSet()
    for _twice in range(2):
        for process in three:
            living.add(identity(process))
    living.keep_only({three[0].pid})
    assert three[0].pid in living
    assert three[1].pid not in living
    assert open_files() == before + 1
    del living
    assert open_files() == before


def test_where_no_more_files_can_be_opened_nobody_is_in_here(three: list[Process]) -> None:
    """And whoever asks looks at the process by itself."""
    who, living = identity(three[0]), ProcessSet()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        living.add(who)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert who.pid not in living
    living.add(who)
    assert who.pid in living


def test_a_stopped_process_lives(three: list[Process]) -> None:
    living = ProcessSet()
    living.add(identity(three[0]))
    three[0].send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, three[0].pid, os.WSTOPPED)
    assert living.ask() == set()
    assert three[0].pid in living
