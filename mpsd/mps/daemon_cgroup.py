"""A cgroup for each control daemon, beside those of all containers. A container that shares the
host's pids is ended with everything in its cgroup, so the daemon must be in none of them."""

import ctypes
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_OURS = "mpsd"
_MEMBERS = "cgroup.procs"
_CLONE_NEWCGROUP = 0x02000000  # linux/sched.h; os.setns is of Python 3.12


class CgroupRefused(Exception):
    """The daemon was not moved, and ends with the container of `mpsd control`."""


@dataclass(frozen=True, slots=True)
class DaemonCgroup:
    """The cgroup mpsd/<name>, of v2 or in every hierarchy of v1. tree: the mount of the host's
    cgroups. host: the pid of a process of the host."""

    tree: Path
    name: str
    host: int = 1

    def take_in(self, pids: Sequence[int]) -> None:
        """Moves these processes, but for those that have ended. CgroupRefused if that fails."""
        hierarchies = tuple(self._hierarchies())
        if all(map(_is_only_ours, hierarchies)):
            what = "has no cgroups"
            if hierarchies:
                what = "shows a container its own cgroup"
            remedy = "mount the host's /sys/fs/cgroup there, writable"
            raise CgroupRefused(f"{self.tree} {what}; {remedy}")
        try:
            try:
                self._move(hierarchies, pids)
            except FileNotFoundError:  # what the kernel says to a move out of a cgroup namespace
                self._leave_namespace()
                self._move(hierarchies, pids)
        except OSError as error:
            raise CgroupRefused(
                f"{error}; it takes a privileged container and the host's cgroups, writable"
            ) from None

    def _move(self, hierarchies: Iterable[Path], pids: Sequence[int]) -> None:
        for hierarchy in hierarchies:
            members = self._make(hierarchy) / _MEMBERS
            for pid in pids:
                with suppress(ProcessLookupError):
                    members.write_text(str(pid))

    def _leave_namespace(self) -> None:
        """Goes to the host's cgroup namespace: even privileged containers may have their own."""
        with Path(f"/proc/{self.host}/ns/cgroup").open("rb") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWCGROUP):
                raise OSError(ctypes.get_errno(), "the host's cgroup namespace cannot be joined")

    def remove(self) -> bool:
        """Removes the cgroups that nobody is in; False where one is left."""
        is_left = False
        for hierarchy in self._hierarchies():
            own = hierarchy / _OURS / self.name
            for folder in (own, own.parent):
                with suppress(OSError):
                    folder.rmdir()
            is_left |= own.exists()
        return not is_left

    def _hierarchies(self) -> Iterator[Path]:
        if (self.tree / "cgroup.controllers").exists():
            yield self.tree
        elif self.tree.is_dir():
            for folder in self.tree.iterdir():
                if not folder.is_symlink() and (folder / _MEMBERS).exists():  # cpu -> cpu,cpuacct
                    yield folder

    def _make(self, hierarchy: Path) -> Path:
        folder = hierarchy
        for name in (_OURS, self.name):
            above = folder
            folder = folder / name
            folder.mkdir(exist_ok=True)
            # A new cpuset of v1 is empty and takes nobody in; one of v2 inherits by itself.
            for setting in ("cpuset.cpus", "cpuset.mems"):
                new = folder / setting
                inherited = above / setting
                if new.exists() and not new.read_text().strip() and inherited.exists():
                    new.write_text(inherited.read_text())
        return folder


def _is_only_ours(hierarchy: Path) -> bool:
    """Whether it is not the host's hierarchy, but the part that a container sees. The top of a
    whole one has files of its own in v1, and lacks some in v2 (cgroups(7), cgroup-v2 of the
    kernel)."""
    is_whole = (hierarchy / "release_agent").exists()
    if (hierarchy / "cgroup.controllers").exists():
        is_whole = not (hierarchy / "cgroup.type").exists()
    return not is_whole and str(os.getpid()) in (hierarchy / _MEMBERS).read_text().split()
