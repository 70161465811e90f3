"""Cgroups of their own for daemons: on this machine's own hierarchies, whichever version they are
of."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.mps.daemon_cgroup import CgroupRefused, DaemonCgroup
from tests.whole.machine.machine import eventually

TREE = Path("/sys/fs/cgroup")

needs_cgroups = pytest.mark.skipif(
    not os.access(TREE / "cgroup.procs", os.W_OK)
    and not os.access(TREE / "cpuset" / "cgroup.procs", os.W_OK),
    reason="needs cgroups that it may change",
)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def cgroups_of(pid: int) -> set[str]:
    """The paths of a process in all hierarchies that have a tree here."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return {line.split(":", 2)[2] for line in lines}


@needs_cgroups
def test_a_daemon_leaves_every_cgroup_of_ours(sleeper: subprocess.Popen[bytes]) -> None:
    cgroup = DaemonCgroup(TREE, f"test{os.getpid()}")
    cgroup.take_in([sleeper.pid])
    cgroup.take_in([sleeper.pid])
    assert cgroups_of(sleeper.pid) == {f"/mpsd/test{os.getpid()}"}
    assert not cgroup.remove()
    sleeper.kill()
    sleeper.wait()
    eventually(cgroup.remove, "the empty cgroups can be removed")
    assert list(TREE.rglob(f"mpsd/test{os.getpid()}")) == []


@needs_cgroups
def test_a_cgroup_namespace_keeps_no_daemon_in(sleeper: subprocess.Popen[bytes]) -> None:
    """As some runtimes give one to every container; where cgroup2 is mounted with nsdelegate it
    would."""
    container = DaemonCgroup(TREE, f"container{os.getpid()}")
    script = f"""
from pathlib import Path
from mpsd.mps.daemon_cgroup import DaemonCgroup
DaemonCgroup(Path("{TREE}"), "test{os.getpid()}", host={os.getpid()}).take_in([{sleeper.pid}])
"""
    container.take_in([sleeper.pid])
    namespaced = subprocess.Popen(
        ["sh", "-c", 'read go; exec unshare --cgroup "$0" -c "$1"', sys.executable, script],
        stdin=subprocess.PIPE,
    )
    container.take_in([namespaced.pid])
    namespaced.communicate(b"go\n", timeout=20)
    assert namespaced.returncode == 0
    assert cgroups_of(sleeper.pid) == {f"/mpsd/test{os.getpid()}"}
    sleeper.kill()
    sleeper.wait()
    for cgroup in (container, DaemonCgroup(TREE, f"test{os.getpid()}")):
        eventually(cgroup.remove, "the empty cgroups can be removed")


@needs_cgroups
def test_a_process_that_has_ended_is_left_out(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    sleeper.wait()
    cgroup = DaemonCgroup(TREE, f"test{os.getpid()}")
    cgroup.take_in([sleeper.pid])
    assert cgroup.remove()


@pytest.mark.parametrize("tree", ["/nonexistent", "/usr"])
def test_where_there_are_no_cgroups_nothing_is_done_and_the_remedy_is_said(tree: str) -> None:
    cgroup = DaemonCgroup(Path(tree), "gpu0")
    with pytest.raises(
        CgroupRefused, match="has no cgroups; mount the host's /sys/fs/cgroup there"
    ):
        cgroup.take_in([os.getpid()])
    assert cgroup.remove()


@pytest.mark.parametrize("v2", [False, True])
def test_a_containers_own_cgroup_is_not_taken_for_the_hosts(tmp_path: Path, v2: bool) -> None:
    """As the runtime mounts it where nobody asks for the host's: the container's processes are at
    the top."""
    top = tmp_path if v2 else tmp_path / "devices"
    top.mkdir(exist_ok=True)
    (top / "cgroup.procs").write_text(f"1\n{os.getpid()}\n")
    if v2:
        (top / "cgroup.controllers").write_text("cpu memory\n")
        (top / "cgroup.type").write_text("domain\n")
    with pytest.raises(CgroupRefused, match="shows a container its own cgroup"):
        DaemonCgroup(tmp_path, "gpu0").take_in([os.getpid()])
    assert not list(tmp_path.rglob("mpsd"))
