"""Checks of a node or of a cluster, and the diagnosis that they add up to.

A check that cannot be made is unknown, never passed: it is well where it has come to its end, and
reads every fact that it needs before it finds anything.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeAlias, TypeVar

Value = TypeVar("Value")
Thing = TypeVar("Thing")
Facts = TypeVar("Facts")


class Unknown(Exception):
    """In place of a fact that could not be read. why: as the end of a sentence."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class NotApplicable(Unknown):
    """In place of a fact that does not exist here."""


Fact: TypeAlias = Value | Unknown


def known(fact: Fact[Value]) -> Value:
    """The value; raises Unknown where there is none."""
    if isinstance(fact, Unknown):
        raise fact
    return fact


def known_or(fact: Fact[Value], other: Value) -> Value:
    """The value; `other` where there is none."""
    if isinstance(fact, Unknown):
        return other
    return fact


def each(
    things: Iterable[Thing], fact: Callable[[Thing], Fact[Value]]
) -> Iterator[tuple[Thing, Value]]:
    """Every thing with this fact where it is known; then Unknown if it is not known of another."""
    missing: Unknown | None = None
    for thing in things:
        value = fact(thing)
        if not isinstance(value, Unknown):
            yield thing, value
        elif missing is None or not isinstance(value, NotApplicable):
            missing = value
    if missing:
        raise missing


class Severity(StrEnum):
    """The worst first."""

    STOPS = "programs cannot start on MPS"
    BREAKS = "limits are not enforced"
    NOTE = "worth knowing"


class CheckVerdict(StrEnum):
    """In the order in which they are shown."""

    FOUND = "found"
    UNKNOWN = "unknown"
    WELL = "well"
    NOT_APPLICABLE = "does not apply"


@dataclass(frozen=True, slots=True)
class Finding:
    """Neither ends with a full stop."""

    #: The object, and what is wrong with it.
    what: str
    #: The one thing to do.
    remedy: str


Find: TypeAlias = Callable[[Facts], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Check(Generic[Facts]):
    id: str
    severity: Severity
    #: What holds where nothing is found.
    well: str
    #: Where the facts that it reads are from.
    how: str
    find: Find[Facts]


class CheckTable(list[Check[Facts]]):
    """Checks in the order in which they are written: a cause stands before its consequences."""

    def check(
        self, severity: Severity, well: str, how: str
    ) -> Callable[[Find[Facts]], Find[Facts]]:
        """Adds the function below it as the check of its name."""

        def add(find: Find[Facts]) -> Find[Facts]:
            self.append(Check(find.__name__.replace("_", "-"), severity, well, how, find))
            return find

        return add


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    check: Check[Any]
    verdict: CheckVerdict
    findings: tuple[Finding, ...]
    #: It could not be made, or does not apply; empty where it was made completely.
    why: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    #: In the order in which they are to be read.
    outcomes: tuple[CheckOutcome, ...]

    def of(self, verdict: CheckVerdict) -> tuple[CheckOutcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.verdict is verdict)

    @property
    def is_well(self) -> bool:
        """Whether everything could be determined and nothing was found but notes."""
        found = self.of(CheckVerdict.FOUND)
        only_notes = all(one.check.severity is Severity.NOTE for one in found)
        return only_notes and not self.of(CheckVerdict.UNKNOWN)

    @property
    def headline(self) -> str:
        for outcome in self.of(CheckVerdict.FOUND):
            return f"{outcome.findings[0].what}; {outcome.findings[0].remedy}"
        unknown = self.of(CheckVerdict.UNKNOWN)
        if unknown:
            what = f"not known is whether {unknown[0].check.well}: {unknown[0].why}"
            if len(unknown) > 1:
                what = f"{what}, and {len(unknown) - 1} more checks"
            return f"nothing wrong was found, but {what}"
        made = len(self.outcomes) - len(self.of(CheckVerdict.NOT_APPLICABLE))
        return f"all is well: {made} checks"


def diagnose(facts: Facts, checks: Iterable[Check[Facts]]) -> Diagnosis:
    """Found before unknown before well; of those found the worst first, and a cause before its
    consequences."""
    verdicts = list(CheckVerdict)
    severities = list(Severity)

    def order(one: CheckOutcome) -> tuple[int, int]:
        return verdicts.index(one.verdict), severities.index(one.check.severity)

    return Diagnosis(tuple(sorted((_outcome(check, facts) for check in checks), key=order)))


def _outcome(check: Check[Facts], facts: Facts) -> CheckOutcome:
    findings: list[Finding] = []
    verdict = CheckVerdict.WELL
    why = ""
    try:
        for one in check.find(facts):
            findings.append(one)  # noqa: PERF402 - those before what is not known are kept
    except Unknown as missing:
        why = missing.why
        verdict = CheckVerdict.UNKNOWN
        if isinstance(missing, NotApplicable):
            verdict = CheckVerdict.NOT_APPLICABLE
    if findings:
        verdict = CheckVerdict.FOUND
    return CheckOutcome(check, verdict, tuple(findings), why)
