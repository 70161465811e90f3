"""A pod's cgroup on this machine, as kubelet would make one, in the first hierarchy that lets
us."""

import os
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
