"""Shows one look after the other: over each other on a terminal, with keys, else below each other.

The screen never waits for a look, which a thread takes. What does not fit is counted.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import msgspec
from rich.console import RenderableType
from rich.text import Text

from mpsd.model.cluster_status import ServedGpu
from mpsd.model.node_report import GrantReport
from mpsd.model.problem import printable
from mpsd.model.times import lasting
from mpsd.platform import terminal
from mpsd.platform.clock import wall_s
from mpsd.platform.console import ExitCode, complaints, one_line
from mpsd.platform.imports import ended_by_signals
from mpsd.platform.terminal import WIDEST, console, drawn, print_part
from mpsd.status.rules.top import NoLook, Sort, Top, TopUser
from mpsd.status.tables import (
    Column,
    TextTable,
    clock,
    known,
    known_gib,
    part_of,
    state_text,
    table,
)

_BEAT_S = 1.0  # between two drawings where nothing is heard but what is away goes on being so
_SORTS = {"m": Sort.MEMORY, "s": Sort.SM, "n": Sort.NAME}
_KEYS_LINE = "q quit   m memory   s SM use   n name   arrows, PageUp, PageDown: scroll"
_MOST_NOTES = 3  # on a terminal
_SHORTEST_NAME = 24  # that a name is cut to before columns are left out


@dataclass(frozen=True, slots=True)
class TopOptions:
    """program: as complaints begin. iterations: None: until somebody quits. as_json: an object a
    look and line. once: without control codes, whatever standard output is."""

    program: str
    by: Sort
    interval_s: float
    iterations: int | None
    as_json: bool
    once: bool


def show_top(asked: TopOptions, look: Callable[[], Top]) -> NoReturn:
    """Ends the program. look: NoLook where there is none."""
    if asked.once:
        asked = replace(asked, iterations=1)
    with ended_by_signals():
        try:
            first = look()
        except NoLook as away:
            complaints().print(f"{asked.program}: {away}")
            sys.exit(ExitCode.NO)
        if asked.once or asked.as_json or not sys.stdout.isatty():
            _below_each_other(asked, look, first)
        else:
            _over_each_other(asked, look, first)
    sys.exit(ExitCode.YES)


def _seen(look: Callable[[], Top], last: Top) -> Top:
    try:
        return look()
    except NoLook as away:
        return replace(last, away=str(away), away_since=last.away_since or wall_s())


# -- what is shown


def _used(row: TopUser) -> str | Text:
    used = known_gib(row.used_mib)
    if not row.over:
        return used
    why = "over" if row.grant else "no grant"
    return Text(f"{used}, {why}", "red")


def _of_grant(cell: Callable[[GrantReport], str], without: str = "-") -> Callable[[TopUser], str]:
    return lambda user: cell(user.grant) if user.grant else without


def _who(row: TopUser) -> str:
    return (row.grant and row.grant.pods_in_words) or row.name


_GPUS: tuple[Column[ServedGpu], ...] = (
    Column("NODE", lambda gpu: gpu.node, left=True),
    Column("GPU", lambda gpu: gpu.label, left=True),
    Column("MODEL", lambda gpu: gpu.model.removeprefix("NVIDIA "), left=True, leaves=True),
    Column("STATE", lambda gpu: state_text(gpu.state or "no daemon"), left=True),
    Column("GRANTED", lambda gpu: part_of(gpu.granted_mib, gpu.promised_mib), leaves=True),
    Column("USED", lambda gpu: known_gib(gpu.used_mib)),
    Column("SM", lambda gpu: known(gpu.sm_percent, " %")),
    Column("CLIENTS", lambda gpu: known(gpu.clients), leaves=True),
)
_USERS: tuple[Column[TopUser], ...] = (
    Column("NODE", lambda user: user.node, left=True),
    Column("GPU", lambda user: user.label, left=True),
    Column("WHO", _who, left=True),
    Column("CLAIM", _of_grant(lambda grant: grant.claim, ""), left=True, rare=True, leaves=True),
    Column("USED", _used),
    Column("GRANTED", lambda user: known_gib(user.memory_mib) if user.grant else "-", leaves=True),
    Column("SM", lambda user: known(user.sm_percent, " %")),
    Column("THREADS", _of_grant(lambda grant: known(grant.thread_percent, " %")), leaves=True),
    Column("CLIENTS", lambda user: known(user.clients), leaves=True),
)


def _tables(
    top: Top, gpus: Sequence[ServedGpu], users: Sequence[TopUser], width: int
) -> tuple[TextTable, TextTable]:
    empty = "NODE"
    if any(gpu.node for gpu in top.gpus) or any(user.node for user in top.users):
        empty = "SM"
    columns = [one for one in _USERS if one.title != empty]
    of_users = table(columns, users)
    if of_users.width > width:
        longest = max(_SHORTEST_NAME, width * 2 // 5)
        short = [msgspec.structs.replace(one, name=printable(one.name, longest)) for one in users]
        of_users = table(columns, short).within(width)
    of_gpus = table([one for one in _GPUS if one.title != empty], gpus)
    return of_gpus.within(width), of_users


def _parts(
    top: Top, gpus: Sequence[ServedGpu], users: Sequence[TopUser], width: int
) -> tuple[RenderableType, RenderableType]:
    of_gpus, of_users = _tables(top, gpus, users, width)
    nobody = "" if top.users else Text(_nobody(top))
    return of_gpus if gpus else "", of_users if users else nobody


def _nobody(top: Top) -> str:
    if any(gpu.granted_mib or gpu.clients for gpu in top.gpus):  # such as another namespace's
        return "None of those that were asked for uses a GPU or holds a part of one; others do."
    return "No pod, no container and no program uses a GPU or holds a part of one."


def _sentences(top: Top) -> Iterator[str]:
    if top.away:
        words = "nothing newer is known"
        if top.away_since is not None:
            words += f" since {clock(top.away_since)} ({lasting(wall_s() - top.away_since)})"
        yield one_line(f"{words}: {top.away}; shown is what was seen last")
    yield from map(one_line, top.notes)


# -- without a terminal


def _below_each_other(asked: TopOptions, look: Callable[[], Top], first: Top) -> None:
    top = first
    shown = 0
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
        to = console()
        if asked.iterations != 1:
            sys.stdout.write(time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(top.now)) + "\n")
        gpus, users = _parts(top, top.gpus, top.users, WIDEST)
        for part in (gpus, users, *map(Text, _sentences(top))):
            if part:
                print_part(part, to)
    sys.stdout.flush()


# -- on a terminal


@dataclass(frozen=True, slots=True)
class View:
    title: str
    by: Sort
    first: int = 0

    def moved(self, rows: int, top: Top) -> "View":
        return replace(self, first=min(max(0, self.first + rows), max(0, len(top.users) - 1)))

    def after(self, key: str, top: Top, height: int) -> "View":
        if key == terminal.FIRST or key in _SORTS:
            return replace(self, by=_SORTS.get(key, self.by), first=0)
        page = height // 2
        moves = {
            terminal.UP: -1,
            terminal.DOWN: 1,
            terminal.PAGE_UP: -page,
            terminal.PAGE_DOWN: page,
        }
        return self.moved(moves.get(key, 0), top)


def lines(top: Top, view: View, size: os.terminal_size) -> list[str]:
    """As many as the terminal has, none of them wider. top: in the order of the view."""
    notes = [*_sentences(top)][:_MOST_NOTES]
    # rows: without the title, two heads of two, two counts, and the keys
    space = max(2, size.lines - len(notes) - 8)
    gpus = top.gpus[: max(1, space // 3, space - len(top.users))]
    users = top.users[view.first :][: max(1, space - len(gpus))]
    of_gpus, of_users = _parts(top, gpus, users, size.columns)
    parts: list[RenderableType] = [
        Text(f"{view.title}   {clock(top.now)}   sorted by {view.by.value}", "bold"),
        of_gpus,
        _count("GPUs", 0, len(gpus), len(top.gpus)),
        of_users,
        _count("users", view.first, len(users), len(top.users)),
        *[Text(note, "yellow") for note in notes],
    ]
    shown = [line for line in drawn(parts, size.columns) if line.strip()]
    return [*shown[: max(0, size.lines - 1)], *drawn([Text(_KEYS_LINE, "dim")], size.columns)]


def _count(what: str, first: int, shown: int, there: int) -> str:
    if shown == there:
        return ""
    if not shown:
        return f" none of {there} {what} fit"
    return f" {what} {first + 1} to {first + shown} of {there}"


class _Looks:
    """Looks again and again, in a thread. heard: has something to read when there is a new one."""

    def __init__(self, look: Callable[[], Top], first: Top, interval_s: float) -> None:
        self._top = first
        self._failed: BaseException | None = None  # None while nothing unforeseen went wrong
        self.heard, self._tell = os.pipe()
        self._look = look
        self._interval_s = interval_s
        threading.Thread(target=self._go_on, daemon=True).start()

    def _go_on(self) -> None:
        while self._failed is None:
            time.sleep(self._interval_s)
            try:
                self._top = _seen(self._look, self._top)
            # whatever it is, the screen must not stand still as if all were well
            except BaseException as error:
                self._failed = error
            os.write(self._tell, b".")

    def news(self) -> Top:
        os.read(self.heard, 1)
        if self._failed is not None:
            raise self._failed
        return self._top


def _over_each_other(asked: TopOptions, look: Callable[[], Top], first: Top) -> None:
    looks = _Looks(look, first, asked.interval_s)
    view = View(asked.program, asked.by)
    top = first
    shown = 1
    with terminal.own_terminal() as here:
        while True:
            size = here.size
            here.draw(lines(top.ordered(view.by), view, size))
            if shown == asked.iterations:
                return
            try:
                keys, is_news = here.wait(looks.heard, _BEAT_S)
            except EOFError:
                return
            for key in keys:
                if key in {"q", "Q"}:
                    return
                view = view.after(key, top, size.lines)
            if is_news:
                top = looks.news()
                shown = shown + 1
                view = view.moved(0, top)
