"""The violations in an MPSNode: of each pod that has a grant, and of the whole node, pods that are
gone included.

Whatever programs do, the object stays small and is written seldom: it lists a bounded number of
pods, the most recent first, and how many there are. Repeated violations only raise counts, which
are written at the pace of usage; only a new kind of violation or one more pod counts as a change
(`is_news`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mpsd.model import mpsnode
from mpsd.model.mpsnode import as_object
from mpsd.model.times import stamp
from mpsd.model.violations import ViolationKind

MOST_PODS = 32
MOST_LAST = 5
FIELD = "violations"  # of the status, of its summary, and of a grant

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class NodeViolations:
    """node: of everybody, but for the number of pods. grants: by id, those that are held now; the
    one that had a violation last is last."""

    node: mpsnode.ReportedViolations
    grants: Mapping[str, mpsnode.ReportedPodViolations]


def of_node(
    since: float, counts: Mapping[ViolationKind, int], last: Sequence[mpsnode.ReportedViolation]
) -> mpsnode.ReportedViolations:
    """since: seconds since 1970. last: the newest last."""
    return mpsnode.ReportedViolations(
        since=stamp(since), counts=_counts(counts), last=[*last[-MOST_LAST:]]
    )


def of_grant(
    counts: Mapping[ViolationKind, int], last: mpsnode.ReportedViolation
) -> mpsnode.ReportedPodViolations:
    return mpsnode.ReportedPodViolations(_counts(counts), last)


def with_violations(status: Object, found: NodeViolations) -> Object:
    """The status with the violations. A grant has for an id the uid of its claim, else of its pod,
    or the pod's name where that is not known."""
    total = sum(one.count or 0 for one in found.node.counts or ())
    added: Object = {FIELD: as_object(found.node), "summary": {**status["summary"], FIELD: total}}
    if "grants" in status:
        ids = {_id(grant) for grant in status["grants"]}
        own = [one for one in found.grants if one in ids]
        newest = {one: {FIELD: as_object(found.grants[one])} for one in own[-MOST_PODS:]}
        added[FIELD]["pods"] = len(own)
        added["grants"] = [{**grant, **newest.get(_id(grant), {})} for grant in status["grants"]]
    return {**status, **added}


def _id(grant: Object) -> str:
    return str(grant.get("claimUid") or grant.get("uid") or grant["pod"])


def _counts(counts: Mapping[ViolationKind, int]) -> list[mpsnode.ReportedCount]:
    return [mpsnode.ReportedCount(kind.value, counts[kind]) for kind in sorted(counts)]


# -- what counts as a change ---------------------------------------------------------------------


def is_news(status: Object, written: Object) -> bool:
    """Whether there is a new kind of violation or a new pod; no program can cause that
    endlessly."""
    return _firm(status.get(FIELD)) != _firm(written.get(FIELD))


def _firm(found: Object | None) -> object:
    return found and (found["since"], found.get("pods"), [one["kind"] for one in found["counts"]])


def differs(status: Object, written: Object) -> bool:
    """Whether any number has changed; the grants are the same."""
    pairs = [
        (status, written),
        *zip(status.get("grants", ()), written.get("grants", ()), strict=True),
    ]
    return any(one.get(FIELD) != other.get(FIELD) for one, other in pairs)
