"""What is told of a fault: to the node and to every pod that was hit, once, by what is written down of it."""

from dataclasses import replace

import pytest

from mpsd.agent.rules.node_events import MOST_NAMES, TOLD_S, happenings
from mpsd.model.domain import State
from mpsd.model.events import Event, EventCount, Reason, is_told_by
from mpsd.model.node_view import Fault, FaultHit, NodeView, pod_names
from mpsd.platform.kube_time import stamp
from tests.model.worlds import NOW, identity
from tests.status.pod_worlds import client, held, node, pod

PODS = (held("a", 2), held("b", 2), held("idle", 2), held("other", gpu=1))


def hit(pid: int, of: str | None = None, ended_at: float | None = None) -> FaultHit:
    return FaultHit(identity(pid), "train", pod(of).uid if of else None, ended_at)


FAULT = Fault(NOW, (hit(1, "a"), hit(2, "a"), hit(3, "b"), hit(4)))


def seen(*faults: Fault, now: float = NOW, state: State = State.FAULT) -> NodeView:
    return node(grants=PODS, now=now, state=state, faults=faults, faults_total=len(faults))


QUIET = seen(state=State.READY)


def told(before: NodeView | None, now: NodeView) -> list[Event]:
    return list(happenings(before, now, "node1", stamp))


def subjects(found: list[Event]) -> list[str]:
    return [str(one.subject) for one in found]


def test_the_node_and_every_pod_that_was_hit_hear_of_a_fault_and_no_other_pod_does() -> None:
    found = told(QUIET, seen(FAULT))
    assert subjects(found) == ["Node node1", "Pod default/a", "Pod default/b"]
    assert {one.reason for one in found} == {Reason.FAULT}
    on_node, on_a, on_b = (one.message for one in found)
    assert on_node == (
        "MPS domain gpu0 had a fault, which ended the work of every program on its GPU: default/a (2), default/b (1), "
        "processes of no pod (1); which of them caused it nobody can say"
    )
    assert on_a == (
        "MPS domain gpu0: the fault of a program there ended the work of 2 GPU processes of this pod; "
        "they must be started again"
    )
    assert on_b.endswith("ended the work of 1 GPU process of this pod; it must be started again")


def test_a_fault_that_had_healed_before_anybody_looked_is_told_like_any_other() -> None:
    healed = replace(FAULT, healed_at=NOW + 0.1)
    assert told(QUIET, seen(healed, state=State.READY)) == told(QUIET, seen(FAULT))


def test_a_fault_is_told_once() -> None:
    assert told(seen(FAULT), seen(FAULT, now=NOW + 1)) == []
    after = replace(FAULT, healed_at=NOW + 5)
    assert [one.reason for one in told(seen(FAULT), seen(after, state=State.READY))] == [Reason.READY]


def test_a_pod_that_the_log_named_later_hears_of_it_and_nobody_twice() -> None:
    first = replace(FAULT, hit=FAULT.hit[:1])
    found = told(seen(first), seen(FAULT))
    assert subjects(found) == ["Pod default/a", "Pod default/b"]
    assert "of 1 GPU process of this pod" in found[0].message


def test_of_whom_the_record_knows_no_pod_the_look_before_may() -> None:
    before = replace(QUIET, clients=(replace(client("b", 9), pod=pod("b").uid),))
    found = told(before, seen(Fault(NOW, (hit(4),), strangers=(9,))))
    assert subjects(found) == ["Node node1", "Pod default/b"]
    assert "default/b (1), processes of no pod (1)" in found[0].message


def test_a_pod_that_every_fault_hit_is_told_so_and_named_to_the_node_without_blame() -> None:
    first, second = replace(FAULT, at=NOW - 60), replace(FAULT, hit=FAULT.hit[:2])
    on_node, on_pod = told(seen(first, state=State.READY), seen(first, second))
    since = stamp(NOW - 60)
    assert on_pod.message.endswith(f"; this pod was present at 2 of 2 faults since {since}")
    assert on_node.message.endswith(
        f"; which of them caused it nobody can say; hit each time: default/a (2 faults since {since})"
    )
    assert not any("culprit" in one.message for one in (on_node, on_pod))


def test_the_pod_of_a_process_that_was_ended_hears_so_once() -> None:
    ended = replace(FAULT, hit=(hit(1, "a", NOW + 5), *FAULT.hit[1:]))
    (found,) = told(seen(FAULT), seen(ended))
    assert (str(found.subject), found.at) == ("Pod default/a", NOW + 5)
    assert found.message == (
        "MPS domain gpu0: pid 1 of this pod stayed after a fault had ended its work, and was killed, so that the GPU "
        "serves again"
    )
    assert told(seen(ended), seen(ended)) == []


@pytest.mark.parametrize(
    ("healed_at", "age_s", "tells"),
    [(None, 2 * TOLD_S, True), (NOW + 1, TOLD_S / 2, True), (NOW + 1, TOLD_S + 1, False)],
    ids=["still open", "healed of late", "long healed"],
)
def test_an_agent_that_starts_tells_a_fault_that_lasts_or_is_of_late(
    healed_at: float | None, age_s: float, tells: bool
) -> None:
    found = told(None, seen(replace(FAULT, healed_at=healed_at), now=NOW + age_s))
    assert any("had a fault" in one.message for one in found if one.at) is tells


def test_whoever_finds_a_fault_again_says_the_same_of_it_and_sees_that_it_was_said() -> None:
    first = told(QUIET, seen(FAULT))
    again = told(None, seen(FAULT, now=NOW + 100))
    assert first == again
    for one in again:
        event = {"lastTimestamp": stamp(NOW)}
        assert is_told_by(event, EventCount(one, NOW, NOW, 1), stamp)
        assert not is_told_by({"lastTimestamp": stamp(NOW - 60)}, EventCount(one, NOW, NOW, 1), stamp)


@pytest.mark.parametrize("event", [{}, {"lastTimestamp": None}])
def test_an_event_without_a_time_tells_nothing(event: dict[str, object]) -> None:
    (one, *_rest) = told(QUIET, seen(FAULT))
    assert not is_told_by(event, EventCount(one, NOW, NOW, 1), stamp)


def test_a_pod_that_is_gone_is_named_by_its_uid() -> None:
    gone = Fault(NOW, (hit(1, "gone"),))
    (found,) = told(QUIET, seen(gone))
    assert "a pod that is gone, uid uid-of-gone (1)" in found.message


def test_many_pods_do_not_make_a_message_endless() -> None:
    names = [f"p{number:02}" for number in range(MOST_NAMES + 3)]
    crowd = Fault(NOW, tuple(hit(pid, name) for pid, name in enumerate(names)))
    now = replace(seen(crowd), grants=tuple(held(name, 1) for name in names))
    on_node, *on_pods = told(replace(QUIET, grants=now.grants), now)
    assert "default/p09 (1) and 3 more" in on_node.message
    assert len(on_pods) == len(names)


def test_a_static_pod_is_known_by_the_uid_in_its_cgroup() -> None:
    view = replace(QUIET, clients=(replace(client("a", 1), pod="0" * 32),))
    assert pod_names(view)["0" * 32] == pod("a")
