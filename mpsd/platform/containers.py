"""Which pod, container or program's cgroup a process of this machine is in, by the kernel's word.

A pod is known by its cgroup; another container by the cgroups that it has to itself, else by its
pid namespace, else by descent from its first process.
"""

import errno
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from mpsd.model.identity import ProcessIdentity
from mpsd.platform import processes
from mpsd.platform.process_environment import environment_of
from mpsd.platform.rules.cgroups import (
    Cgroup,
    alone_in,
    cgroups_in,
    container_of_cgroup,
    node_cgroup,
    pod_of_cgroup,
    program_cgroup,
)
from mpsd.platform.settings import GRANT

_PROC = Path("/proc")
_MEMBERS = "cgroup.procs"


def own_cgroups(first: ProcessIdentity) -> tuple[Cgroup, ...]:
    """The cgroups that the container with this first process has to itself; none if gone."""
    text = _cgroup(first.pid)
    if text and processes.is_alive(first):
        return alone_in(text, _older(first, alone_in(text, ())))
    return ()


class ContainerProcesses:
    """settle: called when a process is in no known container, which may be just made."""

    def __init__(self, settle: Callable[[], None]) -> None:
        self._settle = settle
        self._homes: dict[str, Collection[Cgroup]] = {}  # by grant
        self._without: dict[str, ProcessIdentity] = {}  # by grant of one without: its first process
        self._pids: dict[str, int] = {}  # by grant, its pid namespace
        self._own_pids = pid_namespace("self")

    def put(self, grant: str, first: ProcessIdentity, cgroups: Collection[Cgroup]) -> None:
        """From now on the holder of this grant is known by these."""
        self._pids[grant] = pid_namespace(first.pid)
        if cgroups:
            self._homes[grant] = cgroups
        else:
            self._without[grant] = first

    def take_out(self, grant: str) -> None:
        for known in (self._homes, self._without, self._pids):
            known.pop(grant, None)

    def owner_of(self, pid: int) -> str | None:
        """None where none is known."""
        if not (text := _cgroup(pid)):
            return None
        if found := self._find(pid, text):
            return found
        self._settle()
        return self._find(pid, text)

    def _find(self, pid: int, text: str) -> str | None:
        home = container_of_cgroup(text, self._homes)
        if not self._without:
            return home
        namespace = pid_namespace(pid)
        if home and namespace == self._pids[home]:
            return home
        return self._by_namespace(namespace) or home or self._by_line(pid)

    # Of those without a cgroup to themselves:

    def _by_namespace(self, namespace: int) -> str | None:
        for grant in self._without:
            if self._pids[grant] == namespace and namespace not in {0, self._own_pids}:
                return grant
        return None

    def _by_line(self, pid: int) -> str | None:
        for one in processes.line_of(pid):
            for grant, first in self._without.items():
                if one == first.pid and processes.is_alive(first):
                    return grant
            if found := self._by_namespace(pid_namespace(one)):
                return found
        return None


def _older(first: ProcessIdentity, cgroups: Collection[Cgroup]) -> Iterator[str]:
    """The texts of /proc/PID/cgroup of processes that started before it and may be in one of
    these."""
    paths = {f":{cgroup.path}" for cgroup in cgroups}
    for pid in processes.every_pid():
        theirs = _cgroup(pid)
        if any(path in theirs for path in paths):
            found = processes.identity_of(pid)
            if found and found.start_ticks < first.start_ticks:
                yield theirs


_LARGEST_CGROUPS = 128 * 1024  # characters: a path for each of a dozen hierarchies


def _cgroup(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cgroup", errors="surrogateescape") as file:  # noqa: PTH123
            return file.read(_LARGEST_CGROUPS)
    except (FileNotFoundError, ProcessLookupError):
        return ""  # it is gone


def pid_namespace(pid: int | str) -> int:
    """0 where it is gone, or not ours to see."""
    try:
        return (_PROC / str(pid) / "ns/pid").stat().st_ino
    except OSError:
        return 0


_TREE = Path("/sys/fs/cgroup")


def is_frozen(pid: int) -> bool:
    """Whether it is in a paused container. False if unreadable."""
    v2 = v2_tree(_TREE)
    for cgroup in cgroups_in(_cgroup(pid)):
        path = cgroup.path.lstrip("/")
        with suppress(OSError):
            if not cgroup.hierarchy and v2:
                lines = (v2 / path / "cgroup.events").read_text().splitlines()
            elif "freezer" in cgroup.hierarchy.split(","):
                lines = (_TREE / "freezer" / path / "freezer.state").read_text().splitlines()
            else:
                continue
            if {"frozen 1", "FROZEN"}.intersection(lines):
                return True
    return False


def v2_tree(tree: Path) -> Path | None:
    """Where cgroup v2 is mounted: there, or beside v1; None where it is not."""
    for one in (tree, tree / "unified"):
        if (one / "cgroup.controllers").exists():
            return one
    return None


def let_count(root: Path, folder: Path) -> None:
    """Has the kernel count device memory in a cgroup of mpsd's own, where it can (dmem, 6.14), so
    that it can have a limit."""
    for above in reversed(folder.parents):
        with suppress(OSError):
            is_below = above.is_relative_to(root)
            if is_below and "dmem" in (above / "cgroup.controllers").read_text().split():
                (above / "cgroup.subtree_control").write_text("+dmem")


class ProgramCgroups:
    """The cgroups that mpsd makes for programs: in v2, or the controller pids or memory of v1,
    whichever is first there and writable (in the named hierarchy systemd lets users move their
    processes). why_not: why there can be none; empty where there can. tree: their mount."""

    def __init__(self, tree: Path = _TREE) -> None:
        self._folders = {"": tree, "pids": tree / "pids", "memory": tree / "memory"}
        if not (tree / _MEMBERS).exists():
            self._folders[""] = tree / "unified"
        self.why_not = f"mpsd may not create cgroups in {tree}"
        self._hierarchy: str | None = None  # None: there can be none
        for name, folder in self._folders.items():
            if os.geteuid() == 0 and os.access(folder / _MEMBERS, os.W_OK):
                self._hierarchy = name
                self.why_not = ""
                return

    def place_for(self, program: ProcessIdentity, grant: str) -> Cgroup | None:
        """None where there can be none."""
        if self._hierarchy is None:
            return None
        return program_cgroup(_cgroup(program.pid), self._hierarchy, grant, self._is_roots)

    def grant_of(self, one: ProcessIdentity) -> str | None:
        """The grant by its program's cgroup, or by its environment where there can be none. Names
        that others give to their cgroups count for nothing."""
        if self._hierarchy is None:
            return (environment_of(one.pid, (GRANT,)) or {}).get(GRANT)
        named = re.search("/mpsd-([0-9a-f]{12})(?![^/\n])", _cgroup(one.pid))
        if named and self.found_again(one, named[1]):
            return named[1]
        return None

    def found_again(self, program: ProcessIdentity, grant: str) -> tuple[Cgroup, ...]:
        """The cgroup that was made for it, where the program is in there, or below."""
        made = self.place_for(program, grant)
        if made and _is_in(program.pid, made):
            return (made,)
        return ()

    def take_in(self, program: ProcessIdentity, made: Cgroup) -> str:
        """Moves it into a new cgroup. Why it is not in there; empty where it is."""
        folder = self._folder(made)
        try:
            folder.mkdir(mode=0o755)
            if not made.hierarchy:
                let_count(self._folders[""], folder)
            if processes.is_alive(program):
                (folder / _MEMBERS).write_text(str(program.pid))
        except OSError as error:
            return f"{folder}: {error.strerror}"
        if made in cgroups_in(_cgroup(program.pid)) and processes.is_alive(program):
            return ""
        return f"{program} did not enter {folder}"

    def has_processes(self, made: Cgroup) -> bool:
        """Whether any process is in it or below it."""
        folder = self._folder(made)
        try:
            if not made.hierarchy:
                return "populated 1" in (folder / "cgroup.events").read_text()
            return any((Path(below) / _MEMBERS).read_text() for below, *_inside in os.walk(folder))
        except OSError as error:
            # these are removed, of others nothing is known
            return error.errno not in {errno.ENOENT, errno.ENODEV}

    def processes_in(self, made: Cgroup) -> Iterator[ProcessIdentity]:
        """Those that are in it or below it, by the kernel's word of each."""
        for below, *_inside in os.walk(self._folder(made)):
            with suppress(OSError):
                for pid in map(int, (Path(below) / _MEMBERS).read_text().split()):
                    found = processes.identity_of(pid)
                    if found and _is_in(pid, made) and processes.is_alive(found):
                        yield found

    def remove(self, made: Cgroup) -> None:
        """Removes also those below it; the kernel keeps one with a process."""
        for below, *_inside in os.walk(self._folder(made), topdown=False):
            with suppress(OSError):
                Path(below).rmdir()

    def _folder(self, made: Cgroup) -> Path:
        name = next((name for name in self._folders if name in made.hierarchy.split(",")), "")
        return self._folders[name] / made.path.lstrip("/")

    def _is_roots(self, path: str) -> bool:
        folder = self._folders[self._hierarchy or ""] / path.lstrip("/")
        try:
            for one in (folder.stat(), (folder / _MEMBERS).stat()):
                if one.st_uid or one.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                    return False
        except OSError:
            return False
        return True


def _is_in(pid: int, made: Cgroup) -> bool:
    """Whether it is in this cgroup, or below."""
    return any(map(made.holds, cgroups_in(_cgroup(pid))))


# -- the states that runc and crun keep, which name a container's first process
# A state that cannot be read is never taken for a container that is not there.

_LARGEST = 16 * 1024**2  # bytes; a state of runc holds the whole configuration
# nor can a runtime make one of such a name
_NO_SUCH_PLACE = frozenset({errno.ENOENT, errno.ENAMETOOLONG})


class StateUnknown(Exception):
    """The message says why."""


class _Runc(msgspec.Struct):
    """Of state.json (libcontainer's BaseState)."""

    pid: int = msgspec.field(name="init_process_pid")
    start_ticks: int = msgspec.field(name="init_process_start")


class _Crun(msgspec.Struct):
    """Of status (libcrun_write_container_status)."""

    pid: int
    start_ticks: int = msgspec.field(name="process-start-time")


def first_process(root: str, container: str) -> ProcessIdentity | None:
    """The first process, alive or not; None where the runtime knows no such container. root: where
    it keeps its states. StateUnknown."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        folder = os.open(f"{root}/{container}", flags)
    except OSError as error:
        if error.errno in _NO_SUCH_PLACE:
            return None
        raise StateUnknown(f"{root}/{container} cannot be opened: {error.strerror}") from None
    try:
        state = _read(folder, "state.json", _Runc, f"{root}/{container}")
        state = state or _read(folder, "status", _Crun, f"{root}/{container}")
    finally:
        os.close(folder)
    # No pid stands there before the first process is made, and after it was waited for.
    if state is None or state.pid <= 0:
        return None
    return ProcessIdentity(state.pid, state.start_ticks, processes.boot_id())


def _read(folder: int, name: str, kind: type[_Runc | _Crun], where: str) -> _Runc | _Crun | None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        file = os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateUnknown(f"{where}/{name} cannot be opened: {error.strerror}") from None
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
            raise StateUnknown(f"{where}/{name} is no file of at most {_LARGEST} bytes")
        if found.st_uid not in {0, os.geteuid()} or found.st_mode & stat.S_IWOTH:
            raise StateUnknown(f"{where}/{name} may be written by others than root and mpsd")
        with os.fdopen(os.dup(file), "rb") as opened:
            return msgspec.json.decode(opened.read(_LARGEST + 1), type=kind)
    except (msgspec.MsgspecError, OSError) as error:
        raise StateUnknown(f"{where}/{name} is not understood: {error}") from None
    finally:
        os.close(file)


class PodProcesses:
    """The processes of this node's pods, by the pids that mpsd sees."""

    def __init__(self) -> None:
        self._node = node_cgroup((_PROC / "self/cgroup").read_text())

    def owner_of(self, pid: int) -> str | None:
        """The uid of its pod; None for a process of the host, and one that is gone."""
        return pod_of_cgroup(_cgroup(pid), self._node)

    def cgroups_of(self, pid: int) -> str:
        """The text of /proc/PID/cgroup."""
        return _cgroup(pid)

    def living(self, pods: Collection[str]) -> frozenset[str]:
        """Those, by uid, in which processes live. Looks at all processes."""
        found = set()
        if pods:
            for pid in processes.every_pid():
                pod = self.owner_of(pid)
                if pod and pod in pods and processes.identity_of(pid):
                    found.add(pod)
        return frozenset(found)


Whereabouts = ContainerProcesses | PodProcesses  # on a machine of its own; beside a kubelet
