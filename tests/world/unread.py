"""Places for a log that nobody reads, or that cannot be written."""

import fcntl
import os
import pty
import termios
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO

PIPE_BYTES = 4096

Place = Callable[[], AbstractContextManager[IO[bytes]]]


@contextmanager
def unread() -> Iterator[IO[bytes]]:
    """A pipe of 4 KiB that is full."""
    reads, writes = os.pipe()
    fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    os.write(writes, PIPE_BYTES * b"x")
    with os.fdopen(writes, "wb", 0) as file:
        yield file
    os.close(reads)


@contextmanager
def without_reader() -> Iterator[IO[bytes]]:
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "wb", 0) as file:
        yield file


@contextmanager
def full_disk() -> Iterator[IO[bytes]]:
    with Path("/dev/full").open("wb", 0) as file:
        yield file


@contextmanager
def paused_terminal() -> Iterator[IO[bytes]]:
    near, far = pty.openpty()
    termios.tcflow(far, termios.TCOOFF)
    with os.fdopen(far, "wb", 0) as file:
        yield file
    os.close(near)
