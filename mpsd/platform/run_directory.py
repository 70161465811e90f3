"""The run directory: its lock, its identity, and the files of each domain in it.

It belongs to one `mpsd control` (or `mpsd up`) at a time, since two would restart each other's daemons. The lock is the
kernel's, on the directory itself, so it is released however its holder ends.
"""

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from mpsd.model.problem import InvalidInput, Problem


class AlreadyHeld(Exception):
    """Another process holds the directory."""


class Vanished(Exception):
    """The directory, or what is needed in it, was removed by somebody while mpsd runs."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} was removed while mpsd ran: nobody can be given a GPU, and no daemon that runs can be commanded or"
            " found again. Daemons and programs were left as they are; once the programs have ended, kill each"
            " nvidia-cuda-mps-control whose pid mpsd doctor says, and start mpsd again"
        )
        self.path = path


class DirectoryIdentity:
    """The directory as it was when it was first seen; open, so that no other can have its number."""

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
        """What was removed, where that is why all of this failed; None where it is not."""
        if not self.is_there:
            return self.directory
        missing = [Path(os.fsdecode(one.filename)) for one in failures if _is_missing(one)]
        inside = [path for path in missing if path.is_relative_to(self.directory)]
        return inside[0] if inside and len(inside) == len(failures) else None


def _is_missing(failure: BaseException) -> TypeGuard[FileNotFoundError]:
    return isinstance(failure, FileNotFoundError) and isinstance(failure.filename, str | bytes)


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


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Holds the directory, which is made if need be; AlreadyHeld where another process does.

    InvalidInput where it cannot be made, or belongs to another user, who could then answer in our name.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise _unusable(directory, f"cannot be used: {error.strerror}") from None
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise _unusable(directory, "belongs to another user")
        _lock(descriptor, directory)
        _try_writing(directory)
        yield
    finally:
        os.close(descriptor)


def _try_writing(directory: Path) -> None:
    """One that is full may be used all the same: daemons that run there are only taken over."""
    try:
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise _unusable(directory, f"takes no files: {error.strerror}") from None


def _unusable(directory: Path, message: str) -> InvalidInput:
    problem = Problem("run-dir-unusable", "--run-dir", str(directory), message, "name a folder of your own")
    return InvalidInput("settings", [problem])


def _lock(descriptor: int, directory: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise AlreadyHeld(
            f"mpsd runs here already: another `mpsd up` or `mpsd control` holds {directory}; stop that one first"
        ) from None


def holder(directory: Path) -> int | None:
    """The pid of the process that holds the directory, by the kernel's word; None while nobody does, or it is not told.

    A pid as this process sees it: where the two are in different pid namespaces, there is none.
    """
    try:
        at = directory.stat()
        locks = Path("/proc/locks").read_text()
    except OSError:
        return None
    place = f"{os.major(at.st_dev):02x}:{os.minor(at.st_dev):02x}:{at.st_ino}"
    for line in locks.splitlines():  # proc(5): number, FLOCK, ADVISORY, WRITE, pid, device and inode, from, to
        fields = line.split()
        if fields[1:2] == ["FLOCK"] and fields[5:6] == [place]:
            return int(fields[4]) if int(fields[4]) > 0 else None
    return None


# -- the files of a domain ---------------------------------------------------------------------------------------------

LONGEST_SOCKET_PATH = 107  # sun_path of unix(7), without its closing zero


@dataclass(frozen=True, slots=True)
class DomainFolder:
    """Where a domain's files are: pipe/ is mpsd's alone, client/ holds the one socket that programs may reach.

    gate: there while the domain serves. drain: there while the agent asks for a drain; it outlives a stop of mpsd.
    """

    path: Path

    @property
    def pipe(self) -> Path:
        return self.path / "pipe"

    @property
    def client(self) -> Path:
        return self.path / "client"

    @property
    def log(self) -> Path:
        return self.path / "log" / "control.log"

    @property
    def record(self) -> Path:
        return self.path / "record.json"

    @property
    def commands(self) -> Path:
        return self.path / "commands.json"

    @property
    def limits(self) -> Path:
        return self.path / "limits.json"

    @property
    def gate(self) -> Path:
        return self.path / "gate"

    @property
    def drain(self) -> Path:
        return self.path / "drain.json"

    def make(self) -> None:
        """Makes what is not there yet, with its modes."""
        for folder, mode in ((self.path, 0o755), (self.pipe, 0o700), (self.client, 0o755), (self.log.parent, 0o700)):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(mode)

    def clear(self, *, with_pipe: bool) -> None:
        """Removes what a stopped daemon leaves; client/ stays for containers that have it mounted, log/ for people."""
        if with_pipe:
            shutil.rmtree(self.pipe, ignore_errors=True)
        for file in (self.record, self.limits, self.commands):
            file.unlink(missing_ok=True)

    def longest_socket(self) -> Path:
        return self.pipe / "control_privileged"
