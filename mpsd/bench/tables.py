"""A benchmark for people: one table for each part, and the claims.

A table shows what was read; what follows from it is in the claims, except for a ratio beside its two figures.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from mpsd.bench.rules.claims import BenchClaim, ClaimVerdict, figure
from mpsd.bench.rules.rows import (
    Benchmark,
    BenchPart,
    ClientsRow,
    CostRow,
    MachineRow,
    NeedRow,
    PriorityRow,
    RatioRow,
    ReactionRow,
    ShareRow,
    SharingRow,
    SizeRow,
    rows_of,
)
from mpsd.model.quantity import gib
from mpsd.platform.console import one_line
from mpsd.status.tables import Column, table

QUESTIONS: Mapping[BenchPart, str] = {
    BenchPart.SHARING: "what many programs get done: in turns, under MPS, under mpsd",
    BenchPart.SHARES: "whether so many percent of the threads do so much of the work, alone and beside others",
    BenchPart.RATIO: "whether two programs with shares of 1:2 get 1:2 done",
    BenchPart.SIZES: "whether a grant's memory changes what it computes",
    BenchPart.NEED: "whether a program that needs more than its grant is stopped by it, and one that needs less runs",
    BenchPart.COST: "what mpsd costs against MPS alone",
    BenchPart.CLIENTS: "how throughput changes with more and more programs",
    BenchPart.PRIORITY: "whether a program that serves requests keeps its latency beside batch work below normal",
    BenchPart.REACTIONS: "how soon an escape is over, a killed daemon is back, a fault is healed",
    BenchPart.TORCH: "whether ResNet-50 under PyTorch with shares of 1:2 gets 1:2 done",
}
SIMULATED = "These figures are simulated and say nothing about a real GPU."


def parts(benchmark: Benchmark, claims: Iterable[BenchClaim]) -> Iterator[RenderableType]:
    """From top to bottom."""
    yield heading(benchmark.machine, benchmark.window_s)
    if benchmark.machine.simulated:
        yield Text(SIMULATED, "yellow")
    for part in BenchPart:
        if rows := rows_of(benchmark, part):
            yield Text(f"\n{part}: {QUESTIONS[part]}", "bold")
            yield _tabulated(part, rows)
    if benchmark.listed:
        yield Text("\nnvidia-smi, while programs ran under mpsd", "bold")
        yield from map(_line, benchmark.listed.rstrip().splitlines())
    yield from _judged(benchmark, tuple(claims))


def heading(machine: MachineRow, window_s: float) -> Text:
    gpu = f"{machine.gpu}, {gib(machine.memory_mib)} GiB, {machine.sms} SMs"
    host = f"{machine.cores} cores, Python {machine.python}, mpsd {machine.mpsd}"
    when = f"{machine.date}, windows of {window_s:g} s"
    return _line(f"{gpu}, driver {machine.driver}, CUDA {machine.cuda}; {host}; {when}")


def _line(text: str, style: str = "") -> Text:
    """What a file may have told a terminal to do is only shown."""
    return Text(one_line(text), style)


# -- claims --------------------------------------------------------------------------------------------------------

_COLOURS = {
    ClaimVerdict.HOLDS: "green",
    ClaimVerdict.BROKEN: "red",
    ClaimVerdict.CANNOT_TELL: "yellow",
    ClaimVerdict.NOT_MEASURED: "yellow",
    ClaimVerdict.NO_LIMIT: "",
}
_WIDEST = max(len(verdict) for verdict in ClaimVerdict)


def _judged(benchmark: Benchmark, claims: tuple[BenchClaim, ...]) -> Iterator[Text]:
    """Those of parts that were not run are left out, and the parts are named."""
    skipped = dict(benchmark.skipped)
    run = {part for part in BenchPart if part in skipped or rows_of(benchmark, part)}
    shown = [claim for claim in claims if claim.part in run]
    if shown:
        yield Text("\nwhat mpsd promises", "bold")
    yield from map(claim_line, shown)
    for part, why in skipped.items():
        yield _line(f"{part} was not measured: {why}", "yellow")
    if left_out := [part for part in BenchPart if part not in run]:
        yield Text(f"not run: {', '.join(left_out)}")


def claim_line(claim: BenchClaim) -> Text:
    verdict = Text(f"{claim.verdict:<{_WIDEST}}", _COLOURS[claim.verdict])
    if claim.value is None:
        return Text.assemble(" ", verdict, _line(f"   {claim.what}: {claim.note}"))
    value = f"{figure(claim.value, claim.unit)} {claim.unit}"
    limit = f", promised {claim.limit.bound} {claim.limit.value:g}" if claim.limit else ""
    note = f" ({claim.note})" if claim.note else ""
    return Text.assemble(" ", verdict, _line(f"   {claim.what}: "), (value, "bold"), _line(f"{limit}{note}"))


# -- tables --------------------------------------------------------------------------------------------------------


def _rate(value: float) -> str:
    return f"{value:,.1f}" if abs(value) < 1000 else f"{value:,.0f}"


def _ms(value: float) -> str:
    return f"{value:.3f} ms"


def _to(first: float, second: float) -> str:
    return f"1:{second / first:.3f}" if first > 0 else "?"


def _percents(percents: Iterable[int]) -> str:
    return " + ".join(f"{percent} %" for percent in percents)


_SHARING: tuple[Column[SharingRow], ...] = (
    Column("MODE", lambda row: row.mode, left=True),
    Column("WORK", lambda row: row.work, left=True),
    Column("PROGRAMS", lambda row: str(row.programs)),
    Column("LAUNCHES/S", lambda row: _rate(row.launches_per_s)),
    Column("P50", lambda row: _ms(row.p50_ms)),
    Column("P99", lambda row: _ms(row.p99_ms)),
)
_SHARES: tuple[Column[ShareRow], ...] = (
    Column("SHARE", lambda row: f"{row.percent} %"),
    Column("SMS", lambda row: str(row.sms)),
    Column("BESIDE", lambda row: _percents(row.beside) or "alone", left=True),
    Column("WORK", lambda row: row.work, left=True),
    Column("LAUNCHES/S", lambda row: _rate(row.launches_per_s)),
)
_RATIO: tuple[Column[RatioRow], ...] = (
    Column("WORK", lambda row: row.work, left=True),
    Column("BATCH", lambda row: "" if row.batch is None else str(row.batch)),
    Column("SHARES", lambda row: _percents(row.percents), left=True),
    Column("SMS", lambda row: " + ".join(map(str, row.sms)), left=True),
    Column("A SECOND", lambda row: f"{' + '.join(map(_rate, row.per_s))} {row.unit}", left=True),
    Column("RATIO", lambda row: _to(*row.per_s)),
)
_SIZES: tuple[Column[SizeRow], ...] = (
    Column("SHARE", lambda row: f"{row.percent} %"),
    Column("MEMORY", lambda row: f"{row.memory_gib} GiB"),
    Column("LAUNCHES/S", lambda row: _rate(row.launches_per_s)),
)
_NEED: tuple[Column[NeedRow], ...] = (
    Column("NEEDS", lambda row: f"{row.needs_mib} MiB"),
    Column("GRANT", lambda row: f"{row.limit_mib} MiB"),
    Column("GOT", lambda row: f"{row.got_mib} MiB"),
    Column("CUDA SAID", lambda row: row.result, left=True),
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
_CLIENTS: tuple[Column[ClientsRow], ...] = (
    Column("PROGRAMS", lambda row: str(row.programs)),
    Column("WORK", lambda row: row.work, left=True),
    Column("LAUNCHES/S", lambda row: _rate(row.launches_per_s)),
    Column("P50", lambda row: _ms(row.p50_ms)),
    Column("P99", lambda row: _ms(row.p99_ms)),
    Column("ALL STARTED AFTER", lambda row: f"{row.starts_s:.1f} s"),
    Column("MPSD, OF A CORE", lambda row: "?" if row.mpsd_cores is None else f"{row.mpsd_cores:.2%}"),
    Column("RESIDENT", lambda row: "?" if row.mpsd_mib is None else f"{row.mpsd_mib:.0f} MiB"),
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
    return [_Times(what, how, tuple(seconds), grace_s) for (what, how, grace_s), seconds in found.items()]


_COLUMNS: Mapping[BenchPart, Any] = {
    BenchPart.SHARING: _SHARING,
    BenchPart.SHARES: _SHARES,
    BenchPart.RATIO: _RATIO,
    BenchPart.SIZES: _SIZES,
    BenchPart.NEED: _NEED,
    BenchPart.COST: _COST,
    BenchPart.CLIENTS: _CLIENTS,
    BenchPart.PRIORITY: _PRIORITY,
    BenchPart.REACTIONS: _REACTIONS,
    BenchPart.TORCH: _RATIO,
}


def _tabulated(part: BenchPart, rows: tuple[Any, ...]) -> RenderableType:
    return table(_COLUMNS[part], _times(rows) if part is BenchPart.REACTIONS else rows)
