"""Writes a bundle as a tar.gz that exists as a whole or not at all, readable for its owner alone.

Until it is whole it has another name beside its own, and whatever ends this program removes that, except SIGKILL.
Progress goes to standard error, the name of the file alone to standard output.
"""

import io
import os
import signal
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

import mpsd
from mpsd.model.problem import InvalidInput, Problem, shown
from mpsd.operations.bundle.rules.contents import INDEX, MOST_IN_ALL, BundlePart, IndexEntry, cut, index, missing_part
from mpsd.platform.console import complaints
from mpsd.platform.imports import INTERRUPTED

_MODE = 0o600

Output = Annotated[
    str | None, typer.Option("-o", "--output", metavar="FILE", help="The file; default: ./mpsd-bundle-….tar.gz")
]
Put = Callable[[BundlePart], None]


@contextmanager
def bundle_to(output: str | None, program: str, of: str) -> Iterator[Put]:
    """Takes the parts; writes the index and prints the file's name after the last. After Ctrl-C nothing is left and the
    program ends. of: what the bundle is of, such as `node gpu-a1`. InvalidInput where the file cannot be written.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    folder = f"mpsd-bundle-{of.replace(' ', '-').replace('/', '-')}-{stamp}"
    path = Path(output or f"{folder}.tar.gz")
    if path.is_dir() or path.is_symlink() or (path.exists() and not path.is_file()):
        raise _unusable(path, program, "is not a plain file", "name the file to write")
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    entries: list[IndexEntry] = []
    packed = io.BytesIO()  # of MOST_IN_ALL bytes of text
    former = signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        with _writing(path, program):
            beside.touch(_MODE, exist_ok=False)
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            yield lambda part: entries.append(_put(tar, folder, part, sum(one.size for one in entries), program))
            made_at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
            _add(tar, f"{folder}/{INDEX}", index(of, mpsd.__version__, made_at, entries).encode())
        with _writing(path, program):
            with beside.open("wb") as file:
                file.write(packed.getbuffer())
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
    except KeyboardInterrupt:
        complaints().print(f"{program}: interrupted; nothing was written")
        sys.exit(INTERRUPTED)
    finally:
        signal.signal(signal.SIGTERM, former)
        beside.unlink(missing_ok=True)
    missing = sum(bool(entry.part.missing) for entry in entries)
    complaints().print(f"{program}: {len(entries) - missing} parts, {missing} not available; {INDEX} in it lists them")
    print(path, flush=True)


@contextmanager
def _writing(path: Path, program: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = "name a file where there is space and you may write"
        raise _unusable(path, program, f"cannot be written: {error.strerror}", remedy) from None


def _unusable(path: Path, program: str, why: str, remedy: str) -> InvalidInput:
    return InvalidInput(program, [Problem("setting", "-o", shown(str(path), 200), why, remedy)])


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = len(data), _MODE, int(time.time())
    tar.addfile(entry, io.BytesIO(data))


def _put(tar: tarfile.TarFile, folder: str, part: BundlePart, so_far: int, program: str) -> IndexEntry:
    if not part.missing and so_far >= MOST_IN_ALL:
        part = missing_part(part.file, part.about, f"the bundle already has {MOST_IN_ALL // 1024**2} MiB")
    if part.missing:
        complaints().print(f"{program}: not {part.file}: {part.missing}")
        return IndexEntry(part, 0)
    complaints().print(f"{program}: {part.file}")
    data, left_out = cut(part.text)
    _add(tar, f"{folder}/{part.file}", data)
    return IndexEntry(part, len(data), left_out)
