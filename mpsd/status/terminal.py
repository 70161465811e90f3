"""A terminal that a program has to itself for a while: what it draws over, and the keys that it hears.

However the program ends, the terminal is as it was found.
"""

import json
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, RenderableType
from rich.text import Text

from mpsd.platform.console import StatusFormat, drawing, print_json, print_yaml
from mpsd.platform.imports import INTERRUPTED

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # another screen, without a cursor; and back
_HOME, _REST_OF_LINE, _REST = "\x1b[H", "\x1b[K", "\x1b[J"
_SMALLEST = os.terminal_size((20, 4))


class ControlKey(Enum):
    """What is no letter."""

    UP = auto()
    DOWN = auto()
    PAGE_UP = auto()
    PAGE_DOWN = auto()
    FIRST = auto()


_SEQUENCES = {
    "\x1b[A": ControlKey.UP,
    "\x1b[B": ControlKey.DOWN,
    "\x1bOA": ControlKey.UP,
    "\x1bOB": ControlKey.DOWN,
    "\x1b[5~": ControlKey.PAGE_UP,
    "\x1b[6~": ControlKey.PAGE_DOWN,
    "\x1b[H": ControlKey.FIRST,
    "\x1b[1~": ControlKey.FIRST,
}


class Terminal:
    """Standard output, and the keys of standard input where that is a terminal too."""

    def __init__(self) -> None:
        self._keys = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._kept: list[Any] | None = None  # None where there are no keys
        self._resized, self._resize = os.pipe()
        os.set_blocking(self._resize, False)

    def __enter__(self) -> Self:
        if self._keys is not None:
            self._kept = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys)
            quiet = termios.tcgetattr(self._keys)
            quiet[6][termios.VSUSP] = b"\0"  # Ctrl-Z would leave the terminal to a shell that cannot see its cursor
            termios.tcsetattr(self._keys, termios.TCSANOW, quiet)
        signal.signal(signal.SIGWINCH, self._note_size)
        self._write(_ENTER)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _where: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGWINCH, signal.SIG_DFL)
        with suppress(OSError):  # it was closed
            self._write(_LEAVE)
        if self._keys is not None and self._kept is not None:
            with suppress(termios.error):
                termios.tcsetattr(self._keys, termios.TCSAFLUSH, self._kept)
        os.close(self._resized)
        os.close(self._resize)

    @property
    def size(self) -> os.terminal_size:
        with suppress(OSError):
            found = os.get_terminal_size(sys.stdout.fileno())
            if found.columns and found.lines:
                return os.terminal_size((max(found.columns, _SMALLEST[0]), max(found.lines, _SMALLEST[1])))
        return os.terminal_size((80, 24))

    def draw(self, lines: Sequence[str]) -> None:
        """Over what was drawn before, without a moment in which nothing is there."""
        self._write(_HOME + "\r\n".join(f"{line}{_REST_OF_LINE}" for line in lines) + _REST)

    def wait(self, news: int, longest_s: float) -> tuple[Sequence[str | ControlKey], bool]:
        """The keys that were pressed, and whether the file `news` has something to read: after `longest_s` at most."""
        watched = [self._resized, news] + ([] if self._keys is None else [self._keys])
        ready, _, _ = select.select(watched, (), (), longest_s)
        if self._resized in ready:
            os.read(self._resized, 64)
        return (self._pressed() if self._keys in ready else ()), news in ready

    def _pressed(self) -> Sequence[str | ControlKey]:
        assert self._keys is not None
        read = os.read(self._keys, 1024).decode(errors="replace")
        if not read:
            self._keys = None  # nobody is there any more: no keys
            raise EOFError
        found: list[str | ControlKey] = []
        while read:
            sequence = next((one for one in _SEQUENCES if read.startswith(one)), None)
            found.append(_SEQUENCES[sequence] if sequence else read[0])
            read = read[len(sequence or read[0]) :]
        return found

    def _note_size(self, _signum: int, _frame: object) -> None:
        with suppress(BlockingIOError):
            os.write(self._resize, b".")

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


# A status on the screen, once or again at every change.
#
# What people see and what programs read are made of the same look.

if TYPE_CHECKING:  # only a watch draws over what it drew
    from rich.live import Live

_WIDE = 180
WIDEST = 1000  # of a cluster's tables: a terminal folds longer lines, as it does with kubectl's


@dataclass(frozen=True, slots=True)
class Frame:
    """One look. record: for programs, plain values; None where none of them reads. parts: for people, from top to
    bottom, asked for once."""

    record: object
    parts: Iterable[RenderableType]


def console(least_width: int = 0) -> Console:
    """A terminal as wide as it is, or as `least_width` says; wide enough for everything where there is none."""
    plain = Console(highlight=False, markup=False, emoji=False)
    if not sys.stdout.isatty():
        plain.width = max(_WIDE, least_width)
    elif plain.width < least_width:
        plain.width = least_width
    return plain


def print_frame(frame: Frame, output: StatusFormat, to: Console) -> None:
    match output:
        case StatusFormat.JSON:
            print_json(frame.record)
        case StatusFormat.YAML:
            print_yaml(frame.record)
        case StatusFormat.TEXT | StatusFormat.WIDE:
            for part in frame.parts:
                print_part(part, to)


def print_part(part: RenderableType, to: Console) -> None:
    """A text or a sheet, neither of which is ever wider than `to`: to look for lines to crop takes half of the time."""
    to.print(part, crop=False)


def _cut_at_the_edge(frame: Frame) -> Text:
    """What stays of each line on this terminal, rather than a little of each column."""
    wide = drawing(WIDEST)
    with wide.capture() as drawn:
        for part in frame.parts:
            wide.print(part)
    text = Text.from_ansi("\n".join(line.rstrip() for line in drawn.get().splitlines()))
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


class Screen:
    """Shows one frame after the other: over each other on a terminal, else below each other, JSON one a line."""

    def __init__(self, output: StatusFormat) -> None:
        self._output = output
        self._live: Live | None = None  # None where there is no terminal to draw on

    def show(self, frame: Frame) -> None:
        if self._live:
            self._live.update(_cut_at_the_edge(frame), refresh=True)
            return
        if self._output is StatusFormat.JSON:
            sys.stdout.write(json.dumps(frame.record) + "\n")
        elif self._output is StatusFormat.YAML:
            print_yaml(frame.record)
        else:
            print(time.strftime("%Y-%m-%dT%H:%M:%S%z"))
            print_frame(frame, self._output, console(WIDEST))
        sys.stdout.flush()

    @property
    def redraws(self) -> bool:
        """Whether a frame that has only grown older is worth showing."""
        return self._live is not None

    @contextmanager
    def until_interrupted(self) -> Iterator[None]:
        """Ends the program with INTERRUPTED at Ctrl-C; the last frame stays on the terminal."""
        from rich.live import Live

        try:
            if sys.stdout.isatty() and self._output in {StatusFormat.TEXT, StatusFormat.WIDE}:
                with Live(console=console(), auto_refresh=False, vertical_overflow="ellipsis") as self._live:
                    yield
            else:
                yield
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
