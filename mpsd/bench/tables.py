"""A benchmark for people: a table for each kind of row, and the claims.

A table shows what was read; what follows from it is in the claims, except for a ratio beside its
two figures.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from mpsd.bench.rules.claims import BenchClaim, ClaimVerdict, figure
from mpsd.bench.rules.rows import (
    FIELDS,
    BenchGroup,
    Benchmark,
    CostRow,
    MachineRow,
    PriorityRow,
    ReactionRow,
    ShareRow,
    SharingRow,
    is_run,
    rows_of,
)
from mpsd.model.quantity import gib
from mpsd.platform.console import one_line
from mpsd.status.tables import Column, table

QUESTIONS: Mapping[BenchGroup, str] = {
    BenchGroup.SHARING: (
        "what many programs get done, in turns, under MPS, under mpsd, and beside work below normal"
    ),
    BenchGroup.SHARES: "whether so much of the threads does so much of the work",
    BenchGroup.COST: "what mpsd costs against MPS alone",
    BenchGroup.REACTIONS: "how soon an escape is over, a killed daemon is back, a fault is healed",
}
SIMULATED = "These figures are simulated and say nothing about a real GPU."


def shown(benchmark: Benchmark, claims: Iterable[BenchClaim]) -> Iterator[RenderableType]:
    """From top to bottom."""
    yield heading(benchmark.machine, benchmark.window_s)
    if benchmark.machine.simulated:
        yield Text(SIMULATED, "yellow")
    for group in BenchGroup:
        measured = {field: rows for field in FIELDS[group] if (rows := rows_of(benchmark, field))}
        if measured:
            yield Text(f"\n{group}: {QUESTIONS[group]}", "bold")
        for field, rows in measured.items():
            yield _tabulated(field, rows)
    yield from _judged(benchmark, tuple(claims))


def heading(machine: MachineRow, window_s: float) -> Text:
    gpu = f"{machine.gpu}, {gib(machine.memory_mib)} GiB, {machine.sms} SMs"
    host = f"{machine.cores} cores, Python {machine.python}, mpsd {machine.mpsd}"
    when = f"{machine.date}, windows of {window_s:g} s"
    return _line(f"{gpu}, driver {machine.driver}, CUDA {machine.cuda}; {host}; {when}")


def _line(text: str, style: str = "") -> Text:
    """What a file may have told a terminal to do is only shown."""
    return Text(one_line(text), style)


# -- claims

_COLOURS = {
    ClaimVerdict.HOLDS: "green",
    ClaimVerdict.BROKEN: "red",
    ClaimVerdict.CANNOT_TELL: "yellow",
    ClaimVerdict.NOT_MEASURED: "yellow",
    ClaimVerdict.NO_LIMIT: "",
}
_WIDEST = max(len(verdict) for verdict in ClaimVerdict)


def _judged(benchmark: Benchmark, claims: tuple[BenchClaim, ...]) -> Iterator[Text]:
    """Those of groups that were not run are left out, and the groups are named."""
    left_out = [group for group in BenchGroup if not is_run(benchmark, group)]
    judged = [claim for claim in claims if claim.group not in left_out]
    if judged:
        yield Text("\nwhat mpsd promises", "bold")
    yield from map(claim_line, judged)
    for group, why in benchmark.skipped:
        yield _line(f"{group} was not measured: {why}", "yellow")
    if left_out:
        yield Text(f"not run: {', '.join(left_out)}")


def claim_line(claim: BenchClaim) -> Text:
    verdict = Text(f"{claim.verdict:<{_WIDEST}}", _COLOURS[claim.verdict])
    if claim.value is None:
        return Text.assemble(" ", verdict, _line(f"   {claim.what}: {claim.note}"))
    value = f"{figure(claim.value, claim.unit)} {claim.unit}"
    limit = f", promised {claim.limit.bound} {claim.limit.value:g}" if claim.limit else ""
    note = f" ({claim.note})" if claim.note else ""
    return Text.assemble(
        " ", verdict, _line(f"   {claim.what}: "), (value, "bold"), _line(f"{limit}{note}")
    )


# -- tables


def _rate(value: float) -> str:
    return f"{value:,.1f}" if abs(value) < 1000 else f"{value:,.0f}"


def _ms(value: float) -> str:
    return f"{value:.3f} ms"


def _percents(percents: Iterable[int]) -> str:
    return " + ".join(f"{percent} %" for percent in percents)


_SHARING: tuple[Column[SharingRow], ...] = (
    Column("MODE", lambda row: row.mode, left=True),
    Column("WORK", lambda row: row.work, left=True),
    Column("PROGRAMS", lambda row: str(row.programs)),
    Column("LAUNCHES/S", lambda row: _rate(row.launches_per_s)),
    Column("P50", lambda row: _ms(row.p50_ms)),
    Column("P99", lambda row: _ms(row.p99_ms)),
    Column("ALL STARTED AFTER", lambda row: f"{row.starts_s:.1f} s"),
    Column(
        "MPSD, OF A CORE", lambda row: "" if row.mpsd_cores is None else f"{row.mpsd_cores:.2%}"
    ),
    Column("RESIDENT", lambda row: "" if row.mpsd_mib is None else f"{row.mpsd_mib:.0f} MiB"),
)
_SHARES: tuple[Column[ShareRow], ...] = (
    Column("SHARE", lambda row: f"{row.percent} %"),
    Column("MEMORY", lambda row: f"{row.memory_gib} GiB"),
    Column("SMS", lambda row: str(row.sms)),
    Column("BESIDE", lambda row: _percents(row.beside) or "alone", left=True),
    Column("WORK", lambda row: row.work, left=True),
    Column("LAUNCHES/S", lambda row: _rate(row.launches_per_s)),
)
_COST: tuple[Column[CostRow], ...] = (
    Column("WORK", lambda row: row.work, left=True),
    Column("PROGRAMS", lambda row: str(row.programs)),
    Column("PAIR", lambda row: str(row.pair + 1)),
    Column("MPS LAUNCHES/S", lambda row: _rate(row.mps_per_s)),
    Column("MPSD LAUNCHES/S", lambda row: _rate(row.mpsd_per_s)),
    Column("MPS P99", lambda row: _ms(row.mps_p99_ms)),
    Column("MPSD P99", lambda row: _ms(row.mpsd_p99_ms)),
)
_PRIORITY: tuple[Column[PriorityRow], ...] = (
    Column("BATCH", lambda row: row.batch, left=True),
    Column("REQUESTS/S", lambda row: _rate(row.requests_per_s)),
    Column("P50", lambda row: _ms(row.p50_ms)),
    Column("P99", lambda row: _ms(row.p99_ms)),
    Column("BATCH LAUNCHES/S", lambda row: _rate(row.batch_per_s) if row.batch_per_s else ""),
)


@dataclass(frozen=True, slots=True)
class _Times:
    """The rounds of one reaction, in one way."""

    what: str
    how: str
    seconds: tuple[float, ...]
    grace_s: float


_REACTIONS: tuple[Column[_Times], ...] = (
    Column("FROM, TO", lambda times: times.what, left=True),
    Column("HOW", lambda times: times.how, left=True),
    Column("ROUNDS", lambda times: str(len(times.seconds))),
    Column("MEDIAN", lambda times: f"{median(times.seconds):.3f} s"),
    Column("LEAST", lambda times: f"{min(times.seconds):.3f} s"),
    Column("MOST", lambda times: f"{max(times.seconds):.3f} s"),
    Column("OF IT GRACE", lambda times: f"{times.grace_s:g} s" if times.grace_s else ""),
)


def _times(rows: Iterable[ReactionRow]) -> list[_Times]:
    """The rounds together: sixty lines would say less."""
    found: dict[tuple[str, str, float], list[float]] = {}
    for row in rows:
        found.setdefault((row.reaction, row.how, row.grace_s), []).append(row.seconds)
    return [
        _Times(what, how, tuple(seconds), grace_s)
        for (what, how, grace_s), seconds in found.items()
    ]


_COLUMNS: Mapping[str, Any] = {
    "sharing": _SHARING,
    "priority": _PRIORITY,
    "shares": _SHARES,
    "cost": _COST,
    "reactions": _REACTIONS,
}


def _tabulated(field: str, rows: tuple[Any, ...]) -> RenderableType:
    return table(_COLUMNS[field], _times(rows) if field == "reactions" else rows)
