"""What a scheduler believes of one node, where answers and watches tell different things."""

import time

import pytest

from mpsd.model.names import STALE_S
from mpsd.model.times import DAY_S, HOUR_S, stamp
from mpsd.platform.kube import Object
from mpsd.scheduler.known_node import KnownNode, read_reported
from mpsd.scheduler.rules.reservations import KEY, PodState
from tests.model.worlds import POLICY
from tests.whole.scheduler.world import told

RESERVED = '{"a-uid":{"gpus":["GPU-node1-0"],"mib":7168,"percent":0,"pod":"default/a"}}'


def mpsnode(version: str, reserved: str = "", used_mib: int = 0, at: float = 0.0) -> Object:
    """at: when it has reported, by its own clock."""
    metadata = {
        "name": "node1",
        "resourceVersion": version,
        "annotations": {KEY: reserved} if reserved else {},
    }
    status = told("node1", (23,), [], used_mib) | {"reportedAt": stamp(at)}
    return {"metadata": metadata, "status": status}


@pytest.fixture
def node() -> KnownNode:
    """It has been told of by a watch, and then by the answer to a write."""
    node = KnownNode("node1", 150)
    assert node.take_watched(read_reported(mpsnode("8")), 0)
    assert node.take_answer(read_reported(mpsnode("10", RESERVED)), 0)
    return node


def test_an_answer_is_not_undone_by_an_older_watch(node: KnownNode) -> None:
    assert not node.take_watched(read_reported(mpsnode("9")), 1)
    assert node.reservations.uids == {"a-uid"}


def test_a_watch_that_goes_on_being_older_is_believed_in_the_end(node: KnownNode) -> None:
    """As after a restore of etcd, when all versions are lower than what was known."""
    assert node.take_watched(read_reported(mpsnode("9")), 31)
    assert not node.reservations.uids


def test_a_watch_that_has_overtaken_an_answer_is_not_undone(node: KnownNode) -> None:
    assert node.take_watched(read_reported(mpsnode("12")), 1)
    assert not node.take_answer(read_reported(mpsnode("11", RESERVED)), 1)
    assert not node.reservations.uids


def test_what_the_server_holds_against_a_refused_version_is_believed(node: KnownNode) -> None:
    assert node.take_answer(read_reported(mpsnode("5")), 1, refused="10")
    assert not node.reservations.uids


def test_versions_that_are_no_numbers_are_all_new(node: KnownNode) -> None:
    assert node.take_watched(read_reported(mpsnode("zzz")), 1)
    assert node.take_watched(read_reported(mpsnode("aaa", RESERVED)), 1)


def test_what_says_nothing_of_room_changes_the_version_alone(node: KnownNode) -> None:
    assert not node.take_watched(read_reported(mpsnode("11", RESERVED, used_mib=4711)), 1)
    assert node.reported
    assert node.reported.version == "11"


def is_shut(node: KnownNode, now: float) -> bool:
    ledger = node.ledger(POLICY, (), now)
    assert ledger
    return bool(ledger.shut)


@pytest.mark.parametrize("off_s", [-2 * DAY_S, -HOUR_S, 0, HOUR_S, 2 * DAY_S])
def test_a_node_that_falls_silent_takes_no_pods_after_a_while_whatever_its_clock(
    off_s: float,
) -> None:
    node = KnownNode("node1", 150)
    at = time.time() + off_s
    assert node.take_watched(read_reported(mpsnode("8", at=at)), 5)
    assert node.changes_at(lambda _reservation: PodState.BOUND, 10) == 5 + STALE_S
    assert not is_shut(node, 5 + STALE_S)
    # others may write to its MPSNode
    node.take_watched(read_reported(mpsnode("9", RESERVED, at=at)), 100)
    assert is_shut(node, 6 + STALE_S)
    assert node.changes_at(lambda _reservation: PodState.BOUND, 6 + STALE_S) is None
    assert node.take_watched(read_reported(mpsnode("10", RESERVED, at=at + 1)), 7 + STALE_S)
    assert not is_shut(node, 7 + STALE_S)
