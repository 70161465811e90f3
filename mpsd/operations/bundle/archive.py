"""Writes a bundle as a tar.gz that exists as a whole or not at all, readable for its owner alone.

Until it is whole it has another name beside its own, and whatever ends this program removes that,
except SIGKILL. Progress goes to standard error, the name of the file alone to standard output.
"""

import io
import os
import signal
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import mpsd
from mpsd.model.problem import InvalidInput, shown
from mpsd.operations.bundle.rules.contents import (
    INDEX,
    MOST_IN_ALL,
    BundlePart,
    cut,
    index,
    missing_part,
)
from mpsd.platform import clock
from mpsd.platform.command_line import option
from mpsd.platform.console import complaints
from mpsd.platform.imports import INTERRUPTED

_MODE = 0o600

BUNDLE_OUTPUT = option(
    "-o", "--output", metavar="FILE", help="The file; default: ./mpsd-bundle-….tar.gz"
)
Put = Callable[[BundlePart], None]


@contextmanager
def bundle_to(output: str | None, program: str, of: str) -> Iterator[Put]:
    """Takes the parts; writes the index and prints the file's name after the last.

    After Ctrl-C nothing is left and the program ends. of: what the bundle is of, such as `node
    gpu-a1`. InvalidInput where the file cannot be written.
    """
    now = time.gmtime()
    plain = of.replace(" ", "-").replace("/", "-")
    folder = f"mpsd-bundle-{plain}-{time.strftime('%Y%m%dT%H%M%SZ', now)}"
    path = Path(output or f"{folder}.tar.gz")
    with _writing(path, program):
        is_other = path.is_symlink() or (path.exists() and not path.is_file())
    if is_other:
        raise _unusable(path, program, "is not a plain file", "name the file to write")
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    former = signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    taken: list[BundlePart] = []
    try:
        with _writing(path, program):
            beside.touch(_MODE, exist_ok=False)
            with beside.open("wb") as file:
                with tarfile.open(fileobj=file, mode="w:gz") as tar:
                    yield lambda part: taken.append(_put(tar, folder, part, taken, program))
                    title = f"Support bundle of {of}, made by mpsd {mpsd.__version__}"
                    made_at = time.strftime("%Y-%m-%d %H:%M:%S UTC", now)
                    _add(tar, f"{folder}/{INDEX}", index(f"{title} at {made_at}", taken).encode())
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
    except KeyboardInterrupt:
        complaints().print(f"{program}: interrupted; nothing was written")
        sys.exit(INTERRUPTED)
    finally:
        signal.signal(signal.SIGTERM, former)
        with suppress(OSError):
            beside.unlink()
    missing = sum(bool(part.missing) for part in taken)
    count = f"{len(taken) - missing} parts, {missing} not available"
    complaints().print(f"{program}: {count}; {INDEX} in it lists them")
    print(path, flush=True)


def _put(
    tar: tarfile.TarFile, folder: str, part: BundlePart, before: Sequence[BundlePart], program: str
) -> BundlePart:
    """The part as it is in the bundle."""
    if sum(len(one.text) for one in before) >= MOST_IN_ALL:
        full = f"the bundle already has {MOST_IN_ALL // 1024**2} MiB"
        part = missing_part(part.file, part.about, full)
    part = cut(part)
    if not part.missing:
        _add(tar, f"{folder}/{part.file}", part.text.encode(errors="replace"))
    said = part.file
    if part.missing:
        said = f"not {part.file}: {part.missing}"
    complaints().print(f"{program}: {said}")
    return part


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = len(data), _MODE, int(clock.wall_s())
    tar.addfile(entry, io.BytesIO(data))


@contextmanager
def _writing(path: Path, program: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = "name a file where there is space and you may write"
        raise _unusable(path, program, f"cannot be written: {error.strerror}", remedy) from None


def _unusable(path: Path, program: str, why: str, remedy: str) -> InvalidInput:
    return InvalidInput.of(program, "setting", "-o", shown(str(path), 200), why, remedy)
