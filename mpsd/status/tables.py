"""The tables and sentences of a status, for people: GPUs, grants, nodes, domains, faults and violations.

A column is a line of a list here, and whoever shows rows chooses columns.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Generic, TypeVar

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from mpsd.agent.rules.node_events import listed
from mpsd.model.cluster_status import DomainRow, GpuRow, GrantRow, total
from mpsd.model.conditions import Truth
from mpsd.model.domain import State, after_is, remedy
from mpsd.model.node_status import FaultsStatus, ViolationCount, ViolationsStatus, ViolationStatus
from mpsd.model.problem import printable
from mpsd.model.quantity import gib
from mpsd.model.times import DAY_S, lasting
from mpsd.model.violations import DONE, Response
from mpsd.platform.console import LONGEST_LINE, one_line
from mpsd.status.rules.cordon import DRAINS

if TYPE_CHECKING:  # only a terminal that is too narrow needs it
    from rich.table import Table

_GAP, _EDGE = "   ", " "

Cell = str | Text


@dataclass(frozen=True, slots=True)
class ColumnHead:
    """A column: its title, and on which side its cells are flush."""

    title: str
    left: bool


class TextTable:
    """Thousands of rows of cells, each on one line.

    It looks as rich's own table does, and costs a fiftieth of it: rich measures, wraps and pads each cell by itself,
    which for the GPUs of 500 nodes takes half a minute. Where a terminal is too narrow, rich's own is drawn, since it
    knows how to share what there is.
    """

    def __init__(self, heads: Sequence[ColumnHead], rows: Iterable[Sequence[Cell]]) -> None:
        self._heads = heads
        self._rows = [*rows]
        titles = [head.title for head in heads]
        self._columns = [[*map(_plain, cells)] for cells in zip(titles, *self._rows, strict=True)]

    @property
    def width(self) -> int:
        """Characters that it takes where nothing is cut."""
        return _inner(self._widths()) + 2 * len(_EDGE)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        titles = [head.title for head in self._heads]
        widths = self._widths()
        inner = _inner(widths)
        if inner + 2 * len(_EDGE) > options.max_width:
            yield self._table()
            return
        if console.color_system is None:  # a pipe: thousands of pieces, each of no style, are as good as one
            yield Segment(self._plain(widths))
            return
        blank, rule = " " * (inner + 2), f"{_EDGE}{'─' * inner}{_EDGE}"
        yield from (Segment(blank), Segment.line())
        yield from self._line(titles, widths, console, console.get_style("table.header"))
        yield from (Segment(rule), Segment.line())
        for row in self._rows:
            yield from self._line(row, widths, console, None)
        yield from (Segment(blank), Segment.line())

    def _widths(self) -> list[int]:
        return [max(map(len if _is_simple(texts) else _width, texts)) for texts in self._columns]

    def _plain(self, widths: Sequence[int]) -> str:
        columns = zip(self._heads, widths, self._columns, strict=True)
        padded = [_padded(texts, width, left=head.left) for head, width, texts in columns]
        title, *lines = map(_GAP.join, zip(*padded, strict=True))
        inner = _inner(widths)
        blank, rule = " " * (inner + 2), "─" * inner
        told = [f"{_EDGE}{line}{_EDGE}" for line in (title, rule, *lines)]
        return "\n".join([blank, *told, blank, ""])

    def _line(
        self, cells: Sequence[Cell], widths: Sequence[int], console: Console, style: Style | None
    ) -> Iterator[Segment]:
        """One segment for all that has the same style."""
        said = _EDGE
        for position, (cell, width) in enumerate(zip(cells, widths, strict=True)):
            space = " " * (width - _width(cell))
            before, after = ("", space) if self._heads[position].left else (space, "")
            said += (_GAP if position else "") + before
            if isinstance(cell, Text) and cell.style:
                yield Segment(said, style)
                yield Segment(cell.plain, console.get_style(cell.style))
                said = after
            else:
                said += (cell.plain if isinstance(cell, Text) else cell) + after
        yield Segment(said + _EDGE, style)
        yield Segment.line()

    def _table(self) -> "Table":
        from rich import box
        from rich.table import Table

        made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
        for head in self._heads:
            made.add_column(head.title, justify="left" if head.left else "right", no_wrap=True, overflow="ellipsis")
        for row in self._rows:
            made.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
        return made


def _inner(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _plain(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell.plain


def _is_simple(texts: Iterable[str]) -> bool:
    """Whether each character takes one place."""
    every = "".join(texts)
    return every.isascii() and every.isprintable()


def _width(cell: Cell) -> int:
    return cell_len(_plain(cell))


def _padded(texts: Sequence[str], width: int, *, left: bool) -> list[str]:
    """Each as wide as the widest."""
    if not _is_simple(texts):
        spaces = [" " * (width - _width(text)) for text in texts]
        return [text + space if left else space + text for text, space in zip(texts, spaces, strict=True)]
    return [text.ljust(width) for text in texts] if left else [text.rjust(width) for text in texts]


if TYPE_CHECKING:  # `top` does without
    from mpsd.model.cluster_status import ClusterNode

Row = TypeVar("Row")

_MOST_KEPT = 4096  # cells, of thousands of rows that mostly say the same
_COLOURS = {State.READY.value: "green"} | dict.fromkeys(
    (State.STARTING.value, State.DRAINING.value, State.DRAINED.value), "yellow"
)


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """wide: shown on request only. rare: shown where a cell of it says something."""

    title: str
    cell: Callable[[Row], Cell]
    left: bool = False
    wide: bool = False
    rare: bool = False


def table(columns: Iterable[Column[Row]], rows: Iterable[Row], *, wide: bool = False) -> TextTable:
    listed = [*rows]
    asked = ((column, _cells(column, listed)) for column in columns if wide or not column.wide)
    shown = [(column, cells) for column, cells in asked if not column.rare or any(map(_says_something, cells))]
    heads = [ColumnHead(column.title, column.left) for column, _cells in shown]
    return TextTable(heads, zip(*(cells for _column, cells in shown), strict=True))


def _says_something(cell: Cell) -> bool:
    return str(cell) not in {"", "?"}


def _cells(column: Column[Row], rows: Sequence[Row]) -> list[Cell]:
    cells = [column.cell(row) for row in rows]
    texts = [cell for cell in cells if isinstance(cell, str)]
    if "".join(texts).isprintable() and max(map(len, texts), default=0) <= LONGEST_LINE:  # as they all are, mostly
        return cells
    return [cell if isinstance(cell, Text) else one_line(cell) for cell in cells]


def fitted(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int, dropped_first: Sequence[str]) -> TextTable:
    """As `table`, without as many columns of these titles, one after the other, as it takes to be no wider."""
    left = list(columns)
    for title in (*dropped_first, None):
        sheet = table(left, rows)
        if sheet.width <= width or title is None:
            break
        left = [column for column in left if column.title != title]
    return sheet


@lru_cache(_MOST_KEPT)
def _known(count: int | None) -> str:
    return "?" if count is None else str(count)


@lru_cache(_MOST_KEPT)
def known_gib(memory_mib: int | None) -> str:
    return "?" if memory_mib is None else f"{gib(memory_mib)} GiB"


@lru_cache(_MOST_KEPT)
def _percent(percent: int | None) -> str:
    return "?" if percent is None else f"{percent} %"


@lru_cache(_MOST_KEPT)
def part_of(part_mib: int | None, whole_mib: int | None) -> str:
    part, whole = ("?" if mib is None else gib(mib) for mib in (part_mib, whole_mib))
    return f"{part}/{whole} GiB"


# -- GPUs ----------------------------------------------------------------------------------------------------------


def state_colour(state: str) -> str:
    return _COLOURS.get(state, "red")


def _state(gpu: GpuRow) -> Text:
    if gpu.state is None:
        return Text("no daemon", "red")
    waits = gpu.cordoned and gpu.state not in DRAINS  # the node has not heard of it yet, or has other trouble first
    return state_text(gpu.state, ", cordoned" if waits else "")


@lru_cache(_MOST_KEPT)
def state_text(state: str, more: str = "") -> Text:
    return Text(printable(state) + more, state_colour(state))


GPU_COLUMNS: tuple[Column[GpuRow], ...] = (
    Column("GPU", lambda gpu: gpu.label, left=True),
    Column("MODEL", lambda gpu: gpu.name.removeprefix("NVIDIA "), left=True),
    Column("DOMAIN", lambda gpu: gpu.domain or "", left=True),
    Column("STATE", _state, left=True),
    Column("GRANTED", lambda gpu: part_of(gpu.granted_mib, gpu.promised_mib)),
    Column("RESERVED", lambda gpu: _percent(gpu.granted_percent)),
    Column("USED", lambda gpu: known_gib(gpu.used_mib)),
    Column("CLIENTS", lambda gpu: _known(gpu.clients)),
    Column("RESTARTS", lambda gpu: "" if gpu.state is None else _known(gpu.restarts)),
    Column("CONTEXT", lambda gpu: "?" if gpu.context_mib is None else f"{gpu.context_mib} MiB", wide=True),
    Column("UUID", lambda gpu: gpu.uuid, left=True, wide=True),
)
CLUSTER_GPU_COLUMNS: tuple[Column[GpuRow], ...] = (Column("NODE", lambda gpu: gpu.node, left=True), *GPU_COLUMNS)

# -- grants --------------------------------------------------------------------------------------------------------


def _granted(row: GrantRow) -> str:
    return _each([card.memory_mib for card in row.cards]) if row.is_uneven else known_gib(row.memory_mib)


def _each(amounts_mib: Sequence[int | None]) -> str:
    return f"{','.join('?' if mib is None else gib(mib) for mib in amounts_mib)} GiB"


def _used(row: GrantRow) -> str | Text:
    used = _each([card.used_mib for card in row.cards]) if row.is_uneven else known_gib(row.used_mib)
    return Text(f"{used}, over", "red") if row.over else used


def _ended(row: GrantRow, what: str) -> str:
    return f"(ended, programs of it are left) {what}" if row.ended else what


def _violations(row: GrantRow) -> str:
    """How often what happened; nothing where nothing did."""
    if row.violations is None:
        return "?"
    return ", ".join(f"{_known(one.count)} {one.kind}" for one in row.violations.counts)


_GRANT: tuple[Column[GrantRow], ...] = (
    Column("GPU", lambda grant: ",".join(grant.labels), left=True),
    Column("GRANTED", _granted),
    Column("THREADS", lambda grant: _percent(grant.thread_percent)),
    Column("USED", _used),
    Column("CLIENTS", lambda grant: _known(grant.clients)),
)
GRANT_COLUMNS: tuple[Column[GrantRow], ...] = (
    Column("GRANT", lambda grant: grant.id, left=True),
    *_GRANT,
    Column("PID", lambda grant: _known(grant.pid)),
    Column("COMMAND", lambda grant: _ended(grant, grant.command), left=True),
)
POD_COLUMNS: tuple[Column[GrantRow], ...] = (
    Column("POD", lambda grant: _ended(grant, grant.pod or f"pid {_known(grant.pid)}"), left=True),
    *_GRANT,
    Column("UID", lambda grant: grant.id, left=True, wide=True),
)
CLUSTER_POD_COLUMNS: tuple[Column[GrantRow], ...] = (
    Column("NODE", lambda pod: pod.node, left=True),
    *POD_COLUMNS,
    Column("VIOLATIONS", _violations, left=True, rare=True),
)


def grant_table(rows: Sequence[GrantRow], *, wide: bool = False) -> TextTable:
    """The grants of this machine: pods by their names where a kubelet gives them, else programs."""
    held_by_pods = any(row.pod for row in rows)
    return table(POD_COLUMNS if held_by_pods else GRANT_COLUMNS, rows, wide=wide)


# -- nodes ---------------------------------------------------------------------------------------------------------


def node_table(nodes: "Iterable[ClusterNode]", now: float, *, wide: bool) -> TextTable:
    return table(_node_columns(now), nodes, wide=wide)


def _sum(node: "ClusterNode", field: str) -> int | None:
    """Of all GPUs of the node; None where it has reported nothing."""
    return None if node.told_at is None else total(getattr(gpu, field) for gpu in node.gpus)


def _node_columns(now: float) -> "tuple[Column[ClusterNode], ...]":
    def age(seconds: float | None) -> str:
        return "?" if seconds is None else lasting(now - seconds)

    def ready(node: "ClusterNode") -> Text:
        said = node.condition.status if node.condition else Truth.UNKNOWN
        colour = "green" if node.ready else "yellow" if said == Truth.TRUE else "red"
        return Text("silent", "red") if node.stale else Text(printable(said), colour)

    def domains(node: "ClusterNode") -> str:
        serving = sum(domain.state == State.READY for domain in node.domains)
        return "?" if node.told_at is None else f"{serving}/{len(node.domains)}"

    def violations(node: "ClusterNode") -> str:
        """Since its agent began, and when the last one was."""
        seen = node.violations
        at = seen.last[-1].at if seen and seen.last else None
        last = "" if at is None else f", last {age(at)} ago"
        return "" if seen and seen.total == 0 else f"{_known(seen.total if seen else None)}{last}"

    return (
        Column("NODE", lambda node: node.name, left=True),
        Column("READY", ready, left=True),
        Column("REASON", lambda node: node.condition.reason if node.condition else "", left=True),
        Column("SINCE", lambda node: age(node.condition.since) if node.condition else ""),
        Column("GPUS", lambda node: "?" if node.told_at is None else str(len(node.gpus))),
        Column("DOMAINS", domains),
        Column("GRANTED", lambda node: part_of(_sum(node, "granted_mib"), _sum(node, "promised_mib"))),
        Column("USED", lambda node: known_gib(_sum(node, "used_mib"))),
        Column("PODS", lambda node: "?" if node.pods is None else str(len(node.pods))),
        Column("CLIENTS", lambda node: _known(_sum(node, "clients"))),
        Column("VIOLATIONS", violations, rare=True),
        Column("CORDONED", lambda node: node.cordoned_labels, left=True),
        Column("TOLD", lambda node: "never" if node.told_at is None else age(node.told_at)),
        Column("DRIVER", lambda node: node.driver, left=True, wide=True),
        Column("MESSAGE", lambda node: node.condition.message if node.condition else "", left=True, wide=True),
    )


# -- domains -------------------------------------------------------------------------------------------------------


def domain_line(domain: DomainRow, now: float) -> str:
    """Of a domain that is not ready: since when, why, and what to do, as `mpsd doctor` says it."""
    where = f"{domain.node}: " if domain.node else ""
    since = "" if domain.since is None else f" since {clock(domain.since)} ({lasting(now - domain.since)})"
    what_to_do = remedy(domain.state, domain.reason)
    why = f"{domain.reason or 'no reason said'}{'; ' if what_to_do else ''}{what_to_do}"
    return one_line(f"{where}{domain.name} is {after_is(domain.state)}{since}: {why}")


def suspects_line(domain: DomainRow) -> str:
    """Whom to look at when a domain has one fault after the other."""
    where = f"{domain.node}: " if domain.node else ""
    each = ", ".join(f"{pod} ({_known(times)} in a row)" for pod, times in domain.suspects)
    said = f"{where}{domain.name}: pods that were present at each of its last faults: {each}"
    return one_line(f"{said}; it cannot be determined which of them, if any, caused them")


def clock(seconds: float) -> str:
    """The time of day here of so many seconds since 1970."""
    try:
        return time.strftime("%H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):  # a year that no clock of this machine knows
        return "?"


# -- faults and violations -----------------------------------------------------------------------------------------

SHOWN_S = DAY_S  # after it was


def fault_lines(domain: str, faults: FaultsStatus, now: float) -> Iterator[str]:
    """How often it had one, and of the last one when, whom and for how long; nothing where that was a day ago."""
    if faults.last is None or now - faults.last >= SHOWN_S:
        return
    at = f"{clock(faults.last)} ({lasting(now - faults.last)} ago)"
    had = (
        f"a fault in this boot, at {at}; it"
        if faults.count == 1
        else f"{faults.count} faults in this boot; the last, at {at},"
    )
    who = listed([*map(str, faults.hit)]) if faults.hit else "nobody that is known"
    over = "is not over" if faults.healed is None else f"was over after {max(0.0, faults.healed - faults.last):.1f} s"
    yield one_line(f"{domain} had {had} hit {who} and {over}")


_LONGEST = 1000


def violation_lines(seen: ViolationsStatus, *, most: int) -> Iterator[str]:
    """How many there were, and the last ones, at most so many. Nothing where there was none."""
    if seen.unjudged:
        yield printable(f"nobody is watched: {seen.unjudged}", _LONGEST)
    if seen.counts:
        counts = ", ".join(map(_counted, seen.counts))
        yield f"violations since mpsd's agent started at {clock(seen.since)}: {counts}"
    for one in seen.last[-most:]:
        yield printable(f"{clock(one.at)} {_said(one)}", _LONGEST)


def _counted(one: ViolationCount) -> str:
    """One that was to end may go on, or be gone by itself."""
    if one.action is Response.KILL and one.ended == one.count:
        return f"{one.count} {one.kind} ended"
    were = f" ({one.ended} ended)" if one.action.ends and one.ended is not None else ""
    return f"{one.count} {one.kind} {DONE[one.action]}{were}"


def _said(one: ViolationStatus) -> str:
    who = f"{one.namespace}/{one.pod} " if one.pod else ""
    outcome = f"; {one.outcome}" if one.outcome else ""
    return f"{who}{one.message}{outcome}"
