"""Small files of one JSON value, written whole or not at all.

An object has a checksum of its text in a last field; one without, which a person wrote, is read as
it is. What is unreadable is never half used.
"""

import os
import re
import stat
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from mpsd.platform.processes import is_shortage

Value = TypeVar("Value")
_LARGEST_BYTES = 16 * 1024**2


class UnreadableRecord(Exception):
    """The file is there but is not what it should be."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}; it is ignored, remove it if this stays")
        self.path = path
        self.reason = reason


_CHECKED = re.compile(rb'(?P<text>.*),\n "crc32": "(?P<sum>[0-9a-f]{8})"\n}\n?', re.DOTALL)


def write(path: Path, value: object, mode: int = 0o600) -> None:
    """Replaces the file in one step, as `replace` does."""
    replace(path, _encoded(value), mode)


def replace(path: Path, content: bytes, mode: int) -> None:
    """Replaces the file in one step; readers see the old content or the new one. OSError, always
    with a path."""
    beside = path.with_name(f".{path.name}.new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        # else a full disk takes a part
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        error.filename = error.filename or str(path)
        raise


def _encoded(value: object) -> bytes:
    text = msgspec.json.format(msgspec.json.encode(value), indent=1)
    if not text.endswith(b"\n}"):  # no object with fields: there is no place for a checksum
        return text + b"\n"
    return b'%b,\n "crc32": "%08x"\n}\n' % (text[:-2], zlib.crc32(text[:-2]))


def read(path: Path, kind: type[Value]) -> Value | None:
    """None where there is no file. UnreadableRecord; OSError in a shortage."""
    try:
        data = _content(path)
        checked = _CHECKED.fullmatch(data)
        if checked and int(checked["sum"], 16) != zlib.crc32(checked["text"]):
            raise UnreadableRecord(path, "its content does not match its checksum")
        return msgspec.json.decode(data, type=kind)
    except FileNotFoundError:
        if path.is_symlink():
            raise UnreadableRecord(path, "is a link to nothing") from None
        return None
    except OSError as error:
        if is_shortage(error):
            raise
        raise UnreadableRecord(path, error.strerror or str(error)) from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableRecord(path, str(error)) from None


def _content(path: Path) -> bytes:
    """OSError; UnreadableRecord where it is no file, or others may have written it."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe is not waited for
    with open(os.open(path, flags), "rb") as file:  # noqa: PTH123
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise UnreadableRecord(path, "is no regular file")
        if found.st_uid not in {0, os.geteuid(), path.parent.stat().st_uid}:
            raise UnreadableRecord(path, f"belongs to user {found.st_uid}")
        if found.st_mode & stat.S_IWOTH:
            raise UnreadableRecord(path, "may be written by every user")
        data = file.read(_LARGEST_BYTES + 1)
    if len(data) > _LARGEST_BYTES:
        raise UnreadableRecord(path, f"larger than {_LARGEST_BYTES // 1024**2} MiB")
    return data
