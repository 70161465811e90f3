"""A program on a terminal of its own, and what somebody in front of it sees."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyte

SOON_S = 60.0


class Screen:
    """lines: what is seen now, from top to bottom. before: how the terminal was set when the
    program began."""

    def __init__(
        self,
        argv: Sequence[object],
        environment: Mapping[str, str],
        columns: int = 100,
        rows: int = 24,
    ) -> None:
        self._near, self._far = pty.openpty()
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._size(columns, rows)
        self.raw = b""
        self.before = termios.tcgetattr(self._far)
        self._program = subprocess.Popen(
            [str(word) for word in argv],
            stdin=self._far,
            stdout=self._far,
            stderr=self._far,
            env={**environment, "TERM": "xterm-256color"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def pid(self) -> int:
        return self._program.pid

    def press(self, keys: str) -> None:
        os.write(self._near, keys.encode())

    def send(self, signum: signal.Signals) -> None:
        self._program.send_signal(signum)

    def resize(self, columns: int, rows: int) -> None:
        self._screen.resize(rows, columns)
        self._size(columns, rows)

    def until(self, seen: Callable[["Screen"], Any], what: str) -> Any:
        deadline = time.monotonic() + SOON_S
        while not (found := seen(self)):
            assert time.monotonic() < deadline, f"never seen: {what}; seen:\n{self.text}"
            self._hear(0.1)
        return found

    def shows(self, words: str) -> None:
        self.until(lambda screen: words in screen.text, words)

    def ended(self) -> int:
        deadline = time.monotonic() + SOON_S
        while self._program.poll() is None:
            assert time.monotonic() < deadline, f"it does not end; seen:\n{self.text}"
            self._hear(0.1)
        while self._hear(0.0):
            pass
        return self._program.returncode

    def is_as_it_was(self) -> bool:
        """The same settings, a cursor, and the screen that was there before."""
        entered, left = self.raw.rfind(b"\x1b[?1049h"), self.raw.rfind(b"\x1b[?1049l")
        shown = self.raw.rfind(b"\x1b[?25h") > self.raw.rfind(b"\x1b[?25l")
        return termios.tcgetattr(self._far) == self.before and left > entered >= 0 and shown

    def close(self) -> None:
        if self._program.poll() is None:
            self._program.kill()
        self._program.wait(SOON_S)
        os.close(self._near)
        os.close(self._far)

    def _hear(self, longest_s: float) -> bool:
        if not select.select([self._near], (), (), longest_s)[0]:
            return False
        heard = os.read(self._near, 65536)
        self.raw += heard
        self._stream.feed(heard)
        return True

    def _size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._far, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@contextmanager
def on_screen(
    argv: Sequence[object], environment: Mapping[str, str], columns: int = 100, rows: int = 24
) -> Iterator[Screen]:
    screen = Screen(argv, environment, columns, rows)
    try:
        yield screen
    finally:
        screen.close()
