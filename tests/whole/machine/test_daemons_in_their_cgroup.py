"""Daemons outlive the container of `mpsd control`: they are in none of its cgroups when that is
killed."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mpsd.mps.daemon_cgroup import DaemonCgroup
from tests.whole.machine.machine import Machine, eventually

TREE = Path("/sys/fs/cgroup")
CONTAINER = DaemonCgroup(TREE, f"container{os.getpid()}")

needs_cgroups = pytest.mark.skipif(
    not os.access(TREE / "cgroup.procs", os.W_OK)
    and not os.access(TREE / "cpuset" / "cgroup.procs", os.W_OK),
    reason="needs cgroups that it may change",
)


@pytest.fixture
def container() -> Iterator[DaemonCgroup]:
    yield CONTAINER
    eventually(CONTAINER.remove, "the container's cgroups are empty")


def members(cgroup: DaemonCgroup) -> set[int]:
    return {
        int(pid)
        for path in TREE.rglob(f"mpsd/{cgroup.name}/cgroup.procs")
        for pid in path.read_text().split()
    }


def kill_all(cgroup: DaemonCgroup) -> None:
    """What ends a container that shares the host's pids."""
    for pid in members(cgroup):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@needs_cgroups
def test_a_killed_container_takes_no_daemon_with_it_and_the_next_adopts_them(
    pair: Machine, container: DaemonCgroup
) -> None:
    agent = pair.service("agent")
    control = pair.service("control", {"MPSD_DAEMON_CGROUP": str(TREE)})
    container.take_in([control.pid])
    pair.until_ready()
    client = pair.client(7)
    daemon = pair.daemon()
    assert members(container) == {control.pid}

    kill_all(container)

    control.process.wait()
    assert client.running
    again = pair.service("control", {"MPSD_DAEMON_CGROUP": str(TREE)})
    eventually(
        lambda: len(again.logged("state", state="ready")) == 2, "it has adopted both daemons"
    )
    assert pair.daemon() == daemon
    assert client.running
    assert agent.running
