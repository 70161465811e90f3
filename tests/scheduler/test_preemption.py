"""Who has to go so that a request fits: enough, nobody in vain, and nobody as important as who
comes."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mpsd.grants.rules.placement import Placed, place
from mpsd.kubelet.rules.gpu_choice import SharedPod
from mpsd.model.grants import GpuCapacity, Request
from mpsd.scheduler.rules.capacity import NodeCapacity, node_capacity
from mpsd.scheduler.rules.preemption import victims
from mpsd.scheduler.rules.reservations import Reservation
from tests.model.worlds import POLICY
from tests.status.cluster_worlds import GIB, cluster_node, grant, held, shared_pod, uuid


def preemptor_of(request: Request, priority: int = 100) -> SharedPod:
    return replace(shared_pod("preemptor", 1, priority=priority), request=request)


SEVEN = preemptor_of(Request(7 * GIB, None, 1))


def uid(pod: str) -> str:
    return f"{pod}-uid"


def world(
    *pods: tuple[str, int, int, int], gib: tuple[int, ...] = (23, 23)
) -> tuple[NodeCapacity, list[SharedPod]]:
    """pods: name, GiB, GPU and priority of each."""
    grants = tuple(held(name, size, gpu) for name, size, gpu, _priority in pods)
    seen = [
        shared_pod(name, size, "node1", priority=priority) for name, size, _gpu, priority in pods
    ]
    return node_capacity(cluster_node(gib=gib, held=grants), "", seen, (), POLICY), seen


def without(ledger: NodeCapacity, uids: Sequence[str]) -> tuple[GpuCapacity, ...]:
    """Its rooms, counted anew."""
    gone = [one for one in ledger.taken if one.pod.uid in uids]
    clients = ledger.policy.requests.clients_per_grant
    return tuple(
        replace(
            room,
            memory_mib=room.memory_mib
            + sum(one.memory_mib for one in gone if room.gpu.uuid in one.gpus),
            thread_percent=room.thread_percent
            + sum(one.percent for one in gone if room.gpu.uuid in one.gpus),
            clients=room.clients + sum(clients for one in gone if room.gpu.uuid in one.gpus),
            holders=(
                None
                if room.holders is None
                else room.holders - sum(1 for one in gone if room.gpu.uuid in one.gpus)
            ),
        )
        for room in ledger.rooms
    )


def fits(request: Request, ledger: NodeCapacity, uids: Sequence[str]) -> bool:
    return isinstance(place(request, without(ledger, uids), ledger.policy), Placed)


def test_the_gpu_that_costs_least_is_freed_and_not_the_first() -> None:
    ledger, pods = world(("a", 16, 0, 100), ("b", 2, 0, 1), ("c", 2, 0, 1), ("d", 20, 1, 5))
    assert victims(SEVEN, ledger, pods, ()) == (uid("d"),), "one, and not two"
    ledger, pods = world(("a", 20, 0, 9), ("b", 20, 1, 3))
    assert victims(SEVEN, ledger, pods, ()) == (uid("b"),), "the less important"


def test_a_pod_that_ends_gives_its_clients_back() -> None:
    ledger, pods = world(*((f"p{n}", 1, 0, 5) for n in range(6)), gib=(23,))
    assert len(victims(SEVEN, ledger, pods, ())) == 1
    going = [replace(pods[0], terminating=True), *pods[1:]]
    assert victims(SEVEN, ledger, going, ()) == ()


def test_whoever_was_proposed_stays_proposed_and_nobody_is_added_where_that_is_enough() -> None:
    ledger, pods = world(("a", 19, 0, 5), ("b", 20, 1, 5))
    assert victims(SEVEN, ledger, pods, (uid("b"), "for-its-cpu")) == (uid("b"), "for-its-cpu")
    assert victims(SEVEN, ledger, pods, ("for-its-cpu",)) == ("for-its-cpu", uid("a"))


def test_equals_and_pods_that_go_already_or_that_nobody_knows_are_left_alone() -> None:
    ledger, pods = world(("a", 20, 0, 100), gib=(23,))
    assert victims(SEVEN, ledger, pods, ()) == ()
    ledger, pods = world(("a", 20, 0, 5), gib=(23,))
    assert victims(SEVEN, ledger, [replace(pods[0], terminating=True)], ()) == ()
    assert victims(SEVEN, ledger, (), ()) == ()
    assert victims(SEVEN, ledger, pods, ()) == (uid("a"),)


def test_nobody_is_stopped_while_others_give_back_enough() -> None:
    """A pod's end and its devices' return are told one after the other, and kube-scheduler asks in
    between."""
    ledger, pods = world(("a", 20, 0, 5), ("b", 20, 1, 5))
    assert len(victims(SEVEN, ledger, pods, ())) == 1
    for left in (
        pods[1:],
        [replace(pods[0], terminating=True), pods[1]],
        [replace(pods[0], finished=True), pods[1]],
    ):
        assert victims(SEVEN, ledger, left, ()) == ()
        assert victims(SEVEN, ledger, left, ("for-its-cpu",)) == ("for-its-cpu",)
    ledger, pods = world(("a", 3, 0, 5), ("b", 20, 0, 5), ("c", 20, 1, 100))
    assert victims(SEVEN, ledger, pods[1:], ()) == (uid("b"),), "3 GiB are not enough"


def test_a_promise_to_a_pod_that_is_just_being_bound_gives_no_room() -> None:
    pods = [shared_pod("b", 20, "node1", priority=5)]
    reserved = (Reservation(shared_pod("a", 20).name, (uuid("node1", 0),), 20 * GIB, 0),)
    node = cluster_node(gib=(23, 23), held=(held("b", 20, 1),))
    assert victims(SEVEN, node_capacity(node, "", pods, reserved, POLICY), pods, ()) == (uid("b"),)


def test_a_gpu_that_is_closed_is_not_made_free() -> None:
    node = cluster_node(gib=(23, 23), held=(held("a", 22, 0), held("b", 22, 1)), cordoned=(0,))
    pods = [shared_pod("a", 22, "node1", priority=1), shared_pod("b", 22, "node1", priority=2)]
    assert victims(SEVEN, node_capacity(node, "", pods, (), POLICY), pods, ()) == (uid("b"),)


def test_several_gpus_of_one_domain_are_made_free_together() -> None:
    grants = (
        held("a", 20, 0),
        held("b", 20, 1),
        grant("c", GIB, *_both()),
    )
    node = cluster_node(gib=(23, 23), held=grants, together=True)
    pods = [shared_pod(name, 1, "node1", priority=1) for name in "abc"]
    two = preemptor_of(Request(7 * GIB, None, 2))
    assert set(victims(two, node_capacity(node, "", pods, (), POLICY), pods, ())) == {
        uid("a"),
        uid("b"),
    }
    apart = cluster_node(gib=(23, 23), held=grants)
    assert victims(two, node_capacity(apart, "", pods, (), POLICY), pods, ()) == ()


def test_nobody_goes_whom_a_later_choice_makes_needless() -> None:
    """a is the cheapest for gpu0; then c must go for gpu1, and that frees gpu0 too."""
    of_both = grant("c", 14 * GIB, *_both())
    grants = (held("a", 4, 0), of_both, held("d", 5, 1))
    node = cluster_node(gib=(23, 23), held=grants, together=True)
    priorities = {"a": 1, "c": 2, "d": 100}
    pods = [shared_pod(name, 1, "node1", priority=each) for name, each in priorities.items()]
    two = preemptor_of(Request(7 * GIB, None, 2))
    assert victims(two, node_capacity(node, "", pods, (), POLICY), pods, ()) == (uid("c"),)


def test_gpus_that_may_be_joined_are_emptied_for_a_request_of_several() -> None:
    grants = (held("a", 1, 0), held("b", 1, 1))
    node = cluster_node(gib=(23, 23), held=grants, on_demand=True)
    pods = [shared_pod(name, 1, "node1", priority=1) for name in "ab"]
    two = preemptor_of(Request(7 * GIB, None, 2))
    ledger = node_capacity(node, "", pods, (), POLICY)
    assert set(victims(two, ledger, pods, ())) == {uid("a"), uid("b")}
    one_stays = [pods[0], replace(pods[1], priority=100)]
    assert victims(two, node_capacity(node, "", one_stays, (), POLICY), one_stays, ()) == ()


def _both() -> tuple[str, str]:
    return uuid("node1", 0), uuid("node1", 1)


@st.composite
def crowds(draw: st.DrawFn) -> tuple[NodeCapacity, list[SharedPod], SharedPod, tuple[str, ...]]:
    """A node with up to seven pods, some of several GPUs, some proposed, and one that wants in."""
    grants, pods = [], []
    for n in range(draw(st.integers(0, 7))):
        gpus = tuple(
            uuid("node1", gpu)
            for gpu in sorted(draw(st.sets(st.integers(0, 2), min_size=1, max_size=2)))
        )
        mib, percent = draw(st.integers(1, 12)) * GIB, draw(st.sampled_from((0, 0, 20, 50)))
        grants.append(grant(f"p{n}", mib, *gpus, percent=percent))
        state: dict[str, Any] = {
            "terminating": draw(st.booleans()) and draw(st.booleans()),
            "priority": draw(st.integers(0, 3)),
        }
        pods.append(shared_pod(f"p{n}", 1, "node1", **state))
    kinds = {
        "together": draw(st.booleans()),
        "on_demand": draw(st.booleans()),
    }
    node = cluster_node(gib=(12, 16, 23), held=tuple(grants), **kinds)
    request = Request(
        draw(st.integers(0, 20)) * GIB,
        draw(st.sampled_from((None, 30, 100))),
        draw(st.integers(1, 2)),
    )
    proposed = draw(
        st.lists(
            st.sampled_from([one.name.uid for one in pods] + ["other"]), unique=True, max_size=2
        )
    )
    ledger = node_capacity(node, draw(st.sampled_from(("", "spread"))), pods, (), POLICY)
    return ledger, pods, preemptor_of(request, draw(st.integers(0, 4))), tuple(proposed)


@settings(max_examples=60)
@given(crowds())
def test_the_request_fits_then_and_everybody_added_was_needed_and_less_important(
    crowd: tuple[NodeCapacity, list[SharedPod], SharedPod, tuple[str, ...]],
) -> None:
    ledger, pods, preemptor, proposed = crowd
    found = victims(preemptor, ledger, pods, proposed)
    if not found:
        return
    added = found[len(proposed) :]
    assert found[: len(proposed)] == proposed
    assert len(set(found)) == len(found)
    going = [pod.name.uid for pod in pods if pod.terminating]
    then = {*found, *going}
    assert fits(preemptor.request, ledger, [*then])
    assert not any(fits(preemptor.request, ledger, [*(then - {each})]) for each in added)
    by_uid = {pod.name.uid: pod for pod in pods}
    assert all(
        by_uid[one].priority < preemptor.priority and not by_uid[one].terminating for one in added
    )


@settings(max_examples=60)
@given(crowds())
def test_no_other_choice_for_one_gpu_would_have_been_better_and_none_was_missed(
    crowd: tuple[NodeCapacity, list[SharedPod], SharedPod, tuple[str, ...]],
) -> None:
    ledger, pods, preemptor, proposed = crowd
    found = victims(preemptor, ledger, pods, proposed)
    may_go = [
        pod
        for pod in pods
        if pod.priority < preemptor.priority
        and not pod.terminating
        and pod.name.uid not in proposed
    ]
    going = {*proposed, *(pod.name.uid for pod in pods if pod.terminating)}
    choices = (
        (size, max((pod.priority for pod in choice), default=-1))
        for size in range(len(may_go) + 1)
        for choice in combinations(may_go, size)
        if fits(preemptor.request, ledger, [*going, *(pod.name.uid for pod in choice)])
    )
    best = next(choices, None)
    if best is None:
        assert found == ()
        return
    assert len(found) >= len(proposed)
    if preemptor.request.gpus == 1 and found:
        size = len(found) - len(proposed)
        by_uid = {pod.name.uid: pod.priority for pod in pods}
        highest = max((by_uid[one] for one in found[len(proposed) :]), default=-1)
        assert (size, highest) == min([best, *choices])
    assert bool(found) == bool(best[0] or proposed)
