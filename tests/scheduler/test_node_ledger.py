"""Who takes what of a node, and what is left: a pod counts once, by whoever knows best."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from mpsd.model.grants import Request
from mpsd.model.policy import Placement
from mpsd.platform.rules.kubernetes_objects import read_kubernetes_node
from mpsd.scheduler.ledger import NodeFields
from mpsd.scheduler.rules.capacity import AssignmentSource, can_ever, has_domain, node_capacity
from mpsd.scheduler.rules.filter import why_not
from tests.model.worlds import POLICY
from tests.status.cluster_worlds import GIB, cluster_node, held, reserved, shared_pod, uuid

SEVEN = Request(7 * GIB, None, 1)


def test_a_pod_that_is_granted_bound_and_promised_counts_once_and_where_kubelet_put_it() -> None:
    pod = shared_pod("a", 7, "node1", {"mpsd.io/gpu": uuid("node1", 0)})
    ledger = node_capacity(
        cluster_node(held=(held("a", 7, 1),)), "", [pod], [reserved("a", 7, 0)], POLICY
    )
    assert [room.memory_mib // GIB for room in ledger.rooms] == [23, 16]
    assert [one.source for one in ledger.taken] == [AssignmentSource.GRANTED]


def test_a_pod_that_kubelet_is_in_the_middle_of_counts_as_it_will_be() -> None:
    node = cluster_node(held=(held("a", 3, 1), changed(held("b", 1), memory_mib=None)))
    pods = [
        shared_pod("a", 7, "node1", request=Request(7 * GIB, 30, 1)),
        shared_pod("b", 2, "node1"),
    ]
    rooms = node_capacity(node, "", pods, [], POLICY).rooms
    assert [(room.memory_mib // GIB, room.thread_percent) for room in rooms] == [
        (21, 100),
        (16, 70),
    ]


def test_a_pod_that_another_scheduler_placed_is_guessed_where_the_device_plugin_chooses() -> None:
    node = cluster_node(held=(held("b", 3, 1),))
    ledger = node_capacity(node, "", [shared_pod("a", 7, "node1")], [], POLICY)
    assert [room.memory_mib // GIB for room in ledger.rooms] == [23, 13]
    assert [room.clients for room in ledger.rooms] == [48, 32]
    assert ledger.taken[-1].source is AssignmentSource.GUESSED


def test_pods_that_kubelet_will_refuse_take_nothing_however_many_they_are() -> None:
    pods = [shared_pod(f"p{n}", 7, "n") for n in range(100)]
    ledger = node_capacity(cluster_node("n", (8,)), "", pods, [], POLICY)
    assert [room.memory_mib for room in ledger.rooms] == [GIB]
    assert [bool(one.gpus) for one in ledger.taken] == [True, *[False] * 99]


def test_a_finished_pod_holds_nothing() -> None:
    pod = shared_pod("a", 7, "node1", {"mpsd.io/gpu": uuid("node1", 0)}, finished=True)
    assert node_capacity(cluster_node(), "", [pod], [], POLICY).taken == ()


def test_what_a_card_has_beyond_whole_units_is_nobodys() -> None:
    node = cluster_node(gib=(3, 4))
    larger = changed(
        node,
        gpus=tuple(changed(row, promised_mib=(row.promised_mib or 0) + 510) for row in node.gpus),
    )
    assert [room.memory_mib for room in node_capacity(larger, "", [], [], POLICY).rooms] == [
        3 * GIB,
        4 * GIB,
    ]


def test_the_label_of_a_node_chooses_its_placement_and_nonsense_means_the_policy_s() -> None:
    placements = [
        node_capacity(cluster_node(), label, [], [], POLICY).policy.placement
        for label in ("spread", "", "?")
    ]
    assert placements == [Placement.SPREAD, Placement.BINPACK, Placement.BINPACK]


MIXED = node_capacity(
    cluster_node(gib=(3, 4, 23, 23), cordoned=(2,), states=("ready", "ready", "ready", "fault")),
    "",
    [],
    [],
    POLICY,
)
CROWDED = node_capacity(
    cluster_node(held=(held("a", 1, 0, percent=80), *(held(f"c{n}", 1, 1) for n in range(6)))),
    "",
    [],
    [],
    POLICY,
)
TWO = Request(7 * GIB, None, 2)
APART, BESIDE = (
    node_capacity(cluster_node(together=together), "", [], [], POLICY) for together in (False, True)
)
NO_DAEMON = node_capacity(cluster_node(states=("ready", None)), "", [], [], POLICY)
SILENT = node_capacity(cluster_node(held=None), "", [], [], POLICY)


def test_each_gpu_says_what_it_lacks_and_what_is_alike_is_said_once() -> None:
    assert [one.reason for one in MIXED.closed] == ["cordoned", "in fault"]
    said = why_not(SEVEN, MIXED)
    assert [said.count(label) for label in ("gpu0", "gpu1", "gpu2", "gpu3", "needed 7 GiB")] == [
        1
    ] * 5


def test_threads_and_clients_that_are_short_are_said_as_such() -> None:
    assert [(room.thread_percent, room.clients) for room in CROWDED.rooms] == [(20, 40), (100, 0)]
    assert all(
        lack in why_not(Request(GIB, 30, 1), CROWDED)
        for lack in ("20 of the needed 30 %", "0 of the needed 8")
    )


def test_several_gpus_must_be_of_one_domain() -> None:
    cordoned = node_capacity(cluster_node(cordoned=(0,)), "", [], [], POLICY)
    assert [has_domain(TWO, one) for one in (APART, cordoned, NO_DAEMON, BESIDE)] == [
        False,
        False,
        True,
        True,
    ]
    assert [bool(why_not(TWO, one)) for one in (APART, cordoned, NO_DAEMON, BESIDE)] == [
        True,
        True,
        True,
        False,
    ]


def test_a_card_that_is_too_small_will_never_do_and_a_full_one_may() -> None:
    small, full = cluster_node(gib=(6, 6)), cluster_node(held=(held("a", 20, 0), held("b", 20, 1)))
    assert [can_ever(SEVEN, node_capacity(node, "", [], [], POLICY)) for node in (small, full)] == [
        False,
        True,
    ]


def test_a_node_that_does_not_say_who_holds_what_takes_nobody() -> None:
    assert (SILENT.rooms, why_not(SEVEN, SILENT)) == ((), SILENT.shut)
    assert SILENT.shut


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5),
            st.integers(1, 12),
            st.integers(0, 1),
            st.sampled_from(("held", "said", "told")),
        ),
        max_size=8,
    )
)
def test_however_often_a_pod_is_known_of_it_is_taken_from_each_gpu_once(
    said: list[tuple[int, int, int, str]],
) -> None:
    names = {n: (gib, gpu) for n, gib, gpu, _how in said}
    how = {(n, kind) for n, _gib, _gpu, kind in said}
    granted = tuple(held(f"p{n}", *names[n]) for n in names if (n, "held") in how)
    bound = [
        shared_pod(f"p{n}", names[n][0], "node1", {"mpsd.io/gpu": uuid("node1", names[n][1])})
        for n in names
        if (n, "said") in how
    ]
    told = [reserved(f"p{n}", *names[n]) for n in names if (n, "told") in how]
    ledger = node_capacity(cluster_node(held=granted), "", bound, told, POLICY)
    for room in ledger.rooms:
        here = sum(gib for gib, gpu in names.values() if gpu == room.gpu.ordinal)
        assert room.memory_mib == (23 - here) * GIB


def test_a_node_reads_the_same_labels_from_the_fields_that_are_decoded_of_a_list() -> None:
    thing = {
        "metadata": {"name": "node1", "uid": "u", "labels": {"ack.node.gpu.schedule": "mps"}},
        "spec": {"unschedulable": True},
        "status": {"images": [{"names": ["x"]}]},
    }
    lean = msgspec.json.decode(msgspec.json.encode(thing), type=NodeFields)
    assert lean == {"metadata": {"name": "node1", "labels": {"ack.node.gpu.schedule": "mps"}}}
    seen, whole = read_kubernetes_node(lean), read_kubernetes_node(thing)
    assert (seen.name, seen.labels, seen.is_labelled) == (whole.name, whole.labels, True)
