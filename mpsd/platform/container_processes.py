"""Which container without Kubernetes a process of this machine is in.

One rule: the kernel says so, by the cgroups that a container has to itself (`docker exec` starts processes that do not
descend from its first); where it has none, by its pid namespace, even in a cgroup that another one had to itself
before; and where it has none of its own either, by descent from its first process. What a process carries or claims
counts for nothing.
"""

import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from mpsd.model.identity import ProcessIdentity
from mpsd.platform import processes
from mpsd.platform.rules.cgroups import Cgroup
from mpsd.platform.rules.container_cgroups import alone_in, container_of_cgroup

_PROC = Path("/proc")


def own_cgroups(first: ProcessIdentity) -> tuple[Cgroup, ...]:
    """The cgroups that the container with this first process has to itself; none where it is gone."""
    text = _cgroup(first.pid)
    if not text or not processes.is_alive(first):
        return ()
    return alone_in(text, _older(first, alone_in(text, ())))


class ContainerProcesses:
    """settle: called when a process is in no container that is known, so that those just made are."""

    def __init__(self, settle: Callable[[], None]) -> None:
        self._settle = settle
        self._homes: dict[str, Collection[Cgroup]] = {}  # by grant
        self._without: dict[str, ProcessIdentity] = {}  # by grant of one without: its first process
        self._pids: dict[str, int] = {}  # by grant, its pid namespace
        self._own_pids = _pid_namespace("self")

    def put(self, grant: str, first: ProcessIdentity, cgroups: Collection[Cgroup]) -> None:
        """From now on the container that holds this grant is known by these."""
        self._pids[grant] = _pid_namespace(first.pid)
        if cgroups:
            self._homes[grant] = cgroups
        else:
            self._without[grant] = first

    def take_out(self, grant: str) -> None:
        self._homes.pop(grant, None)
        self._without.pop(grant, None)
        self._pids.pop(grant, None)

    def owner_of(self, pid: int) -> str | None:
        """The grant of the container that the process is in; None where it is in none that holds one, or is gone."""
        text = _cgroup(pid)
        if not text:
            return None
        found = self._find(pid, text)
        if found is None:
            self._settle()
            found = self._find(pid, text)
        return found

    def _find(self, pid: int, text: str) -> str | None:
        home = container_of_cgroup(text, self._homes)
        if not self._without:
            return home
        namespace = _pid_namespace(pid)
        if home and namespace == self._pids[home]:
            return home
        return self._by_namespace(namespace) or home or self._by_line(pid)

    def _by_namespace(self, namespace: int) -> str | None:
        """Of those without a cgroup to themselves."""
        if namespace in {0, self._own_pids}:
            return None
        return next((grant for grant in self._without if self._pids[grant] == namespace), None)

    def _by_line(self, pid: int) -> str | None:
        """Of those without a cgroup to themselves."""
        for one in processes.line_of(pid):
            for grant, first in self._without.items():
                if one == first.pid and processes.is_alive(first):
                    return grant
            if found := self._by_namespace(_pid_namespace(one)):
                return found
        return None


def _older(first: ProcessIdentity, cgroups: Collection[Cgroup]) -> Iterator[str]:
    """What of the text of /proc/PID/cgroup there is of processes that started before it and may be in one of these.

    Whoever ends meanwhile is left out. A machine has thousands of processes, so that most are passed over quickly.
    """
    paths = {f":{cgroup.path}" for cgroup in cgroups}
    for pid in filter(str.isdecimal, os.listdir(_PROC)):  # noqa: PTH208  # a path each costs more than the rest
        theirs = _cgroup(int(pid))
        if any(path in theirs for path in paths):
            found = processes.identity_of(int(pid))
            if found and found.start_ticks < first.start_ticks:
                yield theirs


def _cgroup(pid: int) -> str:
    """Empty where it is gone."""
    try:
        with open(f"/proc/{pid}/cgroup", errors="surrogateescape") as file:  # noqa: PTH123  # as above
            return file.read()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _pid_namespace(pid: int | str) -> int:
    """Its number; 0 where it is gone, or not ours to see."""
    try:
        return (_PROC / str(pid) / "ns/pid").stat().st_ino
    except OSError:
        return 0
