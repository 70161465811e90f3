"""What a process of mpsd logs, for tests that run its parts in their own."""

from collections.abc import Iterator
from contextlib import contextmanager

from mpsd.platform.logs import Line, take_by


@contextmanager
def told_lines() -> Iterator[list[Line]]:
    """The lines that are logged meanwhile, which are written nowhere."""
    lines: list[Line] = []
    before = take_by(lines.append)
    try:
        yield lines
    finally:
        take_by(before)
