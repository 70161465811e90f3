"""A status on the screen, once or again at every change.

One rule: what people see and what programs read are made of the same look.
"""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.text import Text

from mpsd.platform.imports import INTERRUPTED
from mpsd.platform.speech import StatusFormat, drawing, print_json, print_yaml

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
