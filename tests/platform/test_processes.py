"""Processes: nobody but the very one that is meant is signalled or taken for alive."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mpsd.model.identity import ProcessIdentity
from mpsd.platform import processes
from mpsd.platform.process_environment import environment_of
from mpsd.platform.processes import ProcessSet
from tests.whole.machine.machine import eventually
from tests.world.captured import captured


@pytest.fixture
def sleep() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def identity_of(process: "subprocess.Popen[bytes]") -> ProcessIdentity:
    found = processes.identity_of(process.pid)
    assert found
    return found


@pytest.fixture
def identity(sleep: "subprocess.Popen[bytes]") -> ProcessIdentity:
    return identity_of(sleep)


def test_a_process_whose_name_looks_like_its_status_is_known() -> None:
    """The kernel writes the name in brackets before the fields that are read, and it may hold
    brackets itself."""
    with subprocess.Popen(
        ["sh", "-c", "echo ') Z 1 1 1' >/proc/self/comm; echo; read _"], stdin=-1, stdout=-1
    ) as named:
        assert named.stdout
        named.stdout.readline()
        found = identity_of(named)
        named.kill()
    assert found.pid == named.pid
    assert found.start_ticks > 1


def test_a_zombie_is_not_alive(sleep: "subprocess.Popen[bytes]", identity: ProcessIdentity) -> None:
    assert processes.is_alive(identity)
    sleep.kill()
    # dead, and still in the table of processes
    os.waitid(os.P_PID, sleep.pid, os.WEXITED | os.WNOWAIT)
    assert not processes.is_alive(identity)
    assert processes.open_pidfd(identity) is None


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "another"}])
def test_another_process_with_the_same_pid_is_not_signalled(
    sleep: "subprocess.Popen[bytes]", identity: ProcessIdentity, change: dict[str, object]
) -> None:
    other = replace(identity, **change)  # type: ignore[arg-type]
    assert not processes.is_alive(other)
    assert not processes.send_signal(other, signal.SIGKILL)
    assert sleep.poll() is None
    assert processes.send_signal(identity, signal.SIGKILL)
    assert sleep.wait(10) == -signal.SIGKILL


def test_a_process_whose_first_thread_has_ended_is_alive() -> None:
    script = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=[600]).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        eventually(lambda: _state(process.pid) == "Z", "its first thread has ended")
        found = identity_of(process)
        assert processes.is_alive(found)
        descriptor = processes.open_pidfd(found)
        assert descriptor is not None
        assert not processes.has_ended(descriptor)
        assert processes.signal_held(descriptor, signal.SIGSTOP)
        eventually(lambda: processes.is_stopped(found), "its other thread is stopped")
        assert processes.signal_held(descriptor, signal.SIGKILL)
        process.wait(10)
        assert processes.has_ended(descriptor)
        assert not processes.signal_held(descriptor, signal.SIGKILL)
        os.close(descriptor)
        assert processes.state_of(found) == ""


def test_of_a_variable_that_is_there_twice_the_first_counts_as_it_does_for_the_process() -> None:
    script = (
        "import ctypes\n"
        "strings = lambda *words: (ctypes.c_char_p * (len(words) + 1))(*words, None)\n"
        "ctypes.CDLL(None).execve(b'/bin/sh', strings(b'sh', b'-c', b'echo; read _'),"
        " strings(b'A=first', b'A=second', b'B=\\xff'))\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1) as process:
        assert process.stdout
        process.stdout.readline()
        found = environment_of(process.pid, ("A", "B"))
        process.kill()
    assert found == {"A": "first", "B": "\N{REPLACEMENT CHARACTER}"}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, and another user")
def test_root_that_may_only_trace_reads_the_environment_of_another_users_process() -> None:
    """As the agent's container does: it has CAP_SYS_PTRACE and neither CAP_DAC_OVERRIDE nor
    CAP_DAC_READ_SEARCH."""
    script = (
        "import sys\nfrom mpsd.platform.process_environment import environment_of\n"
        "print(environment_of(int(sys.argv[1]), ('A', 'B')))"
    )
    drop = [
        "setpriv",
        "--bounding-set",
        "-dac_override,-dac_read_search",
        sys.executable,
        "-c",
        script,
    ]
    with subprocess.Popen(["sleep", "600"], env={"A": "first", "B": ""}, user=65534) as process:
        try:
            eventually(
                lambda: processes.command_of(process.pid) == "sleep 600", "it is another program"
            )
            said = captured([*drop, str(process.pid)]).stdout
        finally:
            process.kill()
    assert said == "{'A': 'first', 'B': ''}\n"


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


# Which of many processes still live: none that has ended, whoever has its pid by now.

Process = subprocess.Popen[bytes]


@pytest.fixture
def three() -> Iterator[list[Process]]:
    started = [subprocess.Popen(["sleep", "600"]) for _ in range(3)]
    yield started
    for process in started:
        process.kill()
        process.wait()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_who_has_ended_is_told_once_and_is_in_here_no_more(three: list[Process]) -> None:
    living = ProcessSet()
    for process in three:
        living.add(identity_of(process))
    assert living.ask() == set()
    three[1].kill()  # a zombie is dead, too
    eventually(
        lambda: three[1].pid not in living or living.ask() == {three[1].pid}, "its death is seen"
    )
    assert [process.pid in living for process in three] == [True, False, True]
    assert living.ask() == set()


def test_who_is_dead_already_or_is_another_is_not_in_here(three: list[Process]) -> None:
    living, dead = ProcessSet(), identity_of(three[0])
    three[0].kill()
    os.waitid(os.P_PID, three[0].pid, os.WEXITED | os.WNOWAIT)
    living.add(dead)
    living.add(ProcessIdentity(three[1].pid, 1, processes.boot_id()))
    assert three[0].pid not in living
    assert three[1].pid not in living


def test_no_file_stays_open(three: list[Process]) -> None:
    living, before = ProcessSet(), open_files()
    for _twice in range(2):
        for process in three:
            living.add(identity_of(process))
    living.keep_only({three[0].pid})
    assert three[0].pid in living
    assert three[1].pid not in living
    assert open_files() == before + 1
    del living
    assert open_files() == before - 1, "the epoll is closed too"


def test_where_no_more_files_can_be_opened_nobody_is_in_here(three: list[Process]) -> None:
    """And whoever asks looks at the process by itself."""
    who, living = identity_of(three[0]), ProcessSet()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        living.add(who)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert who.pid not in living
    living.add(who)
    assert who.pid in living


@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("exit 0", "exit code 0"),
        ("exit 3", "exit code 3"),
        ("kill -KILL $$", "killed by SIGKILL"),
        ("kill -SEGV $$", "killed by SIGSEGV"),
        ("kill -40 $$", "killed by signal 40"),
    ],
)
def test_how_a_process_ended_is_told_by_its_pidfd(end: str, how: str) -> None:
    with subprocess.Popen(["sh", "-c", f"read _; {end}"], stdin=subprocess.PIPE) as process:
        identity = identity_of(process)
        pidfd = processes.open_pidfd(identity)
        assert pidfd is not None
        assert processes.exit_status(pidfd, identity) is None
        process.communicate(b"\n")
        told = processes.exit_status(pidfd, identity)
        os.close(pidfd)
    assert processes.how_ended(told) in {how, "ended"}
    assert (told is None) is not _TOLD_WHEN_REAPED


def test_how_a_zombie_ended_is_told_on_every_kernel(
    sleep: "subprocess.Popen[bytes]", identity: ProcessIdentity
) -> None:
    pidfd = processes.open_pidfd(identity)
    assert pidfd is not None
    sleep.kill()
    os.waitid(os.P_PID, sleep.pid, os.WEXITED | os.WNOWAIT)
    assert processes.exit_status(pidfd, identity) == signal.SIGKILL
    os.close(pidfd)


def test_a_process_that_is_killed_ends(
    sleep: "subprocess.Popen[bytes]", identity: ProcessIdentity
) -> None:
    assert not processes.is_ending(identity)
    assert processes.is_ending(replace(identity, start_ticks=1))
    sleep.kill()
    # for a moment the signal is taken, and its end not yet begun
    eventually(lambda: processes.is_ending(identity), "it ends")


_TOLD_WHEN_REAPED = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 15)

_PROGRAM = """
import os, signal, sys, threading
exec(sys.argv[1])
print("ready", flush=True)
signal.pause() if threading.active_count() == 1 else threading.Event().wait()
"""


@pytest.fixture
def program(request: pytest.FixtureRequest) -> Iterator[ProcessIdentity]:
    """A program that has run the lines of the parameter first."""
    argv = [sys.executable, "-c", _PROGRAM, request.param]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert child.stdout
    assert child.stdout.readline() == b"ready\n"
    yield identity_of(child)
    child.kill()
    child.wait()
    child.stdout.close()


_BLOCK = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])"
_THREAD = f"{_BLOCK}; threading.Thread(target=threading.Event().wait, daemon=True).start()"
_OTHER = "threading.Thread(target=threading.Event().wait, daemon=True).start(); " + _BLOCK
_WAIT = (
    f"{_BLOCK}; threading.Thread(target=signal.sigwait, args=[[signal.%s]], daemon=True).start()"
)
_HANDLER = "signal.signal(signal.SIGTERM, lambda *_: None)"


@pytest.mark.parametrize(
    ("program", "dies", "handles"),
    [
        ("pass", True, False),
        (_HANDLER, False, True),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN)", False, False),
        (_BLOCK, False, True),
        (_THREAD, False, True),
        (_OTHER, True, False),
        (_WAIT % "SIGTERM", False, True),
        (_WAIT % "SIGHUP", False, True),
        ("os.setgroups(range(2000)) if os.geteuid() == 0 else None", True, False),
    ],
    indirect=["program"],
)
def test_a_program_dies_of_a_signal_that_no_thread_withstands(
    program: ProcessIdentity, dies: bool, handles: bool
) -> None:
    assert processes.dies_of(program, signal.SIGTERM) is dies
    assert processes.handles(program, signal.SIGTERM) is handles
    assert not processes.handles(program, signal.SIGKILL)
    assert not processes.handles(replace(program, start_ticks=1), signal.SIGTERM)
    assert processes.dies_of(program, signal.SIGKILL)
    assert not processes.dies_of(program, signal.SIGWINCH)
    assert not processes.dies_of(replace(program, start_ticks=1), signal.SIGKILL)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a pid namespace")
def test_the_first_of_a_pid_namespace_dies_of_what_it_handles_not() -> None:
    child = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "sleep", "600"])
    try:
        first = eventually(lambda: processes.descendants_of(child.pid), "it has a first process")
        eventually(lambda: processes.command_of(first[0]).startswith("sleep"), "it is sleep")
        identity = processes.identity_of(first[0])
        assert identity
        assert not processes.dies_of(identity, signal.SIGTERM)
        assert processes.dies_of(identity, signal.SIGKILL)
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("program", [_OTHER], indirect=True)
def test_a_process_is_stopped_when_each_of_its_threads_is(program: ProcessIdentity) -> None:
    assert not processes.is_stopped(program)
    processes.send_signal(program, signal.SIGSTOP)
    eventually(lambda: processes.is_stopped(program), "it is stopped")
    assert not processes.is_stopped(replace(program, start_ticks=1))
    processes.send_signal(program, signal.SIGCONT)
    eventually(lambda: not processes.is_stopped(program), "it goes on")
