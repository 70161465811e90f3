"""The log that a control daemon writes, read from outside, with a bound on each look."""

import contextlib
import os
from pathlib import Path

ROTATE_BYTES = 8 * 1024 * 1024
MOST_BYTES = 64 * 1024  # of the log in one look


class LogTail:
    """The end of a log that another process appends to, by whole lines. The writer keeps the file
    open, so a long one is copied and cut in place. Any tenant may write as much as it likes: of
    more than `MOST_BYTES` since the last look only the end is read, and has_left_out is set."""

    def __init__(self, path: Path, *, from_end: bool) -> None:
        self._path = path
        self.has_left_out = False
        self._position = 0
        if from_end and path.exists():
            self._position = path.stat().st_size
        self._rest = b""

    def has_grown(self) -> bool:
        try:
            return self._path.stat().st_size != self._position
        except FileNotFoundError:
            return False

    def lines(self) -> list[str]:
        """What was added since the last call, but a line that is not whole yet."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return []
        if size < self._position:
            self._position = 0
            self._rest = b""
        if size == self._position:
            return []
        self.has_left_out = size - self._position > MOST_BYTES
        if self.has_left_out:
            self._position = size - MOST_BYTES
            self._rest = b""
        with self._path.open("rb") as file:
            file.seek(self._position)
            added = file.read(MOST_BYTES)
        self._position += len(added)
        *whole, rest = (self._rest + added).split(b"\n")
        self._rest = rest[-MOST_BYTES:]
        if self._position > ROTATE_BYTES:
            with contextlib.suppress(OSError):  # such as a full disk: later
                self._cut()
        return [line.decode(errors="replace") for line in whole]

    def _cut(self) -> None:
        """Its last ROTATE_BYTES become the file `.1`."""
        with self._path.open("rb") as file:
            file.seek(max(0, self._position - ROTATE_BYTES))
            kept = file.read(ROTATE_BYTES)
        self._path.with_name(self._path.name + ".1").write_bytes(kept)
        os.truncate(self._path, 0)
        self._position = 0
