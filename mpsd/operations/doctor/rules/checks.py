"""Checks of a node or of a cluster, and the diagnosis that they add up to: the most serious finding first.

A check that cannot be made is unknown, never passed. What is looked at is a frozen picture of facts; a fact that could
not be read is Unknown, and one that does not exist here is NotApplicable.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, Generic, TypeAlias, TypeVar

Value = TypeVar("Value")
Thing = TypeVar("Thing")
Facts = TypeVar("Facts")


@dataclass(frozen=True, slots=True)
class Unknown:
    """A fact that could not be read. why: the reason, as the end of a sentence."""

    why: str


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """A fact that does not exist here. why: as the end of a sentence."""

    why: str


Fact: TypeAlias = Value | Unknown | NotApplicable


class NotKnown(Exception):
    """A check cannot be made."""

    def __init__(self, fact: Unknown | NotApplicable) -> None:
        super().__init__(fact.why)
        self.fact = fact


def known(fact: Fact[Value]) -> Value:
    """The value. NotKnown where there is none."""
    if isinstance(fact, Unknown | NotApplicable):
        raise NotKnown(fact)
    return fact


def each(things: Iterable[Thing], fact: Callable[[Thing], Fact[Value]]) -> Iterator[tuple[Thing, Value]]:
    """Every thing with this fact where it is known; then NotKnown if it is not known of another."""
    missing: Unknown | NotApplicable | None = None
    for thing in things:
        value = fact(thing)
        if isinstance(value, Unknown | NotApplicable):
            missing = value if missing is None or isinstance(value, Unknown) else missing
        else:
            yield thing, value
    if missing:
        raise NotKnown(missing)


class Severity(IntEnum):
    """The lower, the worse."""

    STOPS = 0
    BREAKS = 1
    NOTE = 2

    def __str__(self) -> str:
        return _SEVERITY_TEXT[self]


_SEVERITY_TEXT = {
    Severity.STOPS: "programs cannot start on MPS",
    Severity.BREAKS: "limits are not enforced",
    Severity.NOTE: "worth knowing",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """what: the object and what is wrong with it. remedy: the one thing to do. Neither ends with a full stop."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}"


Find: TypeAlias = Callable[[Facts], Iterator[Finding]]


def at_most(most: int, findings: Sequence[Finding], others: str, remedy: str) -> Iterator[Finding]:
    """The first findings; of the rest only how many there are."""
    yield from findings[:most]
    if len(findings) > most:
        yield Finding(f"{len(findings) - most} more {others}", remedy)


@dataclass(frozen=True, slots=True)
class Check(Generic[Facts]):
    """One check. well: what holds where nothing is found. looks_at: fields of the facts. how: the source of those."""

    id: str
    severity: Severity
    well: str
    looks_at: tuple[str, ...]
    how: str
    find: Find[Facts]


class CheckTable(Generic[Facts]):
    """Checks in the order in which they are written: a cause stands before its consequences."""

    def __init__(self) -> None:
        self._checks: list[Check[Facts]] = []

    def __iter__(self) -> Iterator[Check[Facts]]:
        return iter(self._checks)

    def check(
        self, name: str, severity: Severity, well: str, *looks_at: str, how: str
    ) -> Callable[[Find[Facts]], Find[Facts]]:
        """Adds the function below it as the check of this id."""

        def add(find: Find[Facts]) -> Find[Facts]:
            self._checks.append(Check(name, severity, well, looks_at, how, find))
            return find

        return add


class CheckVerdict(StrEnum):
    FOUND = "found"
    UNKNOWN = "unknown"
    WELL = "well"
    NOT_APPLICABLE = "does not apply"


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """The result of a check. why: it could not be made, or does not apply; empty where it was made completely."""

    check: Check[Any]
    verdict: CheckVerdict
    findings: tuple[Finding, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """outcomes: in the order in which they are to be read."""

    outcomes: tuple[CheckOutcome, ...]

    def of(self, verdict: CheckVerdict) -> tuple[CheckOutcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.verdict is verdict)

    @property
    def is_well(self) -> bool:
        """Whether everything could be determined and nothing was found but notes."""
        found = self.of(CheckVerdict.FOUND)
        return not self.of(CheckVerdict.UNKNOWN) and all(one.check.severity is Severity.NOTE for one in found)

    @property
    def headline(self) -> str:
        """The most serious finding with its remedy, in one line."""
        for outcome in self.of(CheckVerdict.FOUND):
            return str(outcome.findings[0])
        unknown = self.of(CheckVerdict.UNKNOWN)
        if unknown:
            more = f", and {len(unknown) - 1} more checks" if len(unknown) > 1 else ""
            return f"nothing wrong was found, but not known is whether {unknown[0].check.well}: {unknown[0].why}{more}"
        made = sum(outcome.verdict is not CheckVerdict.NOT_APPLICABLE for outcome in self.outcomes)
        return f"all is well: {made} checks"


def diagnose(facts: Facts, checks: Sequence[Check[Facts]]) -> Diagnosis:
    """Found before unknown before well; of those found the worst first, and a cause before its consequences."""
    rank = {verdict: place for place, verdict in enumerate(CheckVerdict)}
    outcomes = [_outcome(check, facts) for check in checks]
    return Diagnosis(tuple(sorted(outcomes, key=lambda one: (rank[one.verdict], one.check.severity))))


def _outcome(check: Check[Facts], facts: Facts) -> CheckOutcome:
    findings: list[Finding] = []
    try:
        for one in check.find(facts):
            findings.append(one)  # noqa: PERF402 - those before what is not known are kept
        if not findings:
            for _fact in each(check.looks_at, lambda name: getattr(facts, name)):
                pass  # nothing was found in what was seen: that is well only where all of it was
    except NotKnown as error:
        if findings:
            return CheckOutcome(check, CheckVerdict.FOUND, tuple(findings), str(error))
        verdict = CheckVerdict.NOT_APPLICABLE if isinstance(error.fact, NotApplicable) else CheckVerdict.UNKNOWN
        return CheckOutcome(check, verdict, why=str(error))
    return CheckOutcome(check, CheckVerdict.FOUND if findings else CheckVerdict.WELL, tuple(findings))
