"""Shows one look after the other: over each other on a terminal, with keys, else below each other.

The screen never waits for a look, which a thread of its own takes; what cannot be looked at is said, and
since when, and what was seen last stays.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NoReturn

import msgspec
from rich.console import RenderableType
from rich.text import Text

from mpsd.model.problem import printable
from mpsd.model.times import lasting
from mpsd.platform.console import ExitCode, complaints, drawing, one_line
from mpsd.platform.imports import ended_by_signals
from mpsd.status.rules.top import NoLook, Sort, Top, TopGpu, TopUser
from mpsd.status.tables import Column, TextTable, clock, fitted, known_gib, part_of, state_text, table
from mpsd.status.terminal import WIDEST, ControlKey, Terminal, console, print_part

# How a frame of `top` looks: GPUs above, who uses them below, at any width and height.
#
# What does not fit is counted, never silently left out.

_MOST_KEPT = 1024
_KEYS_LINE = "q quit   m memory   s SM use   n name   arrows, PageUp, PageDown: scroll"
_MOST_NOTES = 3  # on a terminal
_SHORTEST_NAME = 24  # that a name is cut to before columns are left out


@dataclass(frozen=True, slots=True)
class View:
    """What is looked at: whose title, sorted by what, from which row of the users on."""

    title: str
    by: Sort
    first: int = 0

    def moved(self, rows: int, top: Top) -> "View":
        """By so many rows, as far as there are any."""
        return replace(self, first=min(max(0, self.first + rows), max(0, len(top.users) - 1)))


# -- the rows --------------------------------------------------------------------------------------------------------


@lru_cache(_MOST_KEPT)
def _known(amount: int | None, unit: str = "") -> str:
    return "?" if amount is None else f"{amount}{unit}"


def _used(row: TopUser) -> str | Text:
    used = known_gib(row.used_mib)
    return Text(f"{used}, over" if row.granted_mib is not None else f"{used}, no grant", "red") if row.over else used


_GPUS: tuple[Column[TopGpu], ...] = (
    Column("NODE", lambda gpu: gpu.node, left=True),
    Column("GPU", lambda gpu: gpu.label, left=True),
    Column("MODEL", lambda gpu: gpu.model.removeprefix("NVIDIA "), left=True),
    Column("STATE", lambda gpu: state_text(gpu.state), left=True),
    Column("GRANTED", lambda gpu: part_of(gpu.granted_mib, gpu.memory_mib)),
    Column("USED", lambda gpu: known_gib(gpu.used_mib)),
    Column("SM", lambda gpu: _known(gpu.sm_percent, " %")),
    Column("CLIENTS", lambda gpu: _known(gpu.clients)),
)
_USERS: tuple[Column[TopUser], ...] = (
    Column("NODE", lambda user: user.node, left=True),
    Column("GPU", lambda user: user.label, left=True),
    Column("WHO", lambda user: user.name, left=True),
    Column("USED", _used),
    Column("GRANTED", lambda user: "-" if user.granted_mib is None else known_gib(user.granted_mib)),
    Column("SM", lambda user: _known(user.sm_percent, " %")),
    Column("THREADS", lambda user: "-" if user.granted_mib is None else _known(user.thread_percent, " %")),
    Column("CLIENTS", lambda user: _known(user.clients)),
)
_NOT_OF_CLUSTER, _NOT_OF_MACHINE = frozenset({"SM"}), frozenset({"NODE"})  # columns that would say nothing there
_GPUS_DROPPED, _USERS_DROPPED = ("MODEL", "CLIENTS", "GRANTED"), ("THREADS", "CLIENTS", "GRANTED", "NODE")


def _gpu_sheet(gpus: Sequence[TopGpu], width: int, without: frozenset[str]) -> TextTable:
    return fitted([one for one in _GPUS if one.title not in without], gpus, width, _GPUS_DROPPED)


def _user_sheet(users: Sequence[TopUser], width: int, without: frozenset[str]) -> TextTable:
    columns = [one for one in _USERS if one.title not in without]
    sheet = table(columns, users)
    if sheet.width <= width:
        return sheet
    longest = max(_SHORTEST_NAME, width * 2 // 5)
    short = [msgspec.structs.replace(one, name=printable(one.name, longest)) for one in users]
    return fitted(columns, short, width, _USERS_DROPPED)


def _without(top: Top) -> frozenset[str]:
    """The columns that would say nothing."""
    is_cluster = any(gpu.node for gpu in top.gpus) or any(user.node for user in top.users)
    return _NOT_OF_CLUSTER if is_cluster else _NOT_OF_MACHINE


# -- whole -----------------------------------------------------------------------------------------------------------


def parts(top: Top, width: int) -> Iterator[RenderableType]:
    """Everything, for a pipe or a file. top: in the order in which it is to be shown."""
    without = _without(top)
    if top.gpus:
        yield _gpu_sheet(top.gpus, width, without)
    yield _user_sheet(top.users, width, without) if top.users else Text(_nobody(top))
    yield from (Text(sentence) for sentence in _sentences(top))


def _nobody(top: Top) -> str:
    if any(gpu.granted_mib or gpu.clients for gpu in top.gpus):  # such as another namespace's
        return "None of those that were asked for uses a GPU or holds a part of one; others do."
    return "No pod, no container and no program uses a GPU or holds a part of one."


def _sentences(top: Top) -> Iterator[str]:
    if top.away:
        since = "" if top.away_since is None else f" since {clock(top.away_since)}"
        lasts = "" if top.away_since is None else f" ({lasting(max(0.0, time.time() - top.away_since))})"
        yield one_line(f"nothing newer is known{since}{lasts}: {top.away}; shown is what was seen last")
    yield from (one_line(note) for note in top.notes)


# -- a terminal ------------------------------------------------------------------------------------------------------


def lines(top: Top, view: View, size: os.terminal_size) -> list[str]:
    """No more lines than the terminal has, none of them wider. top: in the order of the view."""
    width, without = size.columns, _without(top)
    notes = [*_sentences(top)][:_MOST_NOTES]
    space = max(2, size.lines - len(notes) - 8)  # rows: without the title, two heads of two, two counts, and the keys
    gpus = top.gpus[: max(1, space // 3, space - len(top.users))]
    users = top.users[view.first :][: max(1, space - len(gpus))]
    parts: list[RenderableType] = [
        Text(_title(top, view), "bold"),
        _gpu_sheet(gpus, width, without) if gpus else "",
        _count("GPUs", 0, len(gpus), len(top.gpus)),
        _user_sheet(users, width, without) if users else "" if top.users else Text(_nobody(top)),
        _count("users", view.first, len(users), len(top.users)),
        *(Text(note, "yellow") for note in notes),
    ]
    drawn = [line for part in parts for line in _drawn(part, width)]
    return [*drawn[: max(0, size.lines - 1)], *_drawn(Text(_KEYS_LINE, "dim"), width)]


def _title(top: Top, view: View) -> str:
    return f"{view.title}   {clock(top.now)}   sorted by {view.by.value}"


def _count(what: str, first: int, shown: int, there: int) -> str:
    """Empty where all are shown."""
    if shown == there:
        return ""
    return f" {what} {first + 1} to {first + shown} of {there}" if shown else f" none of {there} {what} fit"


def _drawn(part: RenderableType, width: int) -> list[str]:
    """Its lines, with colours, cut at the edge."""
    to = drawing(width)
    with to.capture() as captured:
        to.print(part, no_wrap=True, overflow="ellipsis", crop=True)
    return [line for line in captured.get().splitlines() if line.strip()]


_BEAT_S = 1.0  # between two drawings where nothing is heard but what is away goes on being so
_KEYS = {"m": Sort.MEMORY, "s": Sort.SM, "n": Sort.NAME}


@dataclass(frozen=True, slots=True)
class TopOptions:
    """program: as complaints begin. interval_s: between two looks. iterations: how many; None: until somebody quits.

    as_json: an object a look and line. plain: no control codes, whatever standard output is.
    """

    program: str
    by: Sort
    interval_s: float
    iterations: int | None
    as_json: bool
    plain: bool


def show_top(asked: TopOptions, look: Callable[[], Top]) -> NoReturn:
    """Ends the program. look: Away where there is none."""
    with ended_by_signals():
        try:
            first = look()
        except NoLook as away:
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
    except NoLook as away:
        return replace(last, away=str(away), away_since=last.away_since or time.time())


# -- without a terminal ----------------------------------------------------------------------------------------------


def _below_each_other(asked: TopOptions, look: Callable[[], Top], first: Top) -> None:
    top, shown = first, 0
    while True:
        _print(top.ordered(asked.by), asked)
        shown += 1
        if shown == asked.iterations:
            return
        time.sleep(asked.interval_s)
        top = _seen(look, top)


def _print(top: Top, asked: TopOptions) -> None:
    if asked.as_json:
        sys.stdout.write(json.dumps(msgspec.to_builtins(top)) + "\n")
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


def _over_each_other(asked: TopOptions, look: Callable[[], Top], first: Top) -> None:
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


def _after(key: str | ControlKey, view: View, top: Top, height: int) -> View:
    match key:
        case str():
            return replace(view, by=_KEYS[key], first=0) if key in _KEYS else view
        case ControlKey.UP:
            return view.moved(-1, top)
        case ControlKey.DOWN:
            return view.moved(1, top)
        case ControlKey.PAGE_UP:
            return view.moved(-height // 2, top)
        case ControlKey.PAGE_DOWN:
            return view.moved(height // 2, top)
        case ControlKey.FIRST:
            return replace(view, first=0)
