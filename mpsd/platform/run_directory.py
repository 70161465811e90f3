"""The run directory: its lock, its identity, and the files of each domain in it.

The lock is the kernel's, on a file that its user alone can open: it is released however its holder
ends, and nobody else can take it. The file has who holds it.
"""

import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mpsd.model.identity import ProcessIdentity
from mpsd.model.problem import InvalidInput
from mpsd.platform import processes
from mpsd.platform.processes import is_shortage

LOCK = "lock"
_LONGEST_IDENTITY = 80  # bytes
ENDS = "ends"  # below it; a file there for each client that mpsd ends
_FULL = {errno.ENOSPC, errno.EDQUOT}


class AlreadyHeld(Exception):
    """Another process holds the directory."""


class Vanished(Exception):
    """The directory, or what is needed in it, was removed while mpsd runs."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} was removed while mpsd ran: no GPU can be granted, and daemons can no longer"
            " be controlled. They and all programs still run; once the programs have ended, kill"
            " each nvidia-cuda-mps-control whose pid mpsd doctor reports, and start mpsd again"
        )
        self.path = path


class DirectoryIdentity:
    """The directory as first seen; open, so that no other can have its number."""

    def __init__(self, directory: Path, descriptor: int) -> None:
        self.directory = directory
        self._descriptor = descriptor

    @property
    def is_there(self) -> bool:
        try:
            there = self.directory.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # that it cannot be asked for now says nothing
        if not there.st_nlink:
            return False  # removed, and reached all the same, as by a container that has it mounted
        return os.path.samestat(there, os.fstat(self._descriptor))

    def lost(self, failures: Sequence[BaseException]) -> Path | None:
        """What was removed, where all of this failed by that."""
        if not self.is_there:
            return self.directory
        named = [one.filename for one in failures if isinstance(one, FileNotFoundError)]
        missing = [Path(os.fsdecode(name)) for name in named if isinstance(name, str | bytes)]
        inside = [path for path in missing if path.is_relative_to(self.directory)]
        return inside[0] if inside and len(inside) == len(failures) else None


@contextmanager
def in_sight(directory: Path) -> Iterator[DirectoryIdentity]:
    """Vanished where it is not there."""
    try:
        descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise Vanished(directory) from None
    try:
        yield DirectoryIdentity(directory, descriptor)
    finally:
        os.close(descriptor)


def have_others_reach_what_they_need() -> None:
    """Whatever umask root has, as 077 in a hardened shell: programs of all users come to the run
    directory, the sockets and the pipe directories, and write into none of them. What is private
    has a mode of its own. Another user's mpsd serves that user, who may be as private as wanted."""
    if os.geteuid() == 0:
        os.umask(0o022)


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """AlreadyHeld where another process has it.

    InvalidInput where it cannot be made, or another user may put files into it.
    """
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise _unusable(directory, f"cannot be used: {error.strerror}") from None
    try:
        _ours_alone(directory, descriptor)
        with _lock_in(directory, descriptor) as lock:
            _take(lock, directory)
            # a full one will do: daemons that run there are only taken over
            try:
                tempfile.TemporaryFile(dir=directory).close()
            except OSError as error:
                if error.errno not in _FULL:
                    raise _takes_no_files(directory, error) from None
            yield
    finally:
        os.close(descriptor)


@contextmanager
def _lock_in(directory: Path, descriptor: int) -> Iterator[int]:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        lock = os.open(LOCK, flags, 0o600, dir_fd=descriptor)
    except OSError as error:
        raise _takes_no_files(directory, error) from None
    try:
        yield lock
    finally:
        os.close(lock)


def _take(lock: int, directory: Path) -> None:
    """AlreadyHeld; InvalidInput where others may have opened the file, and can lock it."""
    seen = os.fstat(lock)
    if seen.st_uid != os.geteuid() or stat.S_IMODE(seen.st_mode) & 0o077:
        what = f"has {LOCK}, which other users may open (mode {stat.S_IMODE(seen.st_mode):04o})"
        raise _unusable(directory, what, f"remove {directory / LOCK}")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        why = f"another `mpsd up` or `mpsd control` holds {directory}; stop it first"
        raise AlreadyHeld(f"mpsd runs here already: {why}") from None
    if me := processes.identity_of(os.getpid()):
        text = f"{me.pid} {me.start_ticks} {me.boot_id}".ljust(_LONGEST_IDENTITY).encode()
        with suppress(OSError):  # a full one, of whose holder then nobody knows
            os.pwrite(lock, text, 0)  # in place, which takes no space from the second time on


def _ours_alone(directory: Path, descriptor: int) -> None:
    """InvalidInput where somebody else may replace what is in it, or has. A group loses its right
    to write."""
    seen = os.fstat(descriptor)
    ours = os.geteuid()
    if seen.st_uid != ours:
        raise _unusable(directory, "belongs to another user")
    if directory.is_symlink() and directory.lstat().st_uid not in {0, ours}:
        raise _unusable(directory, "is a symbolic link of another user")
    if seen.st_mode & stat.S_IWOTH:
        what = f"may be written by every user (mode {stat.S_IMODE(seen.st_mode):04o})"
        remedy = f"chmod go-w {directory}, after a look at what is in it; or {_ANOTHER}"
        raise _unusable(directory, what, remedy)
    if seen.st_mode & stat.S_IWGRP:
        os.fchmod(descriptor, stat.S_IMODE(seen.st_mode) & ~stat.S_IWGRP)
    for folder in directory.glob("gpu*"):
        for path in (folder, DomainFolder(folder).client, DomainFolder(folder).pipe):
            with suppress(FileNotFoundError, NotADirectoryError):
                found = path.lstat()
                is_link = stat.S_ISLNK(found.st_mode)
                if is_link or found.st_uid != ours:
                    kind = "a symbolic link" if is_link else "of another user"
                    what = f"has {path.relative_to(directory)}, which is {kind}"
                    raise _unusable(directory, what, f"remove {path}")


_ANOTHER = "name a folder of your own"


def _unusable(directory: Path, message: str, remedy: str = _ANOTHER) -> InvalidInput:
    rule = "run-dir-unusable"
    return InvalidInput.of("settings", rule, "--run-dir", str(directory), message, remedy)


def _takes_no_files(directory: Path, error: OSError) -> InvalidInput:
    return _unusable(directory, f"takes no files: {error.strerror}")


def why_unsaved(directory: Path, error: Exception) -> str:
    """Why a file could not be written there, with the remedy; empty for any other error."""
    if not isinstance(error, OSError) or not isinstance(error.filename, str):
        return ""
    if not Path(error.filename).is_relative_to(directory):
        return ""
    remedy = "see that mpsd can write there"
    if error.errno in _FULL:
        remedy = f"free space there (df -h {directory}; df -i {directory})"
    return f"no grant can be saved in {directory}: {error.strerror}; {remedy}"


def holder(directory: Path) -> int | None:
    """The pid of the mpsd that holds it; None while none does, or from another pid namespace. Who
    may not read the lock's file has the kernel's word, which counts for root and the own user: they
    alone can open it. OSError for a shortage."""
    try:
        with (directory / LOCK).open("rb") as file:
            text = file.read(_LONGEST_IDENTITY)
    except PermissionError:
        return _locked_by(directory / LOCK)
    except OSError as error:
        if is_shortage(error):
            raise
        return None
    with suppress(ValueError):
        pid, start_ticks, boot_id = text.decode().split()
        if processes.is_alive(ProcessIdentity(int(pid), int(start_ticks), boot_id)):
            return int(pid)
    return None


def _locked_by(path: Path) -> int | None:
    try:
        at = path.stat()
        with Path("/proc/locks").open() as locks:  # line by line: anybody may hold thousands
            return _holder_in(locks, at)
    except OSError as error:
        if is_shortage(error):
            raise
        return None


def _holder_in(locks: Iterable[str], at: os.stat_result) -> int | None:
    place = f"{os.major(at.st_dev):02x}:{os.minor(at.st_dev):02x}:{at.st_ino}"
    # proc(5): number, FLOCK, ADVISORY, WRITE, pid, device and inode, from, to
    for line in locks:
        fields = line.split()
        if fields[1:2] == ["FLOCK"] and fields[5:6] == [place]:
            pid = int(fields[4])
            if processes.user_of(pid) in {0, os.geteuid()}:
                return pid
    return None


# -- the files of a domain

LONGEST_SOCKET_PATH = 107  # sun_path of unix(7), without its closing zero


class _Inside:
    """A path inside a domain's folder."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __get__(self, folder: "DomainFolder", _kind: object = None) -> Path:
        return folder.path.joinpath(*self._names)


@dataclass(frozen=True, slots=True)
class DomainFolder:
    path: Path

    pipe = _Inside("pipe")  # mpsd's alone
    client = _Inside("client")  # holds the one socket that programs may reach
    log = _Inside("log", "control.log")
    record = _Inside("record.json")
    commands = _Inside("commands.json")
    limits = _Inside("limits.json")
    gate = _Inside("gate")  # there while the domain serves
    drain = _Inside("drain.json")  # there while the agent asks for a drain; outlives a stop of mpsd
    longest_socket = _Inside("pipe", "control_privileged")

    @property
    def written(self) -> tuple[Path, Path]:
        """The folders in which the agent and the daemon write what `mpsd control` reads."""
        return self.path, self.log.parent

    def make(self) -> None:
        folders = {self.path: 0o755, self.pipe: 0o700, self.client: 0o755, self.log.parent: 0o700}
        for folder, mode in folders.items():
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(mode)

    def clear(self, *, with_pipe: bool) -> None:
        """Clears all but client/, which containers mount, and log/."""
        if with_pipe:
            shutil.rmtree(self.pipe, ignore_errors=True)
        for file in (self.record, self.limits, self.commands):
            file.unlink(missing_ok=True)
