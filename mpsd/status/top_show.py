"""Shows one look after the other: over each other on a terminal, with keys, else below each other.

One rule: the screen never waits for a look, which a thread of its own takes; what cannot be looked at is said, and
since when, and what was seen last stays.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import NoReturn

from mpsd.platform.speech import ExitCode, complaints
from mpsd.platform.stopping import ended_by_signals
from mpsd.status.frames import WIDEST, console, print_part
from mpsd.status.rules.top_rows import Sort, Top
from mpsd.status.terminal import Key, Terminal
from mpsd.status.top_layout import View, lines, parts

_BEAT_S = 1.0  # between two drawings where nothing is heard but what is away goes on being so
_KEYS = {"m": Sort.MEMORY, "s": Sort.SM, "n": Sort.NAME}


class Away(Exception):
    """There is no look to be had now, and why, in a sentence."""


@dataclass(frozen=True, slots=True)
class Asked:
    """program: as complaints begin. interval_s: between two looks. iterations: how many; None: until somebody quits.

    as_json: an object a look and line. plain: no control codes, whatever standard output is.
    """

    program: str
    by: Sort
    interval_s: float
    iterations: int | None
    as_json: bool
    plain: bool


def show_top(asked: Asked, look: Callable[[], Top]) -> NoReturn:
    """Ends the program. look: Away where there is none."""
    with ended_by_signals():
        try:
            first = look()
        except Away as away:
            complaints().print(f"{asked.program}: {away}")
            sys.exit(ExitCode.NO)
        if asked.plain or asked.as_json or not sys.stdout.isatty():
            _below_each_other(asked, look, first)
        else:
            _over_each_other(asked, look, first)
    sys.exit(ExitCode.YES)


def _seen(look: Callable[[], Top], last: Top) -> Top:
    try:
        return look()
    except Away as away:
        return replace(last, away=str(away), away_since=last.away_since or time.time())


# -- without a terminal ----------------------------------------------------------------------------------------------


def _below_each_other(asked: Asked, look: Callable[[], Top], first: Top) -> None:
    top, shown = first, 0
    while True:
        _print(top.ordered(asked.by), asked)
        shown += 1
        if shown == asked.iterations:
            return
        time.sleep(asked.interval_s)
        top = _seen(look, top)


def _print(top: Top, asked: Asked) -> None:
    if asked.as_json:
        sys.stdout.write(json.dumps(asdict(top)) + "\n")
    else:
        to = console(WIDEST)
        if asked.iterations != 1:
            sys.stdout.write(time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(top.now)) + "\n")
        for part in parts(top, WIDEST):
            print_part(part, to)
    sys.stdout.flush()


# -- on a terminal ---------------------------------------------------------------------------------------------------


class _Looks:
    """Looks again and again, in a thread. heard: a file that has something to read when there is a new one."""

    def __init__(self, look: Callable[[], Top], first: Top, interval_s: float) -> None:
        self.top = first
        self.failed: BaseException | None = None  # None while nothing has gone wrong that nobody foresaw
        self.heard, self._tell = os.pipe()
        self._look, self._interval_s = look, interval_s
        threading.Thread(target=self._go_on, daemon=True).start()

    def _go_on(self) -> None:
        while self.failed is None:
            time.sleep(self._interval_s)
            try:
                self.top = _seen(self._look, self.top)
            except BaseException as error:  # whatever it is, the screen must not stand still as if all were well
                self.failed = error
            os.write(self._tell, b".")

    def news(self) -> Top:
        os.read(self.heard, 1)
        if self.failed is not None:
            raise self.failed
        return self.top


def _over_each_other(asked: Asked, look: Callable[[], Top], first: Top) -> None:
    looks = _Looks(look, first, asked.interval_s)
    view, top, shown = View(asked.program, asked.by), first, 1
    with Terminal() as terminal:
        while True:
            size = terminal.size
            terminal.draw(lines(top.ordered(view.by), view, size))
            if shown == asked.iterations:
                return
            try:
                keys, is_news = terminal.wait(looks.heard, _BEAT_S)
            except EOFError:
                return
            for key in keys:
                if key in {"q", "Q"}:
                    return
                view = _after(key, view, top, size.lines)
            if is_news:
                top, shown = looks.news(), shown + 1
                view = view.moved(0, top)


def _after(key: str | Key, view: View, top: Top, height: int) -> View:
    match key:
        case str():
            return replace(view, by=_KEYS[key], first=0) if key in _KEYS else view
        case Key.UP:
            return view.moved(-1, top)
        case Key.DOWN:
            return view.moved(1, top)
        case Key.PAGE_UP:
            return view.moved(-height // 2, top)
        case Key.PAGE_DOWN:
            return view.moved(height // 2, top)
        case Key.FIRST:
            return replace(view, first=0)
