"""What mpsd promises of sharing, compared with what `mpsd bench` has measured.

A claim is computed from the rows alone. One that was not measured neither holds nor fails, and its
note says why.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from math import comb, inf
from statistics import median

from mpsd.bench.rules.rows import (
    BatchWork,
    BenchGroup,
    Benchmark,
    CostRow,
    PriorityRow,
    Reaction,
    ShareRow,
    SharingMode,
    WorkKind,
    is_run,
)

_COUNTED = {"programs", "clients"}  # units of whole numbers


class Bound(StrEnum):
    """On which side of its limit a value must be."""

    UNDER = "<"
    AT_MOST = "≤"
    AT_LEAST = "≥"


class ClaimVerdict(StrEnum):
    HOLDS = "holds"
    BROKEN = "does not hold"
    CANNOT_TELL = "cannot tell"  # pairs that lie too far apart for their number
    NOT_MEASURED = "not measured"
    NO_LIMIT = "no limit"  # a figure to know, of which nothing is promised


@dataclass(frozen=True, slots=True)
class Limit:
    bound: Bound
    value: float


@dataclass(frozen=True, slots=True)
class BenchClaim:
    """One promise, and what was measured of it."""

    group: BenchGroup
    #: A sentence.
    what: str
    #: Of value and limit.
    unit: str
    #: None where nothing is promised.
    limit: Limit | None = None
    #: None where it was not measured.
    value: float | None = None
    #: Why it was not measured, else of what the value is.
    note: str = ""
    #: Where the median of all pairs lies that could be measured; None where the value is no median
    #: of pairs.
    interval: tuple[float, float] | None = None

    @property
    def verdict(self) -> ClaimVerdict:
        if self.value is None:
            return ClaimVerdict.NOT_MEASURED
        if self.limit is None:
            return ClaimVerdict.NO_LIMIT
        ends = {self._keeps(value, self.limit) for value in self.interval or (self.value,)}
        if len(ends) > 1:
            return ClaimVerdict.CANNOT_TELL
        return ClaimVerdict.HOLDS if ends == {True} else ClaimVerdict.BROKEN

    @staticmethod
    def _keeps(value: float, limit: Limit) -> bool:
        match limit.bound:
            case Bound.UNDER:
                return value < limit.value
            case Bound.AT_MOST:
                return value <= limit.value
            case Bound.AT_LEAST:
                return value >= limit.value

    def found(self, value: float, note: str = "") -> "BenchClaim":
        return replace(self, value=value, note=note)

    def found_if(self, value: float | None, why_not: str) -> "BenchClaim":
        return self.unknown(why_not) if value is None else self.found(value)

    def unknown(self, why: str) -> "BenchClaim":
        return replace(self, note=why)

    def median_of_pairs(self, values: Sequence[float]) -> "BenchClaim":
        """As `median_of`, with an interval: one pair says little where others differ by more than
        the limit."""
        found = self.median_of(values, "pairs")
        if found.value is None:
            return found
        interval = median_interval(values)
        shown = (
            " to ".join(figure(end, self.unit) for end in interval)
            if interval
            else "unknown of so few"
        )
        return replace(
            found,
            interval=interval or (-inf, inf),
            note=f"{found.note}; {CONFIDENCE:.0%} interval {shown}",
        )

    def median_of(self, values: Sequence[float], of: str) -> "BenchClaim":
        """The claim with their median, and how far they are apart. of: what each is of, one word in
        the plural."""
        if not values:
            return self.unknown(f"no {of} could be compared: a figure is 0")
        if len(values) == 1:
            return self.found(values[0], f"of {counted(1, of)}")
        spread = (
            f"median of {len(values)} {of}, {figure(min(values), self.unit)} to"
            f" {figure(max(values), self.unit)}"
        )
        return self.found(median(values), spread)


CONFIDENCE = 0.95


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Between which of these values the median lies of what they are samples of, whatever its
    distribution: each is above or below it by the toss of a coin (the sign test). None for fewer
    than six, which can be all on one side."""
    in_order = sorted(values)
    number = len(values)
    place = -1
    outside = 0.0
    while outside + comb(number, place + 1) / 2**number <= (1 - CONFIDENCE) / 2:
        place += 1
        outside += comb(number, place) / 2**number
    return (in_order[place], in_order[number - 1 - place]) if place >= 0 else None


def counted(number: int, of: str) -> str:
    """of: one word in the plural."""
    return f"{number} {of.removesuffix('s') if number == 1 else of}"


def figure(value: float, unit: str) -> str:
    """A value as people read it, without its unit."""
    digits = 3 if unit == "s" else 0 if unit in _COUNTED else 2 if abs(value) < 100 else 0
    return f"{round(value, digits) + 0.0:,.{digits}f}"  # without the sign of -0.0


def ratio(value: float | None, to: float | None) -> float | None:
    """None where there is nothing to compare."""
    if value is None or to is None or to <= 0:
        return None
    try:
        return value / to
    except OverflowError:  # a file may hold any number
        return None


CLIENTS = 48  # that MPS serves on every card in limits/gpus.yaml
_PROGRAMS = 8


def claims(benchmark: Benchmark) -> tuple[BenchClaim, ...]:
    """Every claim, in the order of the groups."""
    return tuple(chain.from_iterable(judge(benchmark) for judge in _JUDGES))


# -- sharing


def _small_kernels(benchmark: Benchmark) -> Iterator[BenchClaim]:
    what = f"{_PROGRAMS} programs of small kernels under mpsd get more done than in turns"
    promise = BenchClaim(BenchGroup.SHARING, what, "×", Limit(Bound.AT_LEAST, 10))
    rates = {}
    for row in benchmark.sharing:
        if (row.work, row.programs) == (WorkKind.SMALL, _PROGRAMS):
            rates[row.mode] = row.launches_per_s
    if not rates:
        yield _not_measured(promise, benchmark)
        return
    gain = ratio(rates.get(SharingMode.MPSD), rates.get(SharingMode.TIME_SLICED))
    yield promise.found_if(gain, "it takes both, and a rate above 0")


def _clients(benchmark: Benchmark) -> Iterator[BenchClaim]:
    what = "programs that compute at once under mpsd"
    promise = BenchClaim(BenchGroup.SHARING, what, "programs", Limit(Bound.AT_LEAST, CLIENTS))
    rows = [row for row in benchmark.sharing if row.mode is SharingMode.MPSD]
    most = max([row.programs for row in rows if row.launches_per_s > 0], default=0)
    if not rows:
        yield _not_measured(promise, benchmark)
    elif benchmark.machine.simulated and most < CLIENTS:
        yield promise.unknown(f"{most} were played; each waits for a real processor")
    elif benchmark.machine.memory_mib < CLIENTS * 1024:
        yield promise.unknown(f"{most} were, and the card has memory for no {CLIENTS} of 1 GiB")
    else:
        yield promise.found(most)


def _priority(benchmark: Benchmark) -> Iterator[BenchClaim]:
    rows = benchmark.priority
    alone = _median(rows, BatchWork.NONE, lambda row: row.p99_ms)
    for batch in (BatchWork.NORMAL, BatchWork.BELOW_NORMAL):
        what = f"p99 of a request beside batch work of {batch} priority, against alone"
        limit = Limit(Bound.AT_MOST, 1.2) if batch is BatchWork.BELOW_NORMAL else None
        promise = BenchClaim(BenchGroup.SHARING, what, "×", limit)
        slower = ratio(_median(rows, batch, lambda row: row.p99_ms), alone)
        yield _not_measured(promise, benchmark) if slower is None else promise.found(slower)
    done = {batch: _median(rows, batch, lambda row: row.batch_per_s) for batch in BatchWork}
    promise = BenchClaim(
        BenchGroup.SHARING, "what batch work below normal gets done, against normal", "×"
    )
    kept = ratio(done[BatchWork.BELOW_NORMAL], done[BatchWork.NORMAL])
    yield _not_measured(promise, benchmark) if kept is None else promise.found(kept)


def _median(
    rows: Iterable[PriorityRow], batch: BatchWork, figure: Callable[[PriorityRow], float]
) -> float | None:
    """Of the windows beside this batch work; None where there are none."""
    found = [figure(row) for row in rows if row.batch is batch]
    return median(found) if found else None


# -- shares


def _share_line(benchmark: Benchmark) -> Iterator[BenchClaim]:
    """A program's part of the work against its part of the SMs, in points of percent."""
    for alone, how in ((True, "alone"), (False, "beside others")):
        what = f"a program does its SMs' part of the work, {how} (the largest difference)"
        yield _line(
            BenchClaim(BenchGroup.SHARES, what, "points", Limit(Bound.AT_MOST, 1.5)),
            benchmark,
            alone=alone,
        )


def _line(promise: BenchClaim, benchmark: Benchmark, *, alone: bool) -> BenchClaim:
    rows = [row for row in benchmark.shares if row.work is WorkKind.ARITHMETIC]
    whole = [row for row in rows if row.percent == 100 and not row.beside]
    others = [row for row in rows if row not in whole and bool(row.beside) is not alone]
    if not others:
        return _not_measured(promise, benchmark)
    if not whole:
        return promise.unknown("no program was measured alone with 100 %")
    rate = median(row.launches_per_s for row in whole)
    points = [(_points(row, rate, whole[0].sms), row) for row in others]
    known = [(value, row) for value, row in points if value is not None]
    if len(known) < len(points):
        return promise.unknown("a program with 100 % did nothing, or had no SMs")
    worst, row = max(known, key=lambda each: abs(each[0]))
    beside = f" beside {' and '.join(map(str, row.beside))}" if row.beside else ""
    return promise.found(abs(worst), f"{worst:+.2f} at {row.percent} %{beside}, of {len(known)}")


def _points(row: ShareRow, rate: float, sms: int) -> float | None:
    done = ratio(row.launches_per_s, rate)
    given = ratio(row.sms, sms)
    return None if done is None or given is None else 100 * (done - given)


def _one_to_two(benchmark: Benchmark) -> Iterator[BenchClaim]:
    """Only arithmetic is held to 1:2: neither bandwidth nor what leaves a card idle is divided."""
    promise = BenchClaim(
        BenchGroup.SHARES,
        "two programs of arithmetic with SMs of 1:2 get 1:2 done",
        "%",
        Limit(Bound.AT_MOST, 3),
    )
    pairs = list(_pairs(benchmark))
    halves = [
        pair
        for pair in pairs
        if pair[0].work is WorkKind.ARITHMETIC and 2 * pair[0].sms == pair[1].sms
    ]
    if not halves:
        no_pair = "no pair of programs had exactly 1:2 of the SMs"
        yield _not_measured(promise, benchmark, no_pair)
    for one, two in halves:
        found = ratio(two.launches_per_s, one.launches_per_s)
        if found is None:
            yield promise.unknown("a program did nothing")
        else:
            yield promise.found(abs(100 * (found / 2 - 1)), f"1:{found:.3f}")
    for one, two in pairs:
        if one.work is not WorkKind.ARITHMETIC:
            what = (
                f"two programs of {one.work} with {one.percent} % and {two.percent} %: the second"
                " against the first"
            )
            shown = BenchClaim(BenchGroup.SHARES, what, "×")
            found = ratio(two.launches_per_s, one.launches_per_s)
            yield shown.found_if(found, "a program did nothing")


def _pairs(benchmark: Benchmark) -> Iterator[tuple[ShareRow, ShareRow]]:
    """Programs that ran at the same time, of which the second had twice the percent."""
    for one, two in zip(benchmark.shares, benchmark.shares[1:], strict=False):
        if (
            two.beside == (one.percent,)
            and one.beside == (two.percent,)
            and 2 * one.percent == two.percent
        ):
            yield one, two


# -- memory


def _sizes(benchmark: Benchmark) -> Iterator[BenchClaim]:
    what = (
        "with the same percent and another memory a program gets the same done (the largest"
        " difference)"
    )
    promise = BenchClaim(BenchGroup.SHARES, what, "%", Limit(Bound.AT_MOST, 2))
    by_percent: dict[int, list[ShareRow]] = {}
    for row in benchmark.shares:
        if row.work is WorkKind.ARITHMETIC and not row.beside:
            by_percent.setdefault(row.percent, []).append(row)
    apart: dict[int, float | None] = {}
    for percent, rows in by_percent.items():
        if len({row.memory_gib for row in rows}) > 1:
            apart[percent] = _apart(rows)
    known = {percent: value for percent, value in apart.items() if value is not None}
    if not apart:
        yield _not_measured(promise, benchmark, "no percent was measured with two sizes")
    elif len(known) < len(apart):
        yield promise.unknown("a program did nothing")
    else:
        worst = max(known, key=lambda percent: known[percent])
        yield promise.found(known[worst], f"at {worst} %, of {counted(len(known), 'shares')}")


def _apart(rows: Sequence[ShareRow]) -> float | None:
    """Percent by which the fastest is faster than the slowest."""
    rates = [row.launches_per_s for row in rows]
    times = ratio(max(rates), min(rates))
    return None if times is None else 100 * (times - 1)


# -- cost


def _cost(benchmark: Benchmark) -> Iterator[BenchClaim]:
    loads = dict.fromkeys((row.work, row.programs) for row in benchmark.cost)
    if not loads:
        for what in ("throughput", "p99"):
            yield _not_measured(_cost_promise(what, ""), benchmark)
    for work, programs in loads:
        rows = [row for row in benchmark.cost if (row.work, row.programs) == (work, programs)]
        of = f", {programs} × {work}"
        yield _cost_promise("throughput", of).median_of_pairs(_each(rows, _lost))
        yield _cost_promise("p99", of).median_of_pairs(_each(rows, _grown))


def _cost_promise(what: str, of: str) -> BenchClaim:
    words = {
        "throughput": "mpsd takes of MPS's throughput",
        "p99": "mpsd adds to the p99 of a sample under MPS",
    }
    return BenchClaim(BenchGroup.COST, words[what] + of, "%", Limit(Bound.UNDER, 1))


def _each(rows: Iterable[CostRow], compare: Callable[[CostRow], float | None]) -> list[float]:
    return [value for row in rows if (value := compare(row)) is not None]


def _lost(row: CostRow) -> float | None:
    kept = ratio(row.mpsd_per_s, row.mps_per_s)
    return None if kept is None else 100 * (1 - kept)


def _grown(row: CostRow) -> float | None:
    times = ratio(row.mpsd_p99_ms, row.mps_p99_ms)
    return None if times is None else 100 * (times - 1)


# -- reactions


# What the hardware alone takes.
_FLOOR_S = {Reaction.MEMORY_BACK: 0.07, Reaction.DAEMON: 0.31}
LIMIT_S = {Reaction.STOPPED: 0.15, Reaction.MEMORY_BACK: 0.2, Reaction.DAEMON: 0.6}
_GRACES = {
    Reaction.MEMORY_BACK: ", less the policy's end_drain_s",
    Reaction.FAULT: ", less the grace that the policy gives",
}


def _reactions(benchmark: Benchmark) -> Iterator[BenchClaim]:
    for reaction in Reaction:
        limit = Limit(Bound.AT_MOST, LIMIT_S[reaction]) if reaction in LIMIT_S else None
        promise = BenchClaim(
            BenchGroup.REACTIONS, f"{reaction}{_GRACES.get(reaction, '')}", "s", limit
        )
        took = [
            row.seconds - row.grace_s for row in benchmark.reactions if row.reaction is reaction
        ]
        if not took:
            yield _not_measured(promise, benchmark)
            continue
        claim = promise.median_of(took, "rounds")
        floor = f"; the hardware alone takes {_FLOOR_S[reaction]} s" if reaction in _FLOOR_S else ""
        yield replace(claim, note=claim.note + floor)


# -- all


def _not_measured(
    promise: BenchClaim, benchmark: Benchmark, otherwise: str = "it was not run"
) -> BenchClaim:
    """otherwise: why not, where its group was run."""
    for skipped, why in benchmark.skipped:
        if skipped is promise.group:
            return promise.unknown(why)
    return promise.unknown(otherwise if is_run(benchmark, promise.group) else "it was not run")


_JUDGES = (
    _small_kernels,
    _clients,
    _priority,
    _share_line,
    _one_to_two,
    _sizes,
    _cost,
    _reactions,
)
