"""Writes a bundle and says how far it is, for `mpsd bundle` and `kubectl mps bundle`.

One rule: progress goes to standard error, the name of the file alone to standard output.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

import mpsd
from mpsd.model.problem import InvalidInput, Problem, shown
from mpsd.operations.bundle import archive
from mpsd.operations.bundle.rules.bundle import INDEX, MOST_IN_ALL, Entry, Part, cut, index, missing_part
from mpsd.platform.imports import INTERRUPTED
from mpsd.platform.output import complaints

Output = Annotated[
    str | None,
    typer.Option("-o", "--output", metavar="FILE", help="Where; else mpsd-bundle-….tar.gz here.", show_default=False),
]

Put = Callable[[Part], None]


@contextmanager
def bundle_to(output: str | None, program: str, of: str) -> Iterator[Put]:
    """of: what it is of, such as `node gpu-a1`. Writes the index and names the file when all parts were put; after
    Ctrl-C nothing is left and the program ends.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    folder = f"mpsd-bundle-{of.replace(' ', '-').replace('/', '-')}-{stamp}"
    path = Path(output or f"{folder}.tar.gz")
    if path.is_dir() or path.is_symlink() or (path.exists() and not path.is_file()):
        problem = Problem("setting", "-o", shown(str(path), 200), "is no plain file", "name one that is to be written")
        raise InvalidInput(program, [problem])
    entries: list[Entry] = []
    try:
        with archive.writing(path, folder) as tar:
            yield lambda part: entries.append(_put(tar, part, sum(entry.size for entry in entries), program))
            said = index(of, mpsd.__version__, time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()), entries)
            tar.add(INDEX, said.encode())
    except archive.CannotWrite as error:
        why = f"cannot be written: {error.strerror}"
        problem = Problem(
            "setting", "-o", shown(str(path), 200), why, "name a file where there is room and you may write"
        )
        raise InvalidInput(program, [problem]) from None
    except KeyboardInterrupt:
        complaints().print(f"{program}: interrupted; nothing was written")
        sys.exit(INTERRUPTED)
    missing = sum(bool(entry.part.missing) for entry in entries)
    complaints().print(
        f"{program}: {len(entries) - missing} parts, {missing} could not be had; {INDEX} in it says which"
    )
    print(path)
    sys.stdout.flush()


def _put(tar: archive.Archive, part: Part, so_far: int, program: str) -> Entry:
    if not part.missing and so_far >= MOST_IN_ALL:
        part = missing_part(part.file, part.about, f"the bundle has {MOST_IN_ALL // 1024**2} MiB already")
    if part.missing:
        complaints().print(f"{program}: not {part.file}: {part.missing}")
        return Entry(part, 0)
    complaints().print(f"{program}: {part.file}")
    written = cut(part.text)
    tar.add(part.file, written.data)
    return Entry(part, len(written.data), written.left_out)
