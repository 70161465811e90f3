"""Which pod, container or program's cgroup a process of this machine is in, by the kernel's word.

A pod is known by its cgroup, another container by the cgroups that it has to itself; without such a
cgroup by its pid namespace; without one of its own either, by descent from its first process. What
a process carries or claims counts for nothing.
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
    return (
        alone_in(text, _older(first, alone_in(text, ())))
        if text and processes.is_alive(first)
        else ()
    )


class ContainerProcesses:
    """settle: called when a process is in no known container, so that those just made are."""

    def __init__(self, settle: Callable[[], None]) -> None:
        self._settle = settle
        self._homes: dict[str, Collection[Cgroup]] = {}  # by grant
        self._without: dict[str, ProcessIdentity] = {}  # by grant of one without: its first process
        self._pids: dict[str, int] = {}  # by grant, its pid namespace
        self._own_pids = pid_namespace("self")

    def put(self, grant: str, first: ProcessIdentity, cgroups: Collection[Cgroup]) -> None:
        """From now on the container, or the program, that holds this grant is known by these."""
        self._pids[grant] = pid_namespace(first.pid)
        if cgroups:
            self._homes[grant] = cgroups
        else:
            self._without[grant] = first

    def take_out(self, grant: str) -> None:
        for known in (self._homes, self._without, self._pids):
            known.pop(grant, None)

    def owner_of(self, pid: int) -> str | None:
        """The grant in whose container or cgroup the process is; None where none is known."""
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
        known = namespace not in {0, self._own_pids}
        return next(
            (grant for grant in self._without if known and self._pids[grant] == namespace), None
        )

    def _by_line(self, pid: int) -> str | None:
        for one in processes.line_of(pid):
            for grant, first in self._without.items():
                if one == first.pid and processes.is_alive(first):
                    return grant
            if found := self._by_namespace(pid_namespace(one)):
                return found
        return None


def _older(first: ProcessIdentity, cgroups: Collection[Cgroup]) -> Iterator[str]:
    """The texts of /proc/PID/cgroup of processes that started before it and may be in one of these.
    Whoever ends meanwhile is left out."""
    paths = {f":{cgroup.path}" for cgroup in cgroups}
    for pid in filter(str.isdecimal, os.listdir(_PROC)):  # noqa: PTH208
        theirs = _cgroup(int(pid))
        if any(path in theirs for path in paths):
            found = processes.identity_of(int(pid))
            if found and found.start_ticks < first.start_ticks:
                yield theirs


def _cgroup(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cgroup", errors="surrogateescape") as file:  # noqa: PTH123
            return file.read()
    except (FileNotFoundError, ProcessLookupError):
        return ""  # it is gone


def pid_namespace(pid: int | str) -> int:
    """Its number; 0 where it is gone, or not ours to see."""
    try:
        return (_PROC / str(pid) / "ns/pid").stat().st_ino
    except OSError:
        return 0


_TREE = Path("/sys/fs/cgroup")


def is_frozen(pid: int) -> bool:
    """Whether its cgroup keeps it from running, as of a paused container. False if unreadable."""
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
    return next(
        (one for one in (tree, tree / "unified") if (one / "cgroup.controllers").exists()), None
    )


def let_count(root: Path, folder: Path) -> None:
    """Has the kernel count device memory in a cgroup of mpsd's own, where it can (dmem, 6.14), so
    that it can have a limit."""
    for above in [
        each for each in reversed(folder.parents) if each == root or root in each.parents
    ]:
        with suppress(OSError):
            if "dmem" in (above / "cgroup.controllers").read_text().split():
                (above / "cgroup.subtree_control").write_text("+dmem")


class ProgramCgroups:
    """The cgroups that mpsd makes for programs: in v2, or the controller pids or memory of v1,
    whichever is first there and writable (in the named hierarchy systemd lets users move their
    processes). why_not: why there can be none; empty where there can. tree: their mount."""

    def __init__(self, tree: Path = _TREE) -> None:
        self._folders = {"": tree if (tree / _MEMBERS).exists() else tree / "unified"}
        self._folders |= {name: tree / name for name in ("pids", "memory")}
        usable = (
            name for name, folder in self._folders.items() if os.access(folder / _MEMBERS, os.W_OK)
        )
        self._hierarchy = next(usable, None) if os.geteuid() == 0 else None
        self.why_not = (
            "" if self._hierarchy is not None else f"mpsd may not create cgroups in {tree}"
        )

    def place_for(self, program: ProcessIdentity, grant: str) -> Cgroup | None:
        """The cgroup to make for it; None where there can be none."""
        if self._hierarchy is None:
            return None
        return program_cgroup(_cgroup(program.pid), self._hierarchy, grant, self._is_roots)

    def grant_of(self, one: ProcessIdentity) -> str | None:
        """The grant in whose program's cgroup it is, or that it was started with where there can be
        no cgroups. Names that others give to theirs count for nothing."""
        if self._hierarchy is None:
            return (processes.environment_of(one.pid) or {}).get(GRANT)
        named = re.search("/mpsd-([0-9a-f]{12})(?![^/\n])", _cgroup(one.pid))
        return named[1] if named and self.found_again(one, named[1]) else None

    def found_again(self, program: ProcessIdentity, grant: str) -> tuple[Cgroup, ...]:
        """The cgroup that was made for it, where the program is in there, or below."""
        made = self.place_for(program, grant)
        return (made,) if made and any(map(made.holds, cgroups_in(_cgroup(program.pid)))) else ()

    def take_in(self, program: ProcessIdentity, made: Cgroup) -> str:
        """Makes the cgroup and moves this very process into it; why not, empty where it is in."""
        folder = self._folder(made)
        try:
            folder.mkdir(mode=0o755)
            if not made.hierarchy:
                let_count(self._folders[""], folder)
            if processes.is_alive(program):
                (folder / _MEMBERS).write_text(str(program.pid))
        except OSError as error:
            return f"{folder}: {error.strerror}"
        is_in = made in cgroups_in(_cgroup(program.pid)) and processes.is_alive(program)
        return "" if is_in else f"{program} did not enter {folder}"

    def has_processes(self, made: Cgroup) -> bool:
        """Whether any process is in it or below it."""
        folder = self._folder(made)
        try:
            if not made.hierarchy:
                return "populated 1" in (folder / "cgroup.events").read_text()
            return any(
                (Path(below) / _MEMBERS).read_text() for below, _folders, _files in os.walk(folder)
            )
        except OSError as error:
            # these are removed, of others nothing is known
            return error.errno not in {errno.ENOENT, errno.ENODEV}

    def processes_in(self, made: Cgroup) -> Iterator[ProcessIdentity]:
        """Those that are in it or below it, by the kernel's word of each."""
        for below, _folders, _files in os.walk(self._folder(made)):
            with suppress(OSError):
                for pid in (Path(below) / _MEMBERS).read_text().split():
                    found = processes.identity_of(int(pid))
                    is_in = any(map(made.holds, cgroups_in(_cgroup(int(pid)))))
                    if found and is_in and processes.is_alive(found):
                        yield found

    def remove(self, made: Cgroup) -> None:
        """Removes it, with those made below it; the kernel keeps one with a process."""
        for below, _folders, _files in os.walk(self._folder(made), topdown=False):
            with suppress(OSError):
                Path(below).rmdir()

    def _folder(self, made: Cgroup) -> Path:
        name = next((name for name in self._folders if name in made.hierarchy.split(",")), "")
        return self._folders[name] / made.path.lstrip("/")

    def _is_roots(self, path: str) -> bool:
        folder = self._folders[self._hierarchy or ""] / path.lstrip("/")
        try:
            found = [folder.stat(), (folder / _MEMBERS).stat()]
        except OSError:
            return False
        return all(
            one.st_uid == 0 and not one.st_mode & (stat.S_IWGRP | stat.S_IWOTH) for one in found
        )


# -- the states that runc and crun keep, which name a container's first process ------------------
# A state that cannot be read is never taken for a container that is not there.

_LARGEST = 16 * 1024**2  # bytes; a state of runc holds the whole configuration
# nor can a runtime make one of such a name
_NO_SUCH_PLACE = frozenset({errno.ENOENT, errno.ENAMETOOLONG})


class StateUnknown(Exception):
    """Nobody can say whether the container is there; the message says why."""


class _Runc(msgspec.Struct):
    """Of state.json (libcontainer's BaseState)."""

    pid: int = msgspec.field(name="init_process_pid")
    start_ticks: int = msgspec.field(name="init_process_start")


class _Crun(msgspec.Struct):
    """Of status (libcrun_write_container_status)."""

    pid: int
    start_ticks: int = msgspec.field(name="process-start-time")


def first_process(root: str, container: str) -> ProcessIdentity | None:
    """The first process that a runtime's state names, alive or not; None where it knows no such
    container. root: where the runtime keeps its states. StateUnknown."""
    try:
        folder = _open_folder(root, container)
    except OSError as error:
        raise StateUnknown(f"{root}/{container} cannot be opened: {error.strerror}") from None
    if folder is None:
        return None
    try:
        state = _read(folder, "state.json", _Runc, f"{root}/{container}")
        state = state or _read(folder, "status", _Crun, f"{root}/{container}")
    finally:
        os.close(folder)
    # No pid stands there before the first process is made, and after it was waited for.
    return (
        ProcessIdentity(state.pid, state.start_ticks, processes.boot_id())
        if state and state.pid > 0
        else None
    )


def _open_folder(root: str, container: str) -> int | None:
    """None where there is none. OSError. Links on the way to the root are the machine's own."""
    top = None
    absent = _NO_SUCH_PLACE | {errno.ENOTDIR, errno.ELOOP}
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        top = os.open(root, flags)
        absent = _NO_SUCH_PLACE
        return os.open(container, flags | os.O_NOFOLLOW, dir_fd=top)
    except OSError as error:
        if error.errno in absent:
            return None
        raise
    finally:
        if top is not None:
            os.close(top)


def _read(folder: int, name: str, kind: type[_Runc | _Crun], where: str) -> _Runc | _Crun | None:
    try:
        file = os.open(
            name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
        )
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
        """The uid of its pod, in which it stays; None for a process of the host, one that nobody
        can place, and one that is gone."""
        return pod_of_cgroup(_cgroup(pid), self._node)

    def cgroups_of(self, pid: int) -> str:
        """Its cgroups, as /proc/PID/cgroup has them; empty when it is gone."""
        return _cgroup(pid)

    def living(self, pods: Collection[str]) -> frozenset[str]:
        """Those of these pods, by uid, in which processes live. Looks at all processes."""
        pids = filter(str.isdecimal, os.listdir(_PROC)) if pods else ()  # noqa: PTH208  # as above
        found = ((int(pid), self.owner_of(int(pid))) for pid in pids)
        return frozenset(
            pod for pid, pod in found if pod in pods and pod and processes.identity_of(pid)
        )


Whereabouts = ContainerProcesses | PodProcesses  # on a machine of its own; beside a kubelet
