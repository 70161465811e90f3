"""One claim: a sentence, the value that was measured, and the limit that is promised.

One rule: a value that was not measured holds neither way, and the claim says why there is none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from mpsd.bench.rules.bench_rows import Part

_COUNTED = {"programs", "clients", "exceptions"}  # units of whole numbers


class Bound(StrEnum):
    """On which side of its limit a value must be."""

    UNDER = "<"
    AT_MOST = "≤"
    AT_LEAST = "≥"


class Verdict(StrEnum):
    HOLDS = "holds"
    BROKEN = "does not hold"
    NOT_MEASURED = "not measured"
    NO_LIMIT = "no limit"  # a figure to know, of which nothing is promised


@dataclass(frozen=True, slots=True)
class Limit:
    bound: Bound
    value: float


@dataclass(frozen=True, slots=True)
class Claim:
    """what: a sentence. value: None where it was not measured, and then note says why; else note says of what it is.

    unit: of value and limit. limit: None where nothing is promised.
    """

    part: Part
    what: str
    unit: str
    limit: Limit | None
    value: float | None
    note: str = ""

    @property
    def verdict(self) -> Verdict:
        if self.value is None:
            return Verdict.NOT_MEASURED
        if self.limit is None:
            return Verdict.NO_LIMIT
        match self.limit.bound:
            case Bound.UNDER:
                holds = self.value < self.limit.value
            case Bound.AT_MOST:
                holds = self.value <= self.limit.value
            case Bound.AT_LEAST:
                holds = self.value >= self.limit.value
        return Verdict.HOLDS if holds else Verdict.BROKEN


@dataclass(frozen=True, slots=True)
class Promise:
    """A claim before anything is known of it."""

    part: Part
    what: str
    unit: str
    limit: Limit | None = None

    def found(self, value: float, note: str = "") -> Claim:
        return Claim(self.part, self.what, self.unit, self.limit, value, note)

    def unknown(self, why: str) -> Claim:
        return Claim(self.part, self.what, self.unit, self.limit, None, why)

    def median_of(self, values: Sequence[float], of: str) -> Claim:
        """With how far they are apart. of: what each is of, as one word in the plural."""
        if not values:
            return self.unknown(f"no {of} could be compared: a figure is 0")
        if len(values) == 1:
            return self.found(values[0], f"of {counted(1, of)}")
        spread = f"median of {len(values)} {of}, {figure(min(values), self.unit)} to {figure(max(values), self.unit)}"
        return self.found(median(values), spread)


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
