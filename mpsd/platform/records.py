"""Small files that outlive a process: one JSON value each, written whole or not at all.

A file that cannot be read as what it should be is treated as absent and reported, never half used.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

Value = TypeVar("Value")


class UnreadableRecord(Exception):
    """The file is there but is not what it should be."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}; it is ignored, remove it if this stays")
        self.reason = reason


def write(path: Path, value: object, mode: int = 0o600) -> None:
    """Replaces the file in one step; readers see the old value or the new one. OSError where that cannot be."""
    beside = path.with_name(f".{path.name}.new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:  # which writes all of it, or fails: a full disk takes a part
            os.fchmod(descriptor, mode)
            file.write(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
        beside.replace(path)
    except OSError:
        with suppress(OSError):
            beside.unlink()
        raise


def read(path: Path, kind: type[Value]) -> Value | None:
    """The value; None where there is no file. UnreadableRecord where there is something else."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, OSError) as error:
        raise UnreadableRecord(path, str(error)) from None


def remove(path: Path) -> None:
    path.unlink(missing_ok=True)
