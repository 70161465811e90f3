"""Writes a bundle as a tar.gz that exists as a whole or not at all, readable for its owner alone.

Until it is whole it has another name beside its own, and whatever ends this program removes that, except SIGKILL.
Progress goes to standard error, the name of the file alone to standard output.
"""

import gzip
import io
import os
import signal
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

import mpsd
from mpsd.model.problem import InvalidInput, Problem, shown
from mpsd.operations.bundle.rules.contents import INDEX, MOST_IN_ALL, BundlePart, IndexEntry, cut, index, missing_part
from mpsd.platform.console import complaints
from mpsd.platform.imports import INTERRUPTED

_MODE = 0o600

Output = Annotated[
    str | None,
    typer.Option("-o", "--output", metavar="FILE", help="Where; else mpsd-bundle-….tar.gz here.", show_default=False),
]
Put = Callable[[BundlePart], None]


class CannotWrite(OSError):
    """The file cannot be written; distinct from the errors of what is read for it."""


class Archive:
    """A tar file that takes files while it is open."""

    def __init__(self, tar: tarfile.TarFile, folder: str) -> None:
        self._tar = tar
        self._folder = folder

    def add(self, file: str, data: bytes) -> None:
        entry = tarfile.TarInfo(f"{self._folder}/{file}")
        entry.size, entry.mode, entry.mtime = len(data), _MODE, int(time.time())
        self._tar.addfile(entry, io.BytesIO(data))


@contextmanager
def bundle_to(output: str | None, program: str, of: str) -> Iterator[Put]:
    """Takes the parts; writes the index and prints the file's name after the last. After Ctrl-C nothing is left and the
    program ends. of: what the bundle is of, such as `node gpu-a1`.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    folder = f"mpsd-bundle-{of.replace(' ', '-').replace('/', '-')}-{stamp}"
    path = Path(output or f"{folder}.tar.gz")
    if path.is_dir() or path.is_symlink() or (path.exists() and not path.is_file()):
        problem = Problem("setting", "-o", shown(str(path), 200), "is not a plain file", "name the file to write")
        raise InvalidInput(program, [problem])
    entries: list[IndexEntry] = []
    try:
        with _writing(path, folder) as tar:
            yield lambda part: entries.append(_put(tar, part, sum(entry.size for entry in entries), program))
            made_at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
            tar.add(INDEX, index(of, mpsd.__version__, made_at, entries).encode())
    except CannotWrite as error:
        why = f"cannot be written: {error.strerror}"
        remedy = "name a file where there is space and you may write"
        raise InvalidInput(program, [Problem("setting", "-o", shown(str(path), 200), why, remedy)]) from None
    except KeyboardInterrupt:
        complaints().print(f"{program}: interrupted; nothing was written")
        sys.exit(INTERRUPTED)
    missing = sum(bool(entry.part.missing) for entry in entries)
    complaints().print(f"{program}: {len(entries) - missing} parts, {missing} not available; {INDEX} in it lists them")
    print(path)
    sys.stdout.flush()


@contextmanager
def _writing(path: Path, folder: str) -> Iterator[Archive]:
    """An archive that gets its name when the block ends well. folder: of all files in it. CannotWrite."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with _as_cannot_write():
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    former = signal.signal(signal.SIGTERM, _end)
    try:
        with _Raw(descriptor, "wb") as raw:
            with gzip.GzipFile("", "wb", fileobj=raw) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
                yield Archive(tar, folder)
            with _as_cannot_write():
                os.fsync(raw.fileno())
        with _as_cannot_write():
            beside.replace(path)
    finally:
        signal.signal(signal.SIGTERM, former)
        with suppress(FileNotFoundError):
            beside.unlink()


class _Raw(io.FileIO):
    def write(self, data: Any, /) -> int:
        """All of it: gzip takes it for granted."""
        with _as_cannot_write():
            left = memoryview(data)
            while left:
                left = left[super().write(left) :]
            return len(data)


@contextmanager
def _as_cannot_write() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CannotWrite(error.errno, error.strerror) from None


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _put(tar: Archive, part: BundlePart, so_far: int, program: str) -> IndexEntry:
    if not part.missing and so_far >= MOST_IN_ALL:
        part = missing_part(part.file, part.about, f"the bundle already has {MOST_IN_ALL // 1024**2} MiB")
    if part.missing:
        complaints().print(f"{program}: not {part.file}: {part.missing}")
        return IndexEntry(part, 0)
    complaints().print(f"{program}: {part.file}")
    written = cut(part.text)
    tar.add(part.file, written.data)
    return IndexEntry(part, len(written.data), written.left_out)
