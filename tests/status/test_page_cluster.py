"""A cluster as its page shows it."""

import pytest
from hypothesis import given
from msgspec.structs import replace as changed

from mpsd.model.cluster_status import ClusterNode
from mpsd.model.domain import State
from mpsd.model.mpsnode import read_mpsnode
from mpsd.model.names import CONDITION, STALE_S
from mpsd.model.node_report import (
    NO_VIOLATIONS,
    ConditionReport,
    FaultsReport,
    GrantReport,
    GrantViolations,
    ViolationCount,
    ViolationReport,
    ViolationsReport,
)
from mpsd.model.times import seconds, utc
from mpsd.status.page.rules.pages import (
    MOST_RECENT,
    MOST_VIOLATIONS,
    aged,
    cluster_page,
    no_mpsnode,
    node_parts,
)
from mpsd.status.page.rules.view import (
    Level,
    NoteKind,
    PageHead,
    PageScope,
    pod_card,
)
from mpsd.status.rules.explanation import explanation_of
from mpsd.status.rules.pods import Why, read_pod_seen
from tests.model.worlds import POLICY
from tests.mpsnodes import NOW as MPSNODES_NOW
from tests.mpsnodes import damaged
from tests.status.cluster_worlds import GIB, cluster_node, held, uuid
from tests.status.test_pod_explanation import pod, scene

NOW = 100.0
HEAD = PageHead(PageScope.CLUSTER, "cluster", "1", NOW)


def told(node: ClusterNode, **changes: object) -> ClusterNode:
    return changed(node, reported_at=NOW, **changes)  # type: ignore[arg-type]


def in_state(state: State, reason: str = "because", since: float = NOW - 5) -> ClusterNode:
    """A node whose first domain is in this state."""
    node = cluster_node(states=(state.value, State.READY.value))
    first, *rest = node.domains
    return told(
        changed(
            node,
            ready=False,
            domains=(changed(first, state=state.value, reason=reason, since=utc(since)), *rest),
        )
    )


def test_a_node_shows_its_gpus_with_the_pods_on_each() -> None:
    parts = node_parts(
        told(cluster_node(held=(held("train", 7), held("serve", 3, ordinal=1)))), NOW
    )
    assert (parts.card.id, parts.card.level, parts.notes) == ("node1", Level.WELL, ())
    assert [(gpu.id, [one.name for one in gpu.slices or ()]) for gpu in parts.gpus] == [
        (f"node1/{uuid('node1', 0)}", ["default/train"]),
        (f"node1/{uuid('node1', 1)}", ["default/serve"]),
    ]


def test_a_domain_that_does_not_serve_makes_its_node_as_bad() -> None:
    parts = node_parts(in_state(State.FAULT), NOW)
    (note,) = parts.notes
    assert (note.kind, note.where) == (NoteKind.STATE, "node1 gpu0")
    assert parts.card.level is note.level is parts.gpus[0].level


def test_a_wedged_domain_shows_when_it_is_restarted_and_no_other_does() -> None:
    times = [
        node_parts(in_state(state), NOW, 60.0).notes[0].restart_at
        for state in (State.WEDGED, State.FAULT)
    ]
    assert times == [NOW - 5 + 60, None]
    assert node_parts(in_state(State.WEDGED), NOW).notes[0].restart_at is None


def test_a_node_that_has_told_nothing_of_late_is_silent_in_the_words_of_kubectl_mps() -> None:
    old = aged(told(cluster_node()), NOW + STALE_S + 1)
    parts = node_parts(old, NOW + STALE_S + 1)
    assert (parts.card.stale, parts.card.level) == (True, Level.BAD)
    assert [(note.kind, note.since) for note in parts.notes] == [(NoteKind.SILENT, NOW)]
    assert "its agent does not run, or does not reach the API server" in parts.notes[0].text


def test_a_node_is_the_very_same_until_it_is_stale() -> None:
    node = told(cluster_node())
    assert aged(node, NOW + STALE_S) is node
    assert aged(node, NOW + STALE_S + 1).stale


def test_what_is_wrong_with_a_node_beside_its_domains_is_told_too() -> None:
    wrong = ConditionReport(
        CONDITION, "False", utc(NOW - 60), "LimitsMismatch", "a pod runs without a limit"
    )
    parts = node_parts(
        told(cluster_node(), conditions=(wrong,), ready=False, unreadable=("status is 3",)), NOW
    )
    assert [note.kind for note in parts.notes] == [NoteKind.NODE, NoteKind.NODE]
    assert "a pod runs without a limit" in parts.notes[0].text


def test_a_node_that_is_labelled_and_tells_nothing_is_told() -> None:
    page = cluster_page(HEAD, (), (), [no_mpsnode("node9")])
    assert [(note.kind, note.level, note.where) for note in page.notes] == [
        (NoteKind.NO_MPSNODE, Level.BAD, "node9")
    ]


@pytest.mark.parametrize(
    ("gib", "why", "level"), [(20, Why.NO_ROOM, Level.WARN), (100, Why.TOO_LARGE, Level.BAD)]
)
def test_a_pod_waits_with_the_sentence_of_explain_worse_if_for_ever(
    gib: int, why: Why, level: Level
) -> None:
    seen = read_pod_seen(pod(gib), POLICY)
    around = scene(told(cluster_node(held=(held("a", 9), held("b", 9, ordinal=1)))))
    answer = explanation_of(seen, around)
    one = pod_card(seen, answer)
    assert (one.why, one.text, one.memory_mib) == (why.value, answer.sentence, gib * GIB)
    # when it was made
    assert (one.level, one.since) == (level, seconds("2026-11-21T08:00:00Z"))


def test_faults_and_changes_of_the_last_day_are_what_happened_recently() -> None:
    node = in_state(State.WEDGED)
    first, second = node.domains
    second = changed(
        second, faults=FaultsReport(1, utc(NOW - 2)), since=utc(NOW - 90_000.0), restarts=1
    )
    node = changed(node, domains=(first, second))
    page = cluster_page(HEAD, [node_parts(node, NOW)], ())
    assert [(line.what, line.where) for line in page.recent] == [
        ("MPSFault", "node1 gpu1"),
        ("wedged", "node1 gpu0"),
    ]
    later = node_parts(node, NOW + 100_000.0)
    assert later.recent == ()


def test_what_a_pod_did_marks_its_slice_and_is_what_happened_recently_once() -> None:
    last = ViolationReport(
        at=utc(NOW - 5), kind="memory_over_grant", action="kill", pod="default/train"
    )
    gone = changed(last, at=utc(NOW - 9), action="evict", pod="default/thief")
    old = changed(last, at=utc(NOW - 100_000.0))
    in_no_pod = ViolationReport(at=utc(NOW - 7), kind="in_no_pod", action="warn")
    counts = (
        ViolationCount(kind="memory_over_grant", count=2),
        ViolationCount(kind="limit_lifted", count=1),
    )
    own = GrantViolations(counts, last)
    pods = (
        changed(held("train", 7), violations=own),
        changed(held("well", 3), violations=NO_VIOLATIONS),
        held("?", 1),
    )
    of_node = ViolationsReport(pods=1, last=(old, gone, in_no_pod, last))
    page = cluster_page(
        HEAD, [node_parts(told(cluster_node(held=pods), violations=of_node), NOW)], ()
    )
    assert [one.violations for one in page.gpus[0].slices or ()] == [3, 0, None]
    assert [(line.what, line.where, line.text) for line in page.recent] == [
        ("memory_over_grant", "node1 default/train", "to be ended"),
        ("in_no_pod", "node1", "reported"),
        ("memory_over_grant", "node1 default/thief", "to be ended and evicted"),
    ]


def test_a_tenant_whose_pods_all_break_their_limits_pushes_no_fault_out() -> None:
    def one(number: int) -> GrantReport:
        last = ViolationReport(at=utc(NOW - 1), kind="outside_mps", action="kill")
        own = GrantViolations((ViolationCount(kind="outside_mps", count=1),), last)
        return changed(held(f"thief-{number}", 1), violations=own)

    node = told(cluster_node(held=tuple(map(one, range(MOST_RECENT)))))
    hit = changed(node.domains[0], faults=FaultsReport(1, utc(NOW - 600)), since=None)
    page = cluster_page(
        HEAD, [node_parts(changed(node, domains=(hit, *node.domains[1:])), NOW)], ()
    )
    assert [line.what for line in page.recent] == ["outside_mps"] * MOST_VIOLATIONS + ["MPSFault"]


@given(damaged())
def test_whatever_a_node_tells_is_shown_and_nothing_of_it_twice(thing: object) -> None:
    parts = node_parts(read_mpsnode(thing, MPSNODES_NOW), MPSNODES_NOW)
    recent = (*parts.recent, *parts.violations)
    assert len({line.id for line in recent}) == len(recent)
    assert all(line.where.isprintable() for line in recent)
