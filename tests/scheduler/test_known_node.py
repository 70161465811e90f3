"""What a scheduler believes of one node, where answers and watches tell different things."""

import pytest

from mpsd.platform.kube import Object
from mpsd.scheduler.known_node import KnownNode, read_reported
from mpsd.scheduler.rules.reservations import KEY, PodState
from tests.model.worlds import POLICY
from tests.whole.scheduler.world import told

RESERVED = '{"a-uid":{"gpus":["GPU-node1-0"],"mib":7168,"percent":0,"pod":"default/a"}}'


def mpsnode(version: str, reserved: str = "", used_mib: int = 0) -> Object:
    metadata = {
        "name": "node1",
        "resourceVersion": version,
        "annotations": {KEY: reserved} if reserved else {},
    }
    return {"metadata": metadata, "status": told("node1", (23,), [], used_mib)}


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


def test_a_node_that_falls_silent_takes_no_pods_after_a_while(node: KnownNode) -> None:
    at = node.changes_at(lambda _reservation: PodState.BOUND, 0)
    assert at == pytest.approx(600, abs=2)
    thing = mpsnode("11")
    thing["status"]["reportedAt"] = "2020-01-01T00:00:00Z"
    node.take_watched(read_reported(thing), 1)
    ledger = node.ledger(POLICY, ())
    assert ledger
    assert ledger.shut
    assert node.changes_at(lambda _reservation: PodState.BOUND, 0) is None
    assert node.take_watched(read_reported(mpsnode("12")), 2)
    ledger = node.ledger(POLICY, ())
    assert ledger
    assert not ledger.shut
