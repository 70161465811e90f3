"""What is written of a reservation is read again, and whatever else stands there is no
reservation."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.identity import PodName
from mpsd.scheduler.known_node import KnownNode
from mpsd.scheduler.ledger import KnownPods
from mpsd.scheduler.rules import reservations as reservations_rules
from mpsd.scheduler.rules.reservations import (
    NodeReservations,
    PodState,
    Reservation,
    read_reservations,
    written,
)
from tests.status.cluster_worlds import reserved, shared_pod, uuid

_NAMES = st.text("abc-", min_size=1, max_size=5)
_RESERVATIONS = st.builds(
    Reservation,
    st.builds(PodName, _NAMES, _NAMES, _NAMES),
    st.lists(_NAMES, max_size=3).map(tuple),
    st.integers(0, 10**6),
    st.integers(0, 100),
)


@given(st.lists(_RESERVATIONS, unique_by=lambda one: one.pod.uid, max_size=4))
def test_what_is_written_is_read_again(reservations: list[Reservation]) -> None:
    assert set(read_reservations(written(reservations) or "")) == set(reservations)


@given(
    st.text(max_size=40)
    | st.sampled_from(
        ['{"a": 1}', "[1]", '{"a": {"pod": "x/y", "gpus": [1], "mib": 1}}', "[" * 9999]
    )
)
def test_nonsense_is_no_promise(text: str) -> None:
    assert all(isinstance(one, Reservation) for one in read_reservations(text))


# Which reservations count, by what became of their pods and by their age.

LONGEST_S = 100.0


def counting(reservations: NodeReservations, state: PodState, now: float) -> list[Reservation]:
    return list(reservations.counting(lambda _reservation: state, now))


@pytest.mark.parametrize(
    ("state", "young", "old"),
    [
        (PodState.UNSEEN, True, False),
        (PodState.WAITING, True, False),
        (PodState.BOUND, True, True),
        (PodState.GRANTED, False, False),
        (PodState.ELSEWHERE, False, False),
        (PodState.ENDED, False, False),
    ],
)
def test_a_promise_counts_until_its_pod_needs_it_no_more(
    state: PodState, young: bool, old: bool
) -> None:
    reservations = NodeReservations(LONGEST_S)
    reservations.update([reserved("a", 7)], 0)
    assert bool(counting(reservations, state, LONGEST_S - 1)) == young
    assert bool(counting(reservations, state, LONGEST_S)) == old
    assert reservations.ends_at(lambda _reservation: state, 0) == (
        LONGEST_S if young and not old else None
    )


def test_a_reservation_whose_pod_is_never_bound_ends_after_150_s() -> None:
    known = KnownNode("node1", reservations_rules.LONGEST_S)
    known.reservations.update([reserved("a", 7)], 0)
    assert counting(known.reservations, PodState.WAITING, 149)
    assert not counting(known.reservations, PodState.WAITING, 150)


@pytest.mark.parametrize("field", ["mib", "percent"])
def test_a_reservation_of_less_than_nothing_is_none(field: str) -> None:
    entries = json.loads(written([reserved("a", 7)]) or "")
    assert read_reservations(json.dumps(entries)) == (reserved("a", 7),)
    for amount, is_read in ((0, True), (-1, False)):
        changed = {uid: entry | {field: amount} for uid, entry in entries.items()}
        assert bool(read_reservations(json.dumps(changed))) == is_read


def test_an_age_goes_on_while_the_promise_is_the_same() -> None:
    reservations = NodeReservations(LONGEST_S)
    reservations.update([reserved("a", 7)], 0)
    reservations.update([reserved("a", 7), reserved("b", 7)], 60)
    assert [one.pod.name for one in counting(reservations, PodState.WAITING, 101)] == ["b"]
    reservations.update([replace(reserved("a", 7), at="2026-11-21T08:30:00Z")], 102)
    assert [one.pod.name for one in counting(reservations, PodState.WAITING, 200)] == ["a"]


def test_what_is_written_goes_before_what_is_decided_as_long_as_it_counts() -> None:
    reservations = NodeReservations(LONGEST_S)
    reservations.update([reserved("a", 7)], 0)
    reservations.pending["a-uid"] = reserved("a", 7, ordinal=1)
    assert [one.gpus for one in counting(reservations, PodState.UNSEEN, 50)] == [
        (uuid("node1", 0),)
    ]
    assert [one.gpus for one in counting(reservations, PodState.UNSEEN, 500)] == [
        (uuid("node1", 1),)
    ]
    reservations.pending.clear()
    reservations.withdraw("a-uid")
    assert counting(reservations, PodState.UNSEEN, 50) == []


def test_the_state_of_a_pod_is_what_was_heard_of_it() -> None:
    pods = KnownPods(50)
    reservation = reserved("a", 7)
    waiting, bound = shared_pod("a", 7), shared_pod("a", 7, node="node1")
    assert pods.state(reservation, "node1") is PodState.UNSEEN
    pods.changed(None, waiting, 0)
    assert pods.state(reservation, "node1") is PodState.WAITING
    pods.changed(waiting, bound, 0)
    assert pods.state(reservation, "node1") is PodState.BOUND
    assert pods.state(reservation, "node2") is PodState.ELSEWHERE
    pods.changed(bound, None, 0)
    assert pods.state(reservation, "node1") is PodState.ENDED


def test_a_namesake_is_another_pod() -> None:
    pods = KnownPods(50)
    first, second = (
        shared_pod("a", 7),
        shared_pod("a", 7, name=replace(shared_pod("a", 7).name, uid="other")),
    )
    pods.changed(None, first, 0)
    pods.changed(first, second, 0)
    assert pods.state(reserved("a", 7), "node1") is PodState.ENDED
    pods.changed(second, None, 51)
    assert pods.state(reserved("a", 7), "node1") is PodState.UNSEEN  # forgotten by now
