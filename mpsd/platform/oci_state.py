"""What runc and crun keep of a container: which process is its first.

One rule: a state that cannot be read is never taken for a container that is not there.
"""

import errno
import os
import stat
from collections.abc import Collection
from typing import TypeVar

import msgspec

from mpsd.model.identity import ProcessIdentity
from mpsd.platform import processes

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
