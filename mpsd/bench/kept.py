"""Benchmarks in files: what `mpsd bench --save` writes and `--show` reads.

One rule: a file that is not what it should be is refused with the place in it, never half used.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from mpsd.bench.rules.rows import VERSION, Benchmark, together
from mpsd.model.problem import InvalidInput, Problem
from mpsd.platform import records

_READABLE = 0o644
_REMEDY = "name a file that `mpsd bench --save FILE.json` or `-o json` has written"


def save(path: Path, benchmark: Benchmark) -> None:
    """Whole or not at all. OSError."""
    records.write(path, benchmark, _READABLE)


def problem_with_saving(option: str, path: Path) -> Problem | None:
    """Why it could not be saved there, asked before anything is measured; None where it can."""
    message = ""
    if not path.parent.is_dir():
        message = f"there is no folder {path.parent}"
    elif path.is_dir():
        message = "is a folder"
    elif not os.access(path.parent, os.W_OK | os.X_OK):
        message = f"{path.parent} takes no files of yours"
    return Problem("cannot-save", option, str(path), message, "name a file that can be made") if message else None


def load(paths: Sequence[Path]) -> Benchmark:
    """The runs in these files, at least one, as one. InvalidInput with what is wrong with each file."""
    found = [(str(path), _read(path)) for path in paths]
    if wrong := [run for _file, run in found if isinstance(run, Problem)]:
        raise InvalidInput("mpsd bench --show", wrong)
    return together([(file, run) for file, run in found if isinstance(run, Benchmark)])


class _Versioned(msgspec.Struct):
    version: int


def _read(path: Path) -> Benchmark | Problem:
    try:
        text = path.read_bytes()
        version = msgspec.json.decode(text, type=_Versioned).version
        if version != VERSION:
            message = f"this mpsd reads version {VERSION}"
            return Problem("other-version", f"{path}: version", str(version), message, "use the mpsd that wrote it")
        return msgspec.json.decode(text, type=Benchmark)
    except OSError as error:
        return Problem("unreadable-file", str(path), "", error.strerror or str(error), _REMEDY)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        message, _at, place = str(error).partition(" - at `$")
        where = f"{path}: {place.strip('.`')}" if place else str(path)
        return Problem("not-a-benchmark", where, "", f"is not as it should be: {message}", _REMEDY)


def record(benchmark: Benchmark, more: dict[str, Any]) -> dict[str, Any]:
    """As it is kept, for machines, with what else they are told."""
    plain: dict[str, Any] = msgspec.to_builtins(benchmark)
    return plain | more
