"""A status on a terminal, once or at every change, and a screen with keys, after which the terminal
is as it was found."""

import json
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.text import Text

from mpsd.platform.console import StatusFormat, print_json
from mpsd.platform.imports import INTERRUPTED

if TYPE_CHECKING:  # only a watch draws over what it drew
    from rich.live import Live

# -- a screen with keys

# another screen, without a cursor; and back
_ENTER = "\x1b[?1049h\x1b[?25l"
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME = "\x1b[H"
_REST_OF_LINE = "\x1b[K"
_REST = "\x1b[J"
_SMALLEST = os.terminal_size((20, 4))
# keys that are no letter
UP = "up"
DOWN = "down"
PAGE_UP = "page up"
PAGE_DOWN = "page down"
FIRST = "first"
_SEQUENCES = {"\x1b[A": UP, "\x1b[B": DOWN, "\x1b[5~": PAGE_UP, "\x1b[6~": PAGE_DOWN}
_SEQUENCES |= {"\x1b[H": FIRST, "\x1bOA": UP, "\x1bOB": DOWN, "\x1b[1~": FIRST}


@dataclass(frozen=True, slots=True)
class Terminal:
    """Standard output."""

    keys: int | None  # the file they are read from; None where there are none
    resized: int  # a file that has something to read after a signal, such as that of another size

    @property
    def size(self) -> os.terminal_size:
        with suppress(OSError):
            found = os.get_terminal_size(sys.stdout.fileno())
            if found.columns and found.lines:
                return os.terminal_size(tuple(map(max, found, _SMALLEST)))
        return os.terminal_size((80, 24))

    def draw(self, lines: Sequence[str]) -> None:
        """Draws over what was drawn before."""
        _write(_HOME + "\r\n".join(f"{line}{_REST_OF_LINE}" for line in lines) + _REST)

    def wait(self, news: int, longest_s: float) -> tuple[Sequence[str], bool]:
        """The keys that were pressed, and whether `news` has something to read. EOFError where the
        keys have ended."""
        watched = [one for one in (self.resized, news, self.keys) if one is not None]
        ready, _, _ = select.select(watched, (), (), longest_s)
        if self.resized in ready:
            os.read(self.resized, 64)
        pressed: Sequence[str] = ()
        if self.keys is not None and self.keys in ready:
            pressed = _pressed(self.keys)
        return pressed, news in ready


def _pressed(keys: int) -> Sequence[str]:
    read = os.read(keys, 1024).decode(errors="replace")
    if not read:
        raise EOFError
    found = []
    while read:
        sequence = next((one for one in _SEQUENCES if read.startswith(one)), read[0])
        found.append(_SEQUENCES.get(sequence, sequence))
        read = read.removeprefix(sequence)
    return found


@contextmanager
def own_terminal() -> Iterator[Terminal]:
    """Nothing else draws on it meanwhile."""
    keys = sys.stdin.fileno() if sys.stdin.isatty() else None
    before = None if keys is None else termios.tcgetattr(keys)
    resized, note = os.pipe()
    os.set_blocking(note, False)
    signal.signal(signal.SIGWINCH, lambda *_: None)
    signal.set_wakeup_fd(note, warn_on_full_buffer=False)
    try:
        if keys is not None:
            tty.setcbreak(keys)
            quiet: list[Any] = termios.tcgetattr(keys)
            # Ctrl-Z would leave a terminal without a cursor
            quiet[6][termios.VSUSP] = b"\0"
            termios.tcsetattr(keys, termios.TCSANOW, quiet)
        _write(_ENTER)
        yield Terminal(keys, resized)
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGWINCH, signal.SIG_DFL)
        with suppress(OSError):  # it was closed
            _write(_LEAVE)
        if keys is not None and before is not None:
            with suppress(termios.error):
                termios.tcsetattr(keys, termios.TCSAFLUSH, before)
        os.close(resized)
        os.close(note)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


# -- a status, once or again at every change

WIDEST = 1000  # of tables: a terminal folds longer lines, as with kubectl's


@dataclass(frozen=True, slots=True)
class Frame:
    """One look."""

    record: object  # plain values for programs; None where none of them reads
    parts: Iterable[RenderableType]  # for people, asked for once


def console() -> Console:
    """A terminal as wide as it is; wide enough for everything where there is none."""
    plain = Console(highlight=False, markup=False, emoji=False)
    if not sys.stdout.isatty():
        plain.width = WIDEST
    return plain


def print_frame(frame: Frame, output: StatusFormat, to: Console) -> None:
    match output:
        case StatusFormat.JSON:
            print_json(frame.record)
        case StatusFormat.YAML:
            import yaml

            shape: Any = {"sort_keys": False, "allow_unicode": True, "explicit_start": True}
            yaml.safe_dump(frame.record, sys.stdout, **shape)
        case StatusFormat.TEXT | StatusFormat.WIDE:
            for part in frame.parts:
                print_part(part, to)


def print_part(part: RenderableType, to: Console) -> None:
    """Prints what is never wider than `to`."""
    to.print(part, crop=False)  # cropping takes half of the time


def drawn(parts: Iterable[RenderableType], width: int) -> list[str]:
    """The lines, with colours, cut at the edge."""
    to = Console(highlight=False, markup=False, emoji=False, force_terminal=True, width=width)
    with to.capture() as captured:
        for part in parts:
            to.print(part, no_wrap=True, overflow="ellipsis", crop=True)
    return captured.get().splitlines()


class Screen:
    """Frames over each other on a terminal, else below each other, JSON one a line."""

    def __init__(self, output: StatusFormat) -> None:
        self._output = output
        self._live: Live | None = None  # None where there is no terminal to draw on

    def show(self, frame: Frame) -> None:
        if self._live:
            shown = drawn(frame.parts, self._live.console.width)
            text = Text.from_ansi("\n".join(line.rstrip() for line in shown))
            text.no_wrap = True
            text.overflow = "ellipsis"
            self._live.update(text, refresh=True)
        elif self._output is StatusFormat.JSON:
            print(json.dumps(frame.record), flush=True)
        else:
            if self._output is not StatusFormat.YAML:
                print(time.strftime("%Y-%m-%dT%H:%M:%S%z"))
            print_frame(frame, self._output, console())
            sys.stdout.flush()

    @property
    def redraws(self) -> bool:
        """Whether a frame that only grew older is worth showing."""
        return self._live is not None

    @contextmanager
    def until_interrupted(self) -> Iterator[None]:
        """Ends the program at Ctrl-C; the last frame stays."""
        with ExitStack() as stack:
            if sys.stdout.isatty() and self._output in {StatusFormat.TEXT, StatusFormat.WIDE}:
                from rich.live import Live

                live = Live(console=console(), auto_refresh=False, vertical_overflow="ellipsis")
                self._live = stack.enter_context(live)
            try:
                yield
            except KeyboardInterrupt:
                sys.exit(INTERRUPTED)
