"""Which pod, or which container without Kubernetes, a process of this machine is in.

The kernel says so. For a pod it is its cgroup; for another container it is the cgroups that it has to itself (`docker
exec` starts processes that do not descend from its first). A container without such a cgroup is known by its pid
namespace, even in a cgroup that another one had to itself before; without one of its own either, by descent from its
first process. What a process carries or claims counts for nothing.
"""

import errno
import os
import stat
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from mpsd.model.identity import ProcessIdentity
from mpsd.platform import processes
from mpsd.platform.rules.cgroups import Cgroup, PodCgroup, alone_in, container_of_cgroup, node_cgroup, pod_of_cgroup

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


# -- the states that runc and crun keep, which name a container's first process ----------------------------------------
#
# A state that cannot be read is never taken for a container that is not there.

_LARGEST = 16 * 1024**2  # bytes; a state of runc holds the whole configuration, 6 kB for a plain one
_NO_SUCH_PLACE = frozenset({errno.ENOENT, errno.ENAMETOOLONG})  # nor can a runtime make one of such a name
_NO_SUCH_ROOT = _NO_SUCH_PLACE | {errno.ENOTDIR, errno.ELOOP}
Kind = TypeVar("Kind", bound="_Runc | _Crun")


class StateUnknown(Exception):
    """Nobody can say whether the container is there; the message says why."""


class _Runc(msgspec.Struct):
    """Of state.json (libcontainer's BaseState)."""

    init_process_pid: int
    init_process_start: int


class _Crun(msgspec.Struct, rename="kebab"):
    """Of status (libcrun_write_container_status)."""

    pid: int
    process_start_time: int


def first_process(root: str, container: str) -> ProcessIdentity | None:
    """The first process that a runtime's state names, alive or not; None where it knows no such container.

    root: where the runtime keeps its states. StateUnknown.
    """
    try:
        folder = _open_folder(root, container)
    except OSError as error:
        raise StateUnknown(f"{root}/{container} cannot be opened: {error.strerror}") from None
    if folder is None:
        return None
    try:
        if runc := _read(folder, "state.json", _Runc, f"{root}/{container}"):
            return _identity(runc.init_process_pid, runc.init_process_start)
        if crun := _read(folder, "status", _Crun, f"{root}/{container}"):
            return _identity(crun.pid, crun.process_start_time)
        return None
    finally:
        os.close(folder)


def _open_folder(root: str, container: str) -> int | None:
    """None where there is none. OSError. The runtime chose its root, and links on the way to it are the machine's own
    (/var/run)."""
    top = _open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, None, _NO_SUCH_ROOT)
    if top is None:
        return None
    try:
        return _open(container, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, top, _NO_SUCH_PLACE)
    finally:
        os.close(top)


def _open(path: str, flags: int, beside: int | None, absent: Collection[int]) -> int | None:
    """None for an error that means that there is nothing of this name. OSError."""
    try:
        return os.open(path, flags, dir_fd=beside)
    except OSError as error:
        if error.errno in absent:
            return None
        raise


def _identity(pid: int, start_ticks: int) -> ProcessIdentity | None:
    """No pid stands there before the first process is made, and after it was waited for."""
    return ProcessIdentity(pid, start_ticks, processes.boot_id()) if pid > 0 else None


def _read(folder: int, name: str, kind: type[Kind], where: str) -> Kind | None:
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateUnknown(f"{where}/{name} cannot be opened: {error.strerror}") from None
    try:
        _check(file, f"{where}/{name}")
        with os.fdopen(os.dup(file), "rb") as opened:
            return msgspec.json.decode(opened.read(_LARGEST + 1), type=kind)
    except (msgspec.MsgspecError, OSError) as error:
        raise StateUnknown(f"{where}/{name} is not understood: {error}") from None
    finally:
        os.close(file)


def _check(file: int, where: str) -> None:
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
        raise StateUnknown(f"{where} is no file of at most {_LARGEST} bytes")
    if found.st_uid not in {0, os.geteuid()} or found.st_mode & stat.S_IWOTH:
        raise StateUnknown(f"{where} may be written by others than root and mpsd")


class Whereabouts(Protocol):
    """`PodProcesses` beside a kubelet, `ContainerProcesses` on a machine of its own."""

    def owner_of(self, pid: int) -> str | None:
        """The uid in the cgroup of the pod that the process is in, or the grant of its container; None where it is in
        none that can be told."""


class PodProcesses:
    """The processes of this node's pods, those of nested pid namespaces too: pids are those that mpsd sees."""

    def __init__(self) -> None:
        self._node = node_cgroup((_PROC / "self/cgroup").read_text())

    def owner_of(self, pid: int) -> str | None:
        """The uid in its pod's cgroup."""
        pod = self.pod_of(pid)
        return pod.uid if pod else None

    def pod_of(self, pid: int) -> PodCgroup | None:
        """None for a process of the host, one that nobody can place, and one that is gone.

        A process stays in the pod that it began in, so this need be asked once for each.
        """
        try:
            text = (_PROC / str(pid) / "cgroup").read_text(errors="surrogateescape")
        except (FileNotFoundError, ProcessLookupError):
            return None
        return pod_of_cgroup(text, self._node)
