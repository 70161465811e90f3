"""Reads what a daemon has added to its log since the last look, and keeps the file from growing without end.

One rule: the writer has the file open for appending, so it is cut in place after a copy, never renamed under it.
"""

import shutil
from pathlib import Path

ROTATE_BYTES = 8 * 1024 * 1024


class LogTail:
    """The end of one file that another process appends to. Lines come once each, whole."""

    def __init__(self, path: Path, *, from_end: bool) -> None:
        self._path = path
        self._position = path.stat().st_size if from_end and path.exists() else 0
        self._rest = b""

    def has_grown(self) -> bool:
        """Whether there is anything that `lines` has not given yet."""
        try:
            return self._path.stat().st_size != self._position
        except FileNotFoundError:
            return False

    def lines(self) -> list[str]:
        """What was added since the last call, without the last line if it is not whole yet."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return []
        if size < self._position:
            self._position, self._rest = 0, b""
        if size == self._position:
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            added = file.read()
        self._position += len(added)
        *whole, self._rest = (self._rest + added).split(b"\n")
        if self._position > ROTATE_BYTES:
            self._rotate()
        return [line.decode(errors="replace") for line in whole]

    def _rotate(self) -> None:
        shutil.copyfile(self._path, self._path.with_name(self._path.name + ".1"))
        with self._path.open("r+b") as file:
            file.truncate(0)
        self._position = 0
