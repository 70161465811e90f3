"""Processes: nobody but the very one that is meant is signalled or taken for alive."""

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from mpsd.core.identity import ProcessIdentity
from mpsd.edge import processes


@pytest.fixture
def sleep() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.fixture
def identity(sleep: "subprocess.Popen[bytes]") -> ProcessIdentity:
    found = processes.identity_of(sleep.pid)
    assert found
    return found


def test_a_process_whose_name_looks_like_its_status_is_known() -> None:
    """The kernel writes the name in brackets before the fields that are read, and it may hold brackets itself."""
    with subprocess.Popen(
        ["sh", "-c", "echo ') Z 1 1 1' >/proc/self/comm; echo; read _"], stdin=-1, stdout=-1
    ) as named:
        assert named.stdout
        named.stdout.readline()
        found = processes.identity_of(named.pid)
        named.kill()
    assert found
    assert found.pid == named.pid
    assert found.start_ticks > 1


def test_a_zombie_is_not_alive(sleep: "subprocess.Popen[bytes]", identity: ProcessIdentity) -> None:
    assert processes.is_alive(identity)
    sleep.kill()
    os.waitid(os.P_PID, sleep.pid, os.WEXITED | os.WNOWAIT)  # dead, and still in the table of processes
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


def test_of_a_process_that_is_gone_nothing_is_known(sleep: "subprocess.Popen[bytes]") -> None:
    sleep.kill()
    sleep.wait()
    assert processes.identity_of(sleep.pid) is None
    assert processes.environment_of(sleep.pid) is None
    assert processes.command_of(sleep.pid) == ""
