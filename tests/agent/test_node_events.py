"""What two looks at a node tell: on the node each change of a domain, on a pod what it lost."""

from collections import UserDict
from collections.abc import Iterator
from dataclasses import replace

import pytest

from mpsd.agent.rules.node_events import OLD_FAULT_S, EventHistory, node_events
from mpsd.model.domain import State
from mpsd.model.events import Event, EventCount, Reason, is_reported_by, pod_subject
from mpsd.model.gpu_health import GpuCondition, HealthCause
from mpsd.model.grants import Request
from mpsd.model.identity import HostContainer, PodName
from mpsd.model.node_view import (
    Canary,
    Fault,
    FaultCause,
    FaultHit,
    HeldGrant,
    NodeView,
    WaitingRequest,
    past_pods,
    pod_names,
)
from mpsd.model.problem import MOST_NAMES
from mpsd.model.times import stamp
from tests.model.worlds import NOW, NOW_S, blind, grant, identity
from tests.status.pod_worlds import client, client_of_claim, held, held_claim, node, pod


def told(before: NodeView | None, now: NodeView) -> list[tuple[str, Reason]]:
    return [(str(one.subject), one.reason) for one in node_events(before, now, "node1")]


BUSY = node(
    grants=(held("a"), held("idle"), held("other", gpu=1)),
    clients=(client("a", 1), client("other", 2, gpu=1)),
)
DOWN = {"state": State.DOWN, "daemon": None, "restarts_total": 1}
DEAR = Canary("a-boot", "580.1", 1.0, "", 172, 12, "gpu0: a context on 12 SMs takes 172 MiB")


def like(view: NodeView, **records: object) -> NodeView:
    return replace(node(**records), grants=view.grants, clients=view.clients)  # type: ignore[arg-type]


def test_a_gpu_s_trouble_is_told_once_to_the_node_and_to_those_who_hold_a_grant_there() -> None:
    (lost, _well) = (gpu.uuid for gpu in BUSY.gpus)
    now = replace(BUSY, troubles={lost: "gpu0 is lost; reset it"})
    there = [str(pod_subject(pod)) for one in BUSY.grants[:2] for pod in one.grant.pods]
    assert len(there) == 2
    on_node, *on_pods = told(BUSY, now)
    assert on_node[1] is Reason.UNAVAILABLE
    assert sorted(on_pods) == sorted((one, Reason.UNAVAILABLE) for one in there)
    assert told(now, now) == []
    assert len(told(now, replace(now, troubles={lost: "gpu0 does not answer"}))) == 3
    assert (str(on_node[0]), Reason.UNAVAILABLE) in told(None, now)


def test_nothing_new_tells_nothing() -> None:
    assert told(BUSY, BUSY) == []


def test_pods_are_looked_up_by_their_uids_for_faults_alone_and_once_for_all_domains() -> None:
    looked: list[str] = []

    class Ungranted(UserDict[str, PodName]):
        def __iter__(self) -> Iterator[str]:
            looked.append("all of them")
            return super().__iter__()

    before = replace(BUSY, ungranted=Ungranted())
    assert told(before, replace(before, now=NOW + 1)) == []
    assert told(before, replace(like(before, **DOWN), ungranted=Ungranted()))
    assert not looked
    fault = Fault(NOW, (), healed_at=NOW)
    assert told(before, replace(like(before, faults=(fault,)), ungranted=before.ungranted))
    assert len(looked) == 2  # once in each of the views


def test_a_daemon_that_goes_down_is_told_on_the_node_and_on_each_pod_that_had_clients_there() -> (
    None
):
    gone = replace(like(BUSY, **DOWN), clients=())
    assert told(BUSY, gone) == [
        ("Node node1", Reason.DAEMON_DOWN),
        ("Pod default/a", Reason.DAEMON_DOWN),
    ]


def test_a_daemon_that_ended_and_came_back_between_two_looks_is_told_all_the_same() -> None:
    back = like(BUSY, restarts_total=1)
    assert told(BUSY, back) == [
        ("Node node1", Reason.DAEMON_DOWN),
        ("Node node1", Reason.READY),
        ("Pod default/a", Reason.DAEMON_DOWN),
    ]


def test_the_node_hears_which_pods_lost_processes() -> None:
    before = replace(BUSY, clients=(client("idle", 3), client("a", 1)))
    on_node, *_pods = node_events(
        before, like(before, **DOWN, reason="killed by signal 9"), "node1"
    )
    assert "killed by signal 9" in on_node.message
    assert on_node.message.endswith(": default/a, default/idle")
    on_node, *_pods = node_events(before, like(before, restarts_total=1), "node1")
    assert on_node.message.endswith(": default/a, default/idle")


def test_without_kubernetes_the_programs_and_containers_that_lost_processes_are_named() -> None:
    program = replace(grant("run", 7), holder=identity(61), command="python train.py --key=secret")
    boxed = replace(
        grant("boxed", 7),
        holder=HostContainer("/run/runc", "c0ffee", "web", identity(62), is_made=True),
    )
    holders = tuple(HeldGrant(one, holder_alive=True) for one in (program, boxed, grant("idle", 7)))
    clients = tuple(
        replace(client("x", pid), grant=one.id) for pid, one in ((61, program), (63, boxed))
    )
    before = replace(BUSY, grants=holders, clients=clients)
    (on_node,) = node_events(before, like(before, **DOWN), "node1")
    assert on_node.message.endswith(": container web, pid 61 (python)")


def test_a_wedged_daemon_is_told_on_the_node_and_on_each_pod_that_may_lose_clients() -> None:
    on_node, on_pod = node_events(BUSY, like(BUSY, state=State.WEDGED, reason="no answer"), "node1")
    assert on_node.message.endswith(": default/a")
    assert (str(on_pod.subject), on_pod.reason) == ("Pod default/a", Reason.WEDGED)
    assert "1 GPU process of this pod" in on_pod.message


def test_where_nobody_knows_the_clients_every_pod_there_may_have_lost_some() -> None:
    before = blind(BUSY)
    events = node_events(before, like(before, **DOWN), "node1")
    pods = [one for one in events if one.subject.kind == "Pod"]
    assert [one.subject.name for one in pods] == ["a", "idle"]
    assert all("any GPU processes of this pod" in one.message for one in pods)


def test_a_first_look_tells_of_troubles_alone_and_takes_nothing_for_lost() -> None:
    assert told(None, BUSY) == []
    assert told(None, like(BUSY, **DOWN)) == [("Node node1", Reason.DAEMON_DOWN)]


LIVE = identity(77)


@pytest.mark.parametrize(
    ("earlier", "now"),
    [
        pytest.param({"state": State.DRAINED}, {"daemon": None}, id="a drained one is ended"),
        pytest.param({"state": State.REFUSED, "daemon": None}, {"daemon": None}, id="a MIG layout"),
        pytest.param({}, {"daemon": LIVE}, id="mpsd control begins again, and its daemon lives"),
    ],
)
def test_what_mpsd_does_itself_is_no_daemon_down(
    earlier: dict[str, object], now: dict[str, object]
) -> None:
    before = like(BUSY, **{"daemon": LIVE} | earlier)
    down = like(BUSY, **{"state": State.DOWN, "started_s": 1.0} | now)
    assert told(before, down) == []
    counted = like(BUSY, state=State.DOWN, daemon=None, restarts_total=1)
    assert ("Node node1", Reason.DAEMON_DOWN) in told(down, counted)


def test_a_domain_that_is_ended_as_soon_as_it_is_drained_is_no_daemon_down() -> None:
    before = like(BUSY, state=State.DRAINING, daemon=LIVE)
    now = like(BUSY, state=State.DRAINED, daemon=None)
    assert told(before, now) == [("Node node1", Reason.DRAINED)]


def test_that_nobody_watches_a_gpu_is_told_once_on_the_node() -> None:
    unwatched = like(BUSY, unwatched="nobody watches the processes on GPU-0")
    assert told(BUSY, unwatched) == told(None, unwatched) == [("Node node1", Reason.UNWATCHED)]
    assert told(unwatched, unwatched) == []


def test_another_gpu_that_takes_a_name_over_has_lost_nothing() -> None:
    before = like(BUSY, daemon=LIVE)
    (old, *_others) = before.domains
    shifted = replace(old.record, gpus=("GPU-another",), state=State.DOWN, daemon=None)
    now = replace(before, domains=(replace(old, record=shifted), *before.domains[1:]))
    assert told(before, now) == []


# What is told of a fault: to the node and to every pod that was hit, once, by what is written down
# of it.


def test_a_gpu_that_becomes_sick_is_told_once_on_the_node_and_on_each_pod_there() -> None:
    condition = GpuCondition(BUSY.gpus[0].uuid, HealthCause.XID, "Xid 79")
    sick = like(BUSY, health=(condition,))
    found = told(BUSY, sick)
    assert found[0] == ("Node node1", Reason.SICK)
    assert set(found[1:]) == {(f"Pod default/{name}", Reason.SICK) for name in ("a", "idle")}
    assert told(sick, sick) == []
    assert ("Node node1", Reason.SICK) in told(None, sick)


def test_a_daemon_that_is_restarted_to_try_a_sick_gpu_is_not_told_as_down() -> None:
    condition = GpuCondition(BUSY.gpus[0].uuid, HealthCause.XID, "Xid 79")
    empty = replace(BUSY, grants=(), clients=())
    sick = like(empty, health=(condition,))
    assert told(sick, like(empty, health=(condition,), **DOWN)) == []
    # and with programs it is
    assert told(like(BUSY, health=(condition,)), like(BUSY, health=(condition,), **DOWN))


PODS = (held("a", 2), held("b", 2), held("idle", 2), held("other", gpu=1))


def hit(pid: int, of: str | None = None, ended_at: float | None = None) -> FaultHit:
    return FaultHit(identity(pid), "train", pod(of).uid if of else None, ended_at)


KILLED = FaultCause(identity(7), "train", pod("idle").uid, "killed by SIGKILL")
FAULT = Fault(NOW, (hit(1, "a"), hit(2, "a"), hit(3, "b"), hit(4)), at_s=NOW_S)


def seen(*faults: Fault, now: float = NOW, state: State = State.FAULT) -> NodeView:
    return node(grants=PODS, now=now, state=state, faults=faults, faults_total=len(faults))


QUIET = seen(state=State.READY)


def events(before: NodeView | None, now: NodeView) -> list[Event]:
    return list(node_events(before, now, "node1"))


def subjects(found: list[Event]) -> list[str]:
    return [str(one.subject) for one in found]


def test_the_node_and_every_pod_that_was_hit_hear_of_a_fault_and_no_other_pod_does() -> None:
    found = events(QUIET, seen(FAULT))
    assert subjects(found) == ["Node node1", "Pod default/a", "Pod default/b"]
    assert {one.reason for one in found} == {Reason.FAULT}
    on_node, on_a, on_b = (one.message for one in found)
    assert "default/a (2), default/b (1), processes of no pod (1)" in on_node
    assert "2 GPU processes of this pod" in on_a
    assert "1 GPU process of this pod" in on_b


def test_a_fault_that_had_healed_before_anybody_looked_is_told_like_any_other() -> None:
    healed = replace(FAULT, healed_at=NOW + 0.1)
    assert events(QUIET, seen(healed, state=State.READY)) == events(QUIET, seen(FAULT))


def test_a_fault_is_told_once() -> None:
    assert events(seen(FAULT), seen(FAULT, now=NOW + 1)) == []
    after = replace(FAULT, healed_at=NOW + 5)
    assert [one.reason for one in events(seen(FAULT), seen(after, state=State.READY))] == [
        Reason.READY
    ]


def test_a_fault_is_told_once_it_is_known_who_ended_before_it_and_then_with_that() -> None:
    begun = replace(FAULT, causes=None)
    assert events(QUIET, seen(begun)) == []
    two = (KILLED, replace(KILLED, process=identity(8)))
    on_node, *on_pods = events(seen(begun), seen(replace(FAULT, causes=two)))
    cause = "; likely cause, ended just before it: default/idle: killed by SIGKILL"
    assert all(one.message.endswith(cause) for one in (on_node, *on_pods))
    assert [str(one.subject) for one in on_pods] == ["Pod default/a", "Pod default/b"]


def test_what_kubernetes_says_of_a_cause_is_told_when_it_comes_and_once() -> None:
    known = seen(replace(FAULT, causes=(KILLED,)))
    said = replace(known, reasons={KILLED.process: "OOMKilled"})
    found = events(known, said)
    assert subjects(found) == ["Node node1", "Pod default/a", "Pod default/b"]
    assert all(one.message.endswith("killed by SIGKILL (OOMKilled)") for one in found)
    assert min(one.at or 0 for one in found) > FAULT.at
    assert events(said, said) == []
    # a new agent makes the very same events, which the API server has
    assert {*events(None, said)} == {*events(None, known), *found}
    assert events(known, replace(said, now_s=NOW_S + OLD_FAULT_S + 1)) == []


def test_of_whom_the_record_knows_no_pod_the_look_before_may() -> None:
    before = replace(QUIET, clients=(replace(client("b", 9), pod=pod("b").uid),))
    found = events(before, seen(Fault(NOW, (hit(4),), unidentified=(9,))))
    assert subjects(found) == ["Node node1", "Pod default/b"]
    assert "default/b (1), processes of no pod (1)" in found[0].message


def test_a_pod_that_every_fault_hit_is_told_so_and_named_to_the_node_without_blame() -> None:
    first, second = replace(FAULT, at=NOW - 60), replace(FAULT, hit=FAULT.hit[:2])
    on_node, on_pod = events(seen(first, state=State.READY), seen(first, second))
    since = stamp(NOW - 60)
    assert on_pod.message.endswith(f" 2 of 2 faults since {since}")
    assert on_node.message.endswith(f": default/a (2 faults since {since})")
    assert not any("culprit" in one.message for one in (on_node, on_pod))


def test_the_pod_of_a_process_that_was_ended_hears_so_once() -> None:
    ended = replace(FAULT, hit=(hit(1, "a", NOW + 5), *FAULT.hit[1:]))
    (found,) = events(seen(FAULT), seen(ended))
    assert (str(found.subject), found.at) == ("Pod default/a", NOW + 5)
    assert "pid 1 of this pod" in found.message
    assert events(seen(ended), seen(ended)) == []


@pytest.mark.parametrize(
    ("healed_at", "age_s", "tells"),
    [
        (None, 2 * OLD_FAULT_S, True),
        (NOW + 1, OLD_FAULT_S / 2, True),
        (NOW + 1, OLD_FAULT_S + 1, False),
    ],
    ids=["still open", "healed of late", "long healed"],
)
def test_an_agent_that_starts_tells_a_fault_that_lasts_or_is_of_late(
    healed_at: float | None, age_s: float, tells: bool
) -> None:
    found = events(None, seen(replace(FAULT, healed_at=healed_at), now=NOW + age_s))
    assert any("had a fault" in one.message for one in found if one.at) is tells


def test_whoever_finds_a_fault_again_says_the_same_of_it_and_sees_that_it_was_said() -> None:
    first = events(QUIET, seen(FAULT))
    again = events(None, seen(FAULT, now=NOW + 100))
    assert first == again
    for one in again:
        event = {"lastTimestamp": stamp(NOW)}
        assert is_reported_by(event, EventCount(one, NOW, NOW, 1))
        assert not is_reported_by({"lastTimestamp": stamp(NOW - 60)}, EventCount(one, NOW, NOW, 1))


@pytest.mark.parametrize("event", [{}, {"lastTimestamp": None}])
def test_an_event_without_a_time_tells_nothing(event: dict[str, object]) -> None:
    one, *_rest = events(QUIET, seen(FAULT))
    assert not is_reported_by(event, EventCount(one, NOW, NOW, 1))


def test_many_pods_do_not_make_a_message_endless() -> None:
    names = [f"p{number:02}" for number in range(MOST_NAMES + 3)]
    crowd = Fault(NOW, tuple(hit(pid, name) for pid, name in enumerate(names)))
    now = replace(seen(crowd), grants=tuple(held(name, 1) for name in names))
    on_node, *on_pods = events(replace(QUIET, grants=now.grants), now)
    assert "default/p09 (1) and 3 more" in on_node.message
    assert len(on_pods) == len(names)


def test_a_static_pod_is_known_by_the_uid_in_its_cgroup() -> None:
    view = replace(QUIET, clients=(replace(client("a", 1), pod="0" * 32),))
    assert pod_names(view)["0" * 32] == pod("a")


# What an agent remembers of what happened: the same once more takes nobody's place.


def held_back(name: str, at: float | None = None) -> Event:
    return Event(pod_subject(pod(name)), Reason.START_HELD_BACK, "gpu0 is in fault", at)


def test_what_kubelet_tries_again_and_again_pushes_nothing_out_and_is_as_of_the_last_time() -> None:
    book = EventHistory(lambda: NOW)
    book.add(held_back("other", 1.0))
    for at in range(1000):
        book.add(held_back("train", float(at)))
    assert [(one.where, one.at) for one in book.all()] == [
        ("default/other", 1.0),
        ("default/train", 999.0),
    ]


def test_many_pods_and_one_with_many_events_push_out_neither_the_nodes_events_nor_each_others() -> (
    None
):
    book = EventHistory(lambda: NOW)
    book.compare(node(), node(state=State.DOWN, daemon=None))
    book.add(held_back("quiet", 1.0))
    for number in range(1000):
        book.add(Event(pod_subject(pod("loud")), Reason.EVICTED, f"for the {number}th time"))
    assert {one.where for one in book.all()} >= {"default/quiet", "default/loud"}
    for number in range(1000):
        book.add(held_back(f"pod{number}", float(number)))
    seen = book.all()
    assert seen[0].what == "MPSDaemonDown"
    assert len(seen) < 200


def test_a_domain_that_goes_down_and_comes_back_twice_did_so_twice() -> None:
    book = EventHistory(lambda: NOW)
    up, down = node(), node(state=State.DOWN, daemon=None)
    for before, now in ((up, down), (down, up), (up, down), (down, up)):
        book.compare(before, now)
    assert [one.what for one in book.all()] == ["MPSDaemonDown", "MPSReady"] * 2


def test_a_refusal_is_forgotten_once_its_process_has_joined_the_queue() -> None:
    book = EventHistory(lambda: NOW)
    asks, other = (
        WaitingRequest(name, Request(7168, 30, 1), identity(pid), True, name, None)
        for name, pid in (("asks", 7), ("other", 8))
    )
    for request in (asks, other):
        book.refused(request, "no single GPU has 7 GiB")
    book.compare(node(), replace(node(), waiting=(replace(asks, id="again", deadline_s=60.0),)))
    assert [one.where for one in book.all()] == ["other"]


def test_of_pods_that_share_a_claim_those_that_lost_processes_are_told_and_named_to_the_node() -> (
    None
):
    pods = pod("a"), pod("b"), pod("idle")
    clients = [
        client_of_claim("share", one, pid) for pid, one in enumerate((*pods[:2], pods[1]), 1)
    ]
    before = node(grants=(held_claim("share", *pods),), clients=tuple(clients))
    on_node, *on_pods = node_events(before, like(before, **DOWN), "node1")
    assert on_node.message.endswith("pods that lost GPU processes: default/a, default/b")
    assert [str(one.subject) for one in on_pods] == ["Pod default/a", "Pod default/b"]
    assert [
        "1 GPU process of" in on_pods[0].message,
        "2 GPU processes of" in on_pods[1].message,
    ] == [True, True]


def test_a_pod_that_holds_no_grant_any_more_is_still_named_for_a_while() -> None:
    before = replace(QUIET, clients=(replace(client("a", 1), pod="0" * 32),))
    after = replace(QUIET, grants=(), past_pods=past_pods(before))
    assert pod_names(after) == pod_names(before)
    others = replace(
        QUIET,
        grants=tuple(held(f"p{number}", 1) for number in range(300)),
        past_pods=past_pods(before),
    )
    assert pod("p299") in past_pods(others).values()
    assert pod("idle") not in past_pods(others).values()
