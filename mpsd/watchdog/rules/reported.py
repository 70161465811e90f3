"""What MPSNode tells of violations: of each pod that has a grant, and of the node as a whole, pods that are gone too.

One rule: whatever programs do, it stays small and is written seldom. So many pods are told of, the last that did
something first, and how many there are; what is done again and again makes numbers larger, which are written at the
pace of what programs use, and only what is new on this node, or a pod more, at that of a change.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpsd.model.identity import PodName
from mpsd.model.mpsnode import (
    ReportedCount,
    ReportedPodViolation,
    ReportedPodViolations,
    ReportedViolation,
    ReportedViolations,
    as_object,
)

if TYPE_CHECKING:  # as in model.grants
    from collections.abc import Callable

    from mpsd.model.violations import Response, ViolationKind

MOST_PODS = 32
MOST_LAST = 5
FIELD = "violations"  # of the status, of its summary, and of a grant

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LastViolation:
    """at: seconds since 1970. action: what the policy has done about it. pod: None where none is known."""

    at: float
    kind: "ViolationKind"
    action: "Response"
    pod: PodName | None


@dataclass(frozen=True, slots=True)
class Tally:
    """Of one grant: how often what happened, and the last of it."""

    counts: "Mapping[ViolationKind, int]"
    last: LastViolation


@dataclass(frozen=True, slots=True)
class NodeViolations:
    """What was seen since then (seconds since 1970), of everybody. last: the newest last. grants: by id, those that are
    held now."""

    since: float
    counts: "Mapping[ViolationKind, int]"
    last: tuple[LastViolation, ...]
    grants: Mapping[str, Tally]


def with_violations(status: Object, seen: NodeViolations, stamp: "Callable[[float], str]") -> Object:
    """The status with what was seen. A pod's grant has its uid for an id, or its name where that is not known."""
    told = ReportedViolations(
        since=stamp(seen.since),
        counts=_counts(seen.counts),
        last=[_violation(one, stamp) for one in seen.last[-MOST_LAST:]],
    )
    added: Object = {FIELD: as_object(told), "summary": {**status["summary"], FIELD: sum(seen.counts.values())}}
    if "grants" in status:
        own = {_id(grant): tally for grant in status["grants"] if (tally := seen.grants.get(_id(grant)))}
        newest = sorted(own, key=lambda one: (-own[one].last.at, one))[:MOST_PODS]
        tallies = {one: {FIELD: as_object(_tally(own[one], stamp))} for one in newest}
        added[FIELD]["pods"] = len(own)
        added["grants"] = [{**grant, **tallies.get(_id(grant), {})} for grant in status["grants"]]
    return {**status, **added}


def _id(grant: Object) -> str:
    return str(grant.get("uid") or grant["pod"])


def _tally(tally: Tally, stamp: "Callable[[float], str]") -> ReportedPodViolations:
    last = tally.last
    shown = ReportedPodViolation(stamp(last.at), last.kind.value, last.action.value)
    return ReportedPodViolations(_counts(tally.counts), shown)


def _counts(counts: "Mapping[ViolationKind, int]") -> list[ReportedCount]:
    return [ReportedCount(kind.value, counts[kind]) for kind in sorted(counts)]


def _violation(one: LastViolation, stamp: "Callable[[float], str]") -> ReportedViolation:
    return ReportedViolation(stamp(one.at), one.kind.value, one.action.value, str(one.pod) if one.pod else None)


# -- what counts as a change ---------------------------------------------------------------------------------------


def is_news(status: Object, written: Object) -> bool:
    """Whether somebody did something who had not, or something that nobody had. No program can do that for ever."""
    return _firm(status.get(FIELD)) != _firm(written.get(FIELD))


def _firm(told: Object | None) -> object:
    return told and (told["since"], told.get("pods"), [one["kind"] for one in told["counts"]])


def differs(status: Object, written: Object) -> bool:
    """Whether any number has changed; the grants are the same."""
    pairs = [(status, written), *zip(status.get("grants", ()), written.get("grants", ()), strict=True)]
    return any(one.get(FIELD) != other.get(FIELD) for one, other in pairs)
