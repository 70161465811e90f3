"""What MPSNode tells of violations: whose they were and how many, in little room, and written
seldom."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import jsonschema
from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.node_report import (
    GrantViolations,
    SeenViolations,
    ViolationCount,
    ViolationReport,
    ViolationsReport,
)
from mpsd.model.node_view import HeldGrant
from mpsd.model.policy import Response as PolicyResponse
from mpsd.model.times import stamp, utc
from mpsd.model.violations import Violation, ViolationKind
from mpsd.status.rules.mpsnode import (
    CHANGE_S,
    HEARTBEAT_S,
    MOST_LAST,
    MOST_PODS,
    USE_S,
    WrittenStatus,
    write_due,
)
from mpsd.watchdog.watchdog import ViolationHistory
from tests.model.worlds import NOW
from tests.status.pod_worlds import client, held, node, pod
from tests.status.test_mpsnode import ROUNDING, SCHEMA, status

MEMORY, LIFTED = ViolationKind.MEMORY_OVER_GRANT, ViolationKind.LIMIT_LIFTED
OF_PODS = (
    MEMORY,
    LIFTED,
    ViolationKind.PARTITIONING_ENABLED,
    ViolationKind.OUTSIDE_MPS,
    ViolationKind.TOO_MANY_CLIENTS,
)
FULL_NODE = 8 * 40  # pods


def last(name: str | None, kind: ViolationKind, at: float = NOW) -> ViolationReport:
    return ViolationReport(
        at=utc(at), kind=kind.value, action="kill", pod=str(pod(name)) if name else ""
    )


def counts(tally: Mapping[ViolationKind, int]) -> tuple[ViolationCount, ...]:
    return tuple([ViolationCount(kind=kind.value, count=tally[kind]) for kind in sorted(tally)])


def violations(
    tallies: Mapping[str, Mapping[ViolationKind, int]], *others: ViolationReport, at: float = NOW
) -> SeenViolations:
    """tallies: by the name of a pod that has a grant. others: what somebody else did."""
    total = Counter[ViolationKind](ViolationKind(one.kind) for one in others)
    for tally in tallies.values():
        total.update(tally)
    own = {
        name: last(name, next(iter(tally)), at + place)
        for place, (name, tally) in enumerate(tallies.items())
    }
    grants = {
        pod(name).uid: GrantViolations(counts(tally), own[name]) for name, tally in tallies.items()
    }
    seen = ViolationsReport(
        since=utc(NOW - 60), counts=counts(total), last=(*own.values(), *others)
    )
    return SeenViolations(seen, grants)


def told(
    seen: SeenViolations, names: Sequence[str], *, grants_known: bool = True
) -> dict[str, Any]:
    return status(node(grants=tuple(map(pods_grant, names)), grants_known=grants_known), seen)


def pods_grant(name: str) -> HeldGrant:
    return held(name, 1)


def test_a_pod_is_told_of_with_what_it_did_how_often_and_when_last() -> None:
    found = told(violations({"a": {MEMORY: 3, LIFTED: 1}}), "ab")
    jsonschema.validate(found, SCHEMA)
    one, other = found["grants"]
    assert one["violations"] == {
        "counts": [{"kind": "limit_lifted", "count": 1}, {"kind": "memory_over_grant", "count": 3}],
        "last": {"at": stamp(NOW), "kind": "memory_over_grant", "action": "kill"},
    }
    assert "violations" not in other
    assert (found["violations"]["pods"], found["summary"]["violations"]) == (1, 4)


def test_of_pods_that_are_gone_and_of_processes_in_none_the_node_tells() -> None:
    found = told(violations({}, last("gone", LIFTED), last(None, ViolationKind.IN_NO_POD)), "a")
    jsonschema.validate(found, SCHEMA)
    assert [one["count"] for one in found["violations"]["counts"]] == [1, 1]
    assert [one.get("pod") for one in found["violations"]["last"]] == ["default/gone", None]
    assert found["violations"]["pods"] == 0


def test_none_is_told_as_none_and_not_known_is_not_told() -> None:
    none = told(violations({}), "a")["violations"]
    assert none == {"since": stamp(NOW - 60), "pods": 0}
    assert "violations" not in status(node())
    blind = told(violations({"a": {MEMORY: 1}}), "a", grants_known=False)
    jsonschema.validate(blind, SCHEMA)
    assert "pods" not in blind["violations"]
    assert "grants" not in blind


def test_a_full_node_where_everybody_does_everything_stays_small() -> None:
    names = [f"a-job-with-a-name-of-some-length-{number}" for number in range(FULL_NODE)]
    quiet = told(violations({}), names)
    loud = told(violations({name: dict.fromkeys(OF_PODS, 10**9) for name in names}), names)
    more = len(json.dumps(loud)) - len(json.dumps(quiet))
    assert more < 16_000, "a tenth of what such a node tells anyway"
    assert loud["violations"]["pods"] == FULL_NODE
    assert len(loud["violations"]["last"]) == MOST_LAST
    own = [grant["pod"] for grant in loud["grants"] if "violations" in grant]
    assert sorted(own) == sorted(f"default/{name}" for name in names[-MOST_PODS:]), (
        "those that did something last"
    )


# -- when it is written

acts = st.lists(
    st.tuples(
        st.floats(0.01, 20.0),
        st.sampled_from([f"pod{n}" for n in range(40)]),
        st.sampled_from(OF_PODS),
    ),
    min_size=1,
    max_size=80,
)


@given(acts)
def test_what_is_done_again_is_written_twice_a_minute_at_most(
    sequence: list[tuple[float, str, ViolationKind]],
) -> None:
    names = sorted({name for _pause, name, _kind in sequence})
    tallies: dict[str, dict[ViolationKind, int]] = {}
    now, current = 0.0, told(violations({}), names)
    written = WrittenStatus(current, now)
    writes = [(now, current)]

    def look() -> None:
        nonlocal written
        if write_due(current, written) <= now:
            written = WrittenStatus(current, now)
            writes.append((now, current))

    for pause_s, name, kind in sequence:
        now += pause_s
        look()
        own = tallies.pop(name, {})  # who did something last comes last
        tallies[name] = own | {kind: own.get(kind, 0) + 1}
        current = told(violations(tallies, at=now), names)
        look()
    for pause_s in (CHANGE_S, USE_S, HEARTBEAT_S):
        now += pause_s
        look()
    assert writes[-1][1] == current
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(writes)]
    assert all(gap >= CHANGE_S - ROUNDING for gap in gaps)
    soon = sum(gap < USE_S - ROUNDING for gap in gaps)
    assert soon <= len(names) + len({kind for _pause, _name, kind in sequence}), (
        "one for each pod and each kind"
    )


def test_more_of_the_same_is_written_with_what_is_used_and_a_first_one_at_once() -> None:
    def due(before: SeenViolations, now: SeenViolations) -> float:
        return write_due(told(now, "ab"), WrittenStatus(told(before, "ab"), 0.0))

    none, one, more = (violations(tally) for tally in ({}, {"a": {MEMORY: 1}}, {"a": {MEMORY: 2}}))
    assert due(none, one) == CHANGE_S
    assert due(one, more) == USE_S
    assert due(one, violations({"a": {MEMORY: 1}, "b": {MEMORY: 1}})) == CHANGE_S
    assert due(one, violations({"a": {MEMORY: 1, LIFTED: 1}})) == CHANGE_S
    assert due(one, violations({"a": {MEMORY: 1}}, at=NOW + 7)) == USE_S
    assert due(one, one) == HEARTBEAT_S


# What the watchdog's history tells a cluster: by grant while it is held, and of everybody.


def violation(
    name: str, pid: int, kind: ViolationKind = ViolationKind.OUTSIDE_MPS, *, again: bool = False
) -> Violation:
    who = client(name, pid)
    return Violation(
        kind, PolicyResponse.KILL, who.gpu, who.grant, pod(name), who, "runs beside MPS", again
    )


def counted(found: Sequence[ViolationCount]) -> dict[str, int | None]:
    return {one.kind: one.count for one in found}


def test_each_grant_has_its_own_counts_and_its_last_one() -> None:
    history = ViolationHistory(NOW)
    history.add(violation("a", 1), NOW + 1)
    history.add(violation("b", 2, ViolationKind.LIMIT_LIFTED), NOW + 2)
    history.add(violation("a", 3, ViolationKind.LIMIT_LIFTED), NOW + 3)
    seen = history.seen()
    own = seen.grants[pod("a").uid]
    assert counted(own.counts) == {"outside_mps": 1, "limit_lifted": 1}
    assert own.last == seen.node.last[-1]
    assert counted(seen.node.counts) == {"outside_mps": 1, "limit_lifted": 2}
    told_last = [(one.at, one.pod) for one in seen.node.last]
    assert told_last == [(utc(NOW + n), str(pod(name))) for n, name in enumerate("aba", 1)]
    assert list(seen.grants) == [pod("b").uid, pod("a").uid], "the last one that did something last"


def test_one_that_is_there_again_is_not_another() -> None:
    history = ViolationHistory(NOW)
    history.add(violation("a", 1), NOW)
    history.add(violation("a", 1, again=True), NOW + 2)
    assert counted(history.seen().grants[pod("a").uid].counts) == {"outside_mps": 1}


def test_a_grant_that_is_gone_is_forgotten_and_stays_in_what_is_told_of_all() -> None:
    history = ViolationHistory(NOW)
    for name in "ab":
        history.add(violation(name, 1), NOW)
    history.keep({pod("b").uid})
    seen = history.seen()
    assert list(seen.grants) == [pod("b").uid]
    assert counted(seen.node.counts) == {"outside_mps": 2}


def test_what_was_told_is_not_changed_by_what_comes_after_it() -> None:
    history = ViolationHistory(NOW)
    history.add(violation("a", 1), NOW)
    before = history.seen()
    history.add(violation("a", 2), NOW)
    assert before != history.seen()
    assert counted(before.grants[pod("a").uid].counts) == {"outside_mps": 1}
