"""Cgroups of a pod, as kubelet would make one, and of a container, in the first hierarchy that lets
us."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.whole.machine.machine import eventually

_TREE = Path("/sys/fs/cgroup")
_TOPS = [
    path.parent
    for path in (_TREE / "cgroup.procs", *_TREE.glob("pids/cgroup.procs"))
    if os.access(path, os.W_OK)
]

needs_cgroups = pytest.mark.skipif(not _TOPS, reason="needs cgroups that it may change")


class PodCgroupHere:
    """uid: as the API has it. members: the file into which a process writes its pid to enter."""

    def __init__(self, number: int) -> None:
        self.uid = f"00000000-0000-4{number:03d}-8000-{os.getpid():012d}"
        self._folders = [_TOPS[0] / "kubepods-test"]
        for name in ("kubepods", "burstable", f"pod{self.uid}", os.urandom(32).hex()):
            self._folders.append(self._folders[-1] / name)
        for folder in self._folders:
            folder.mkdir(exist_ok=True)
        self.members = self._folders[-1] / "cgroup.procs"

    def take_in(self, pid: int) -> None:
        self.members.write_text(str(pid))

    def let_out(self, pid: int) -> None:
        (_TOPS[0] / "cgroup.procs").write_text(str(pid))

    def remove(self) -> bool:
        for folder in reversed(self._folders):
            with suppress(OSError):
                folder.rmdir()
        return not self._folders[-1].exists()


@contextmanager
def pod_cgroup(number: int = 0) -> Iterator[PodCgroupHere]:
    """Removed at the end, when all who are in it must have ended. number: tells several of one test
    apart."""
    made = PodCgroupHere(number)
    try:
        yield made
    finally:
        eventually(made.remove, "the pod's cgroup is empty")


_TOP = _TREE if (_TREE / "cgroup.procs").exists() else _TREE / "pids"


class ContainerCgroup:
    """A cgroup that a container has to itself."""

    def __init__(self, name: str) -> None:
        self.folder = _TOP / f"mpsd-test-{os.getpid()}-{name}"
        self.folder.mkdir()

    def take_in(self, pid: int) -> None:
        (self.folder / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        for pid in (self.folder / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        eventually(self._is_removed, "the container's cgroup is empty")

    def _is_removed(self) -> bool:
        with suppress(OSError):
            self.folder.rmdir()
        return not self.folder.exists()
