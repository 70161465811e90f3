"""Writes a tar.gz that is there as a whole or not at all, for its owner's eyes only.

One rule: until it is whole it has another name beside its own, and whatever ends this program takes that away, but
SIGKILL.
"""

import gzip
import io
import os
import signal
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

_MODE = 0o600


class CannotWrite(OSError):
    """Why this file cannot be written, whatever else goes wrong meanwhile."""


class Archive:
    """Takes files while it is open."""

    def __init__(self, tar: tarfile.TarFile, folder: str) -> None:
        self._tar = tar
        self._folder = folder

    def add(self, file: str, data: bytes) -> None:
        entry = tarfile.TarInfo(f"{self._folder}/{file}")
        entry.size, entry.mode, entry.mtime = len(data), _MODE, int(time.time())
        self._tar.addfile(entry, io.BytesIO(data))


@contextmanager
def writing(path: Path, folder: str) -> Iterator[Archive]:
    """path gets it when the block ends well. folder: the one that all files in it are in. CannotWrite."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with _told():
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    former = signal.signal(signal.SIGTERM, _end)
    try:
        with _Raw(descriptor, "wb") as raw:
            with gzip.GzipFile("", "wb", fileobj=raw) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
                yield Archive(tar, folder)
            with _told():
                os.fsync(raw.fileno())
        with _told():
            beside.replace(path)
    finally:
        signal.signal(signal.SIGTERM, former)
        with suppress(FileNotFoundError):
            beside.unlink()


class _Raw(io.FileIO):
    def write(self, data: Any, /) -> int:
        """All of it: gzip takes it for granted."""
        with _told():
            left = memoryview(data)
            while left:
                left = left[super().write(left) :]
            return len(data)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CannotWrite(error.errno, error.strerror) from None


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
