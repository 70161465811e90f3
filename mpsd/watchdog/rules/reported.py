"""The violations in an MPSNode: of each pod that has a grant, and of the whole node, pods that are gone included.

Whatever programs do, the object stays small and is written seldom: it lists a bounded number of pods, the most recent
first, and how many there are. Repeated violations only raise counts, which are written at the pace of usage; only a new
kind of violation or one more pod counts as a change (`is_news`).
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
from mpsd.model.times import stamp

if TYPE_CHECKING:  # as in model.grants
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
    """Of one grant: counts by kind, and the last violation."""

    counts: "Mapping[ViolationKind, int]"
    last: LastViolation


@dataclass(frozen=True, slots=True)
class NodeViolations:
    """Everything since then (seconds since 1970). last: the newest last. grants: by id, those that are held now."""

    since: float
    counts: "Mapping[ViolationKind, int]"
    last: tuple[LastViolation, ...]
    grants: Mapping[str, Tally]


def with_violations(status: Object, found: NodeViolations) -> Object:
    """The status with the violations. A pod's grant has its uid for an id, or its name where that is not known."""
    reported = ReportedViolations(
        since=stamp(found.since),
        counts=_counts(found.counts),
        last=[_violation(one) for one in found.last[-MOST_LAST:]],
    )
    summary = {**status["summary"], FIELD: sum(found.counts.values())}
    added: Object = {FIELD: as_object(reported), "summary": summary}
    if "grants" in status:
        own = {_id(grant): tally for grant in status["grants"] if (tally := found.grants.get(_id(grant)))}
        newest = sorted(own, key=lambda one: (-own[one].last.at, one))[:MOST_PODS]
        tallies = {one: {FIELD: as_object(_tally(own[one]))} for one in newest}
        added[FIELD]["pods"] = len(own)
        added["grants"] = [{**grant, **tallies.get(_id(grant), {})} for grant in status["grants"]]
    return {**status, **added}


def _id(grant: Object) -> str:
    return str(grant.get("uid") or grant["pod"])


def _tally(tally: Tally) -> ReportedPodViolations:
    last = tally.last
    shown = ReportedPodViolation(stamp(last.at), last.kind.value, last.action.value)
    return ReportedPodViolations(_counts(tally.counts), shown)


def _counts(counts: "Mapping[ViolationKind, int]") -> list[ReportedCount]:
    return [ReportedCount(kind.value, counts[kind]) for kind in sorted(counts)]


def _violation(one: LastViolation) -> ReportedViolation:
    return ReportedViolation(stamp(one.at), one.kind.value, one.action.value, str(one.pod) if one.pod else None)


# -- what counts as a change ---------------------------------------------------------------------------------------


def is_news(status: Object, written: Object) -> bool:
    """Whether there is a new kind of violation or a new pod; no program can cause that endlessly."""
    return _firm(status.get(FIELD)) != _firm(written.get(FIELD))


def _firm(found: Object | None) -> object:
    return found and (found["since"], found.get("pods"), [one["kind"] for one in found["counts"]])


def differs(status: Object, written: Object) -> bool:
    """Whether any number has changed; the grants are the same."""
    pairs = [(status, written), *zip(status.get("grants", ()), written.get("grants", ()), strict=True)]
    return any(one.get(FIELD) != other.get(FIELD) for one, other in pairs)
