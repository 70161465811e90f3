"""The tables and sentences of a status, for people: GPUs, grants, nodes, domains, faults and
violations."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import add
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.text import Text

from mpsd.model.cluster_status import PlacedGrant, ServedGpu, ended_before
from mpsd.model.conditions import Truth
from mpsd.model.domain import DRAINS, State, after_is, remedy
from mpsd.model.node_report import ConditionReport, DomainReport, GrantReport, by_kind, total
from mpsd.model.problem import printable, shortened
from mpsd.model.quantity import gib
from mpsd.model.times import DAY_S, epoch, lasting
from mpsd.platform.console import LONGEST_LINE, one_line

if TYPE_CHECKING:  # a look at a cluster does without the last
    from mpsd.model.cluster_status import ClusterNode
    from mpsd.model.events import PastEvent
    from mpsd.model.node_report import FaultsReport, ViolationCount, ViolationsReport

_GAP = "   "
_LINE = Segment.line()
_MOST_KEPT = 4096  # cells, of thousands of rows that mostly say the same

Cell = str | Text
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    title: str
    cell: Callable[[Row], Cell]
    left: bool = False
    #: Shown on request only.
    wide: bool = False
    #: Shown where a cell of it says something.
    rare: bool = False
    #: Is left out of a terminal that is too narrow, the one farthest right first.
    leaves: bool = False


class TextTable:
    """Thousands of rows, each on one line, for a fiftieth of what rich's own table costs: half a
    minute for the GPUs of 500 nodes. No cell is cut: the terminal folds what is too wide.
    """

    def __init__(self, columns: Sequence[Column[Any]], cells: Sequence[Sequence[Cell]]) -> None:
        self._columns = columns
        self._cells = cells
        padded = map(_padded, columns, cells)
        self._head, *self._rows = zip(*padded, strict=True)

    @property
    def width(self) -> int:
        return cell_len(_GAP.join(self._head)) + 2

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.width > options.max_width and any(column.leaves for column in self._columns):
            yield self.within(options.max_width)
            return
        width = self.width
        blank = Segment(" " * width)
        rule = Segment(f" {'─' * (width - 2)} ")
        head = Segment(f" {_GAP.join(self._head)} ", console.get_style("table.header"))
        yield from (blank, _LINE, head, _LINE, rule, _LINE)
        # a pipe: thousands of pieces, each of no style, are as good as one
        if console.color_system is None:
            yield Segment("".join([f" {_GAP.join(row)} \n" for row in self._rows]))
        else:
            for row, cells in zip(self._rows, zip(*self._cells, strict=True), strict=True):
                plain = " "  # one segment for all that has no style
                for text, cell in zip(row, cells, strict=True):
                    if isinstance(cell, Text):
                        yield from (Segment(plain), Segment(text, console.get_style(cell.style)))
                        plain = _GAP
                    else:
                        plain += text + _GAP
                yield from (Segment(f"{plain.removesuffix(_GAP)} "), _LINE)
        yield from (blank, _LINE)

    def within(self, width: int) -> "TextTable":
        """Without as many of the columns that may leave as it takes; one stays in any case."""
        columns = [*self._columns]
        cells = [*self._cells]
        shown = self
        for place in reversed(range(len(self._columns))):
            if shown.width > width and columns[place].leaves and len(columns) > 1:
                del columns[place], cells[place]
                shown = TextTable(columns, cells)
        if shown.width > width:
            shown = TextTable([replace(column, leaves=False) for column in columns], cells)
        return shown


def _padded(column: Column[Any], cells: Sequence[Cell]) -> list[str]:
    texts = [column.title, *map(str, cells)]
    every = "".join(texts)
    width_of = len if every.isascii() and every.isprintable() else cell_len
    widths = [*map(width_of, texts)]
    most = max(widths)
    spaces = [" " * (most - width) for width in widths]
    if column.left:
        return [*map(add, texts, spaces)]
    return [*map(add, spaces, texts)]


def table(columns: Iterable[Column[Row]], rows: Iterable[Row], *, wide: bool = False) -> TextTable:
    listed = [*rows]
    shown = []
    every_cell = []
    for column in columns:
        if column.wide and not wide:
            continue
        cells = _cells(column, listed)
        if column.rare and {"", "?"}.issuperset(map(str, cells)):
            continue
        shown.append(replace(column, leaves=column.leaves and not wide))
        every_cell.append(cells)
    return TextTable(shown, every_cell)


def _cells(column: Column[Row], rows: Sequence[Row]) -> list[Cell]:
    cells = [*map(column.cell, rows)]
    texts = [cell for cell in cells if isinstance(cell, str)]
    # as they all are, mostly
    if "".join(texts).isprintable() and max(map(len, texts), default=0) <= LONGEST_LINE:
        return cells
    return [cell if isinstance(cell, Text) else one_line(cell) for cell in cells]


@lru_cache(_MOST_KEPT)
def known(amount: int | None, unit: str = "") -> str:
    return "?" if amount is None else f"{amount}{unit}"


@lru_cache(_MOST_KEPT)
def known_gib(memory_mib: int | None) -> str:
    return "?" if memory_mib is None else f"{gib(memory_mib)} GiB"


def _without_unit(memory_mib: int | None) -> str:
    return known_gib(memory_mib).removesuffix(" GiB")


@lru_cache(_MOST_KEPT)
def part_of(part_mib: int | None, whole_mib: int | None) -> str:
    return f"{_without_unit(part_mib)}/{_without_unit(whole_mib)} GiB"


# -- GPUs

_COLOURS = {State.READY.value: "green"} | {
    state.value: "yellow" for state in (State.STARTING, *DRAINS)
}


def _state(gpu: ServedGpu) -> Text:
    if gpu.state is None:
        return Text("no daemon", "red")
    # the node has not heard of it yet, or has other trouble first
    if gpu.cordoned and gpu.state not in DRAINS:
        return state_text(gpu.state, ", cordoned")
    return state_text(gpu.state)


@lru_cache(_MOST_KEPT)
def state_text(state: str, more: str = "") -> Text:
    return Text(printable(state) + more, _COLOURS.get(state, "red"))


GPU_COLUMNS: tuple[Column[ServedGpu], ...] = (
    Column("GPU", lambda gpu: gpu.label, left=True),
    Column("MODEL", lambda gpu: gpu.model.removeprefix("NVIDIA "), left=True, leaves=True),
    Column("DOMAIN", lambda gpu: gpu.domain, left=True),
    Column("STATE", _state, left=True),
    Column("GRANTED", lambda gpu: part_of(gpu.granted_mib, gpu.promised_mib)),
    Column("RESERVED", lambda gpu: known(gpu.granted_percent, " %"), leaves=True),
    Column("USED", lambda gpu: known_gib(gpu.used_mib)),
    Column("CLIENTS", lambda gpu: known(gpu.clients), leaves=True),
    Column("RESTARTS", lambda gpu: "" if gpu.state is None else known(gpu.restarts), leaves=True),
    Column("CONTEXT", lambda gpu: known(gpu.context_mib, " MiB"), wide=True),
    Column("UUID", lambda gpu: gpu.uuid, left=True, wide=True),
)
CLUSTER_GPU_COLUMNS: tuple[Column[ServedGpu], ...] = (
    Column("NODE", lambda gpu: gpu.node, left=True),
    *GPU_COLUMNS,
)

# -- grants


def _each(grant: GrantReport, amount: str) -> str:
    """One where it has as much of each GPU, else one a GPU."""
    if len({card.memory_mib for card in grant.cards}) <= 1:
        return known_gib(getattr(grant, amount))
    each = [_without_unit(getattr(card, amount)) for card in grant.cards]
    return f"{','.join(each)} GiB"


def _used(row: PlacedGrant) -> str | Text:
    used = _each(row.grant, "used_mib")
    return Text(f"{used}, over", "red") if row.grant.over else used


def _ended(grant: GrantReport, what: str) -> str:
    if grant.ended:
        left = "are left" if grant.clients is not None else "may be left"
        return f"(ended, programs of it {left}) {what}"
    return f"(no cgroup) {what}" if grant.cgroup == "" else what


def _holder(row: PlacedGrant) -> str:
    grant = row.grant
    return _ended(grant, grant.pods_in_words or f"pid {known(grant.holder_pid)}")


def _violations(row: PlacedGrant) -> str:
    if row.grant.violations is None:
        return "?"
    counts = by_kind(row.grant.violations.counts)
    return ", ".join([f"{known(count)} {kind}" for kind, count in counts.items()])


_GRANT: tuple[Column[PlacedGrant], ...] = (
    Column("GPU", lambda row: ",".join(row.labels), left=True),
    Column("GRANTED", lambda row: _each(row.grant, "memory_mib")),
    Column("THREADS", lambda row: known(row.grant.thread_percent, " %"), leaves=True),
    Column("USED", _used),
    Column("CLIENTS", lambda row: known(row.grant.clients), leaves=True),
)
GRANT_COLUMNS: tuple[Column[PlacedGrant], ...] = (
    Column("GRANT", lambda row: row.grant.id, left=True),
    *_GRANT,
    Column("PID", lambda row: known(row.grant.holder_pid), leaves=True),
    Column("COMMAND", lambda row: _ended(row.grant, row.grant.command), left=True),
)
POD_COLUMNS: tuple[Column[PlacedGrant], ...] = (
    Column("POD", _holder, left=True),
    Column("CLAIM", lambda row: row.grant.claim, left=True, rare=True),
    *_GRANT,
    Column(
        "PRIORITY", lambda row: "below normal" if row.grant.priority else "", left=True, rare=True
    ),
    Column("UID", lambda row: row.grant.uid or row.grant.id, left=True, wide=True),
    Column(
        "SHARED WITH", lambda row: ", ".join(row.grant.names[1:]), left=True, wide=True, rare=True
    ),
)
CLUSTER_POD_COLUMNS: tuple[Column[PlacedGrant], ...] = (
    Column("NODE", lambda row: row.node, left=True),
    *POD_COLUMNS,
    Column("VIOLATIONS", _violations, left=True, rare=True),
)


# -- nodes


_NO_CONDITION = ConditionReport(status=Truth.UNKNOWN)


def _condition(node: "ClusterNode") -> ConditionReport:
    return node.condition or _NO_CONDITION


def _sum(node: "ClusterNode", field: str) -> int | None:
    """Of all GPUs of the node; None where it has reported nothing."""
    return None if node.reported_at is None else total([getattr(gpu, field) for gpu in node.gpus])


def _ready(node: "ClusterNode") -> Text:
    if node.stale:
        return Text("silent", "red")
    said = _condition(node).status
    colour = "green" if node.ready else "yellow" if said == Truth.TRUE else "red"
    return Text(printable(said), colour)


def _gpus(node: "ClusterNode") -> str:
    return "?" if node.reported_at is None else str(len(node.gpus))


def _domains(node: "ClusterNode") -> str:
    if node.reported_at is None:
        return "?"
    serving = [domain.state for domain in node.domains].count(State.READY)
    return f"{serving}/{len(node.domains)}"


def _pods(node: "ClusterNode") -> str:
    """How many; one of several claims is one."""
    if node.pods is None:
        return "?"
    return str(len({one for grant in node.pods for one in grant.pods}))


def node_table(nodes: "Iterable[ClusterNode]", now: float, *, wide: bool) -> TextTable:
    def age(seconds: float | None) -> str:
        return "?" if seconds is None else lasting(now - seconds)

    def since(node: "ClusterNode") -> str:
        return age(epoch(node.condition.last_transition_time)) if node.condition else ""

    def violations(node: "ClusterNode") -> str:
        """Since its agent began, and when the last one was."""
        seen = node.violations
        if seen is None:
            return "?"
        number = total([one.count for one in seen.counts])
        if number == 0:
            return ""
        at = epoch(seen.last[-1].at) if seen.last else None
        return known(number) if at is None else f"{known(number)}, last {age(at)} ago"

    def reported(node: "ClusterNode") -> str:
        return "never" if node.reported_at is None else age(node.reported_at)

    columns: tuple[Column[ClusterNode], ...] = (
        Column("NODE", lambda node: node.name, left=True),
        Column("READY", _ready, left=True),
        Column("REASON", lambda node: _condition(node).reason, left=True, leaves=True),
        Column("SINCE", since, leaves=True),
        Column("GPUS", _gpus),
        Column("DOMAINS", _domains, leaves=True),
        Column(
            "GRANTED", lambda node: part_of(_sum(node, "granted_mib"), _sum(node, "promised_mib"))
        ),
        Column("USED", lambda node: known_gib(_sum(node, "used_mib"))),
        Column("PODS", _pods, leaves=True),
        Column("CLIENTS", lambda node: known(_sum(node, "clients")), leaves=True),
        Column("VIOLATIONS", violations, rare=True),
        Column("CORDONED", lambda node: node.cordoned_labels, left=True),
        Column("REPORTED", reported, leaves=True),
        Column("DRIVER", lambda node: node.driver, left=True, wide=True),
        Column("MESSAGE", lambda node: _condition(node).message, left=True, wide=True),
    )
    return table(columns, nodes, wide=wide)


# -- domains


def domain_lines(domain: DomainReport, now: float) -> Iterator[str]:
    """Of one that is not ready: since when, why, and what to do. Whom to look at when it has one
    fault after the other."""
    if domain.state != State.READY:
        state = f"{domain.name} is {after_is(domain.state)}"
        if (began := epoch(domain.since)) is not None:
            state += f" since {clock(began)} ({lasting(now - began)})"
        what_to_do = remedy(domain.state, domain.reason)
        why = "; ".join(filter(None, [domain.reason or "no reason reported", what_to_do]))
        yield f"{state}: {why}"
    if suspects := domain.faults.suspects:
        each = ", ".join([f"{one.pod} ({known(one.faults)} in a row)" for one in suspects])
        yield (
            f"{domain.name}: pods that were present at each of its last faults: {each}; it cannot"
            " be determined which of them, if any, caused them"
        )


def causes_lines(domain: DomainReport, now: float) -> Iterator[str]:
    last = epoch(domain.faults.last)
    if domain.faults.causes and last is not None and now - last < DAY_S:
        causes = ended_before(map(str, domain.faults.causes))
        yield f"{domain.name} had a fault at {_ago(last, now)}; {causes}"


def _ago(at: float, now: float) -> str:
    return f"{clock(at)} ({lasting(now - at)} ago)"


def clock(seconds: float) -> str:
    try:
        return time.strftime("%H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):  # a year that no clock of this machine knows
        return "?"


# -- faults and violations

_LONGEST = 1000


def fault_lines(domain: str, faults: "FaultsReport", now: float) -> Iterator[str]:
    """How many it had, and what the last one did; nothing a day after it."""
    last = epoch(faults.last)
    if last is None or now - last >= DAY_S:
        return
    had = f"{faults.count} faults in this boot; the last, at {_ago(last, now)},"
    if faults.count == 1:
        had = f"a fault in this boot, at {_ago(last, now)}; it"
    who = shortened([*map(str, faults.hit)]) or "no known process"
    over = "is not over"
    if (healed := epoch(faults.healed)) is not None:
        over = f"was over after {max(0.0, healed - last):.1f} s"
    causes = ended_before(map(str, faults.causes))
    yield one_line(f"{domain} had {had} hit {who} and {over}; {causes}")


def event_lines(events: "Iterable[PastEvent]", now: float) -> Iterator[str]:
    for one in events:
        if now - one.at < DAY_S:
            yield printable(f"{one.what} at {_ago(one.at, now)}: {one.text}", _LONGEST)


def violation_lines(seen: "ViolationsReport", *, most: int) -> Iterator[str]:
    if seen.unjudged:
        yield printable(f"violations are not detected: {seen.unjudged}", _LONGEST)
    if seen.counts:
        counts = ", ".join(map(_counted, seen.counts))
        began = clock(epoch(seen.since) or 0.0)
        yield f"violations since mpsd's agent started at {began}: {counts}"
    for one in seen.last[-most:]:
        words = " ".join(filter(None, [clock(epoch(one.at) or 0.0), one.pod, one.message]))
        yield printable("; ".join(filter(None, [words, one.outcome])), _LONGEST)


def _counted(one: "ViolationCount") -> str:
    from mpsd.model.violations import DONE, Response

    if one.action == Response.KILL and one.ended == one.count:
        return f"{one.count} {one.kind} ended"  # another may go on, or be gone by itself
    done = f"{one.count} {one.kind} {DONE.get(one.action, one.action)}"
    if one.action in {Response.KILL, Response.EVICT} and one.ended is not None:
        done += f" ({one.ended} ended)"
    return done
