"""What is wrong with a node, or a cluster: every check made on what was seen of it, what stops most first.

One rule: a check that cannot be made is said to be unknown, never to be well.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, Generic, TypeVar

from mpsd.operations.doctor.rules.doctor_facts import Elsewhere, Fact, NotKnown, Unknown, Value

Thing = TypeVar("Thing")
Facts = TypeVar("Facts")


class Severity(IntEnum):
    """The lower, the worse."""

    STOPS = 0
    BREAKS = 1
    NOTE = 2

    def __str__(self) -> str:
        return _WORDS[self]


_WORDS = {
    Severity.STOPS: "keeps programs from starting on MPS",
    Severity.BREAKS: "keeps MPS from holding",
    Severity.NOTE: "worth knowing",
}


@dataclass(frozen=True, slots=True)
class Wrong:
    """what: the object and what is wrong with it. remedy: the one thing to do. Neither ends with a full stop."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class Check(Generic[Facts]):
    """One row. well: what is so where nothing is wrong. looks_at: fields of the facts. how: how those were found."""

    id: str
    severity: Severity
    well: str
    looks_at: tuple[str, ...]
    how: str
    find: Callable[[Facts], Iterator[Wrong]]


class Verdict(StrEnum):
    FOUND = "found"
    UNKNOWN = "unknown"
    WELL = "well"
    ELSEWHERE = "does not apply"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a check. why: it could not be made, or does not apply; empty where it was made as a whole."""

    check: Check[Any]
    verdict: Verdict
    wrong: tuple[Wrong, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """outcomes: in the order in which they are to be read."""

    outcomes: tuple[Outcome, ...]

    def of(self, verdict: Verdict) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.verdict is verdict)

    @property
    def is_well(self) -> bool:
        """Whether nothing is wrong as far as that can be known, and all of it can."""
        return not self.of(Verdict.FOUND) and not self.of(Verdict.UNKNOWN)

    @property
    def headline(self) -> str:
        """The worst, with its remedy, in one line."""
        for outcome in self.of(Verdict.FOUND):
            return str(outcome.wrong[0])
        unknown = self.of(Verdict.UNKNOWN)
        made = sum(outcome.verdict is not Verdict.ELSEWHERE for outcome in self.outcomes)
        if unknown:
            more = f", and {len(unknown) - 1} more checks" if len(unknown) > 1 else ""
            return f"nothing wrong was found, but not known is whether {unknown[0].check.well}: {unknown[0].why}{more}"
        return f"all is well: {made} checks"


def diagnose(facts: Facts, checks: Sequence[Check[Facts]]) -> Diagnosis:
    """Found before unknown before well; of those found the worst first, and what causes others before these.

    checks: causes stand before what follows from them.
    """
    outcomes = [_outcome(check, facts) for check in checks]
    rank = {verdict: place for place, verdict in enumerate(Verdict)}
    place = {check.id: number for number, check in enumerate(checks)}
    return Diagnosis(
        tuple(sorted(outcomes, key=lambda one: (rank[one.verdict], one.check.severity, place[one.check.id])))
    )


def _outcome(check: Check[Facts], facts: Facts) -> Outcome:
    wrong: list[Wrong] = []
    try:
        for one in check.find(facts):
            wrong.append(one)  # noqa: PERF402 - those before what is not known are kept
        if not wrong:
            for _fact in each(check.looks_at, lambda name: getattr(facts, name)):
                pass  # nothing was found in what was seen: that is well only where all of it was
    except NotKnown as error:
        if wrong:
            return Outcome(check, Verdict.FOUND, tuple(wrong), str(error))
        verdict = Verdict.ELSEWHERE if isinstance(error.fact, Elsewhere) else Verdict.UNKNOWN
        return Outcome(check, verdict, why=str(error))
    return Outcome(check, Verdict.FOUND if wrong else Verdict.WELL, tuple(wrong))


def each(things: Iterable[Thing], fact: Callable[[Thing], Fact[Value]]) -> Iterator[tuple[Thing, Value]]:
    """Every thing of which this is known, with it; then NotKnown where it is not of another."""
    missing: Unknown | Elsewhere | None = None
    for thing in things:
        value = fact(thing)
        if isinstance(value, Unknown | Elsewhere):
            missing = value if missing is None or isinstance(value, Unknown) else missing
        else:
            yield thing, value
    if missing:
        raise NotKnown(missing)
