"""Reads and replaces a file of a bundle.

One rule: a name is looked up in a folder that is open, never through a link, and a file is seen whole or not at all.
"""

import os
import stat

from mpsd.containers.runtime.refused import Refused

CONFIG = "config.json"
RECORD = "mpsd-runtime.json"  # what mpsd did to the bundle

_LONGEST = 16 * 1024**2  # bytes: hundreds of times what any engine writes
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def open_folder(path: str, what: str) -> int:
    """A descriptor. Refused, which names it as `what`."""
    try:
        return os.open(path or ".", _FOLDER)
    except OSError as error:
        raise Refused(f"{what} {path or '.'} cannot be opened: {error.strerror}; name a folder that is there") from None


def read(folder: int, name: str, what: str) -> bytes:
    """All of a regular file. FileNotFoundError; Refused for everything else that cannot be read."""
    try:
        file = os.open(name, _READ, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Refused(f"{what} cannot be opened: {error.strerror}; it must be a plain file, and no link") from None
    try:
        seen = os.fstat(file)
        if not stat.S_ISREG(seen.st_mode):
            raise Refused(f"{what} is not a plain file; put one in its place")
        if seen.st_size > _LONGEST:
            raise Refused(f"{what} has {seen.st_size} bytes; at most {_LONGEST} are read")
        return _all_of(file, what)
    finally:
        os.close(file)


def _all_of(file: int, what: str) -> bytes:
    data = bytearray()
    while piece := os.read(file, _LONGEST + 1 - len(data)):
        data += piece
        if len(data) > _LONGEST:
            raise Refused(f"{what} grows while it is read; at most {_LONGEST} bytes are read")
    return bytes(data)


def replace(folder: int, name: str, text: str, mode: int | None = None) -> None:
    """Puts a new file in the place of `name`, with its mode and owner, or with `mode`. OSError."""
    before = None if mode is not None else os.stat(name, dir_fd=folder, follow_symlinks=False)
    beside = f".{name}.mpsd"
    remove(folder, beside)  # of one that was killed here
    file = os.open(beside, _NEW, 0o600, dir_fd=folder)
    try:
        try:
            _write(file, text.encode("ascii"))
            if before is not None and (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(file, before.st_uid, before.st_gid)
            os.fchmod(file, stat.S_IMODE(before.st_mode) if before is not None else mode or 0o600)
        finally:
            os.close(file)
        os.rename(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        remove(folder, beside)
        raise


def remove(folder: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return


def _write(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def is_there(folder: int, name: str) -> bool:
    """Whether anything has this name, a link that leads nowhere too."""
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
