"""The columns say of every node what its ledger says, whatever came and went before, and whatever
was asked before."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from mpsd.grants.rules.placement import Placed, place
from mpsd.model.grants import GpuCapacity, GpuName, Request
from mpsd.model.policy import Placement
from mpsd.scheduler.rules.capacity import NodeCapacity, can_ever, node_capacity
from mpsd.scheduler.rules.gpu_table import BEST, GpuTable, Lack, RecentValues
from tests.model.worlds import POLICY
from tests.status.cluster_worlds import GIB, cluster_node, ledger, requests

NODES = tuple(f"node{n}" for n in range(5))
OTHERS = tuple(  # so many that the few which change are looked at alone
    node_capacity(cluster_node(f"other{n}", (23, 23, 9), together=True), "", (), (), POLICY)
    for n in range(32)
)
World = Mapping[str, NodeCapacity | None]

steps = st.lists(
    st.sampled_from(NODES).flatmap(lambda node: st.tuples(st.just(node), st.none() | ledger(node)))
)
# Few, so that most of what is asked was asked before.
questions = st.lists(st.tuples(requests, st.permutations(NODES).map(tuple)), min_size=1, max_size=3)


@given(steps=steps, asked=questions)
def test_after_every_change_the_table_says_what_placement_says_of_the_ledger(
    steps: list[tuple[str, NodeCapacity | None]], asked: list[tuple[Request, tuple[str, ...]]]
) -> None:
    table, world = GpuTable(), dict[str, NodeCapacity | None](dict.fromkeys(NODES))
    for other in OTHERS:
        table.put(other)
    for node, put in [(NODES[0], None), *steps]:
        world[node] = put
        if put is None:
            table.drop(node)
        else:
            table.put(put)
        for request, nodes in asked:
            slots = table.slots(nodes)
            fits = [_fits(request, world[node]) for node in nodes]
            passing = tuple(node for node, fit in zip(nodes, fits, strict=True) if fit)
            scores = _scores(request, world)
            assert table.fits(request, slots).tolist() == fits
            assert table.passing(request, nodes) == passing
            assert table.scores(request, slots).tolist() == [scores.get(node, 0) for node in nodes]
            assert table.scores(request, table.slots(passing)).tolist() == [
                scores[node] for node in passing
            ]
            assert table.lacks(request, slots).tolist() == [
                _lack(request, world[node]) for node in nodes
            ]


def _fits(request: Request, ledger: NodeCapacity | None) -> bool:
    return ledger is not None and isinstance(place(request, ledger.rooms, ledger.policy), Placed)


def _scores(request: Request, world: World) -> dict[str, int]:
    """Of the nodes that have room: ranked by what is free of the GPU that placement takes, a
    placement for itself."""
    scores: dict[str, int] = {}
    for placement in Placement:
        free: dict[str, int] = {}
        for node, one in world.items():
            found = (
                one and one.policy.placement is placement and place(request, one.rooms, one.policy)
            )
            if one and isinstance(found, Placed):
                free[node] = next(
                    room.memory_mib for room in one.rooms if room.gpu.uuid == found.gpus[0]
                )
        ranks = sorted(set(free.values()), reverse=placement is Placement.SPREAD)
        scores |= {node: max(BEST - ranks.index(mib), 0) for node, mib in free.items()}
    return scores


def _lack(request: Request, ledger: NodeCapacity | None) -> Lack:
    if ledger is None:
        return Lack.UNKNOWN
    if _fits(request, ledger):
        return Lack.NOTHING
    if not can_ever(request, ledger):
        return Lack.SIZE
    if not ledger.rooms:
        return Lack.SERVING
    left = [room for room in ledger.rooms if room.memory_mib >= request.memory_mib]
    if len(left) < request.gpus:
        return Lack.MEMORY
    left = [room for room in left if room.thread_percent >= (request.thread_percent or 0)]
    if len(left) < request.gpus:
        return Lack.THREADS
    left = [room for room in left if room.holds(request, ledger.policy)]
    return Lack.CLIENTS if len(left) < request.gpus else Lack.TOGETHER


amounts = st.one_of(
    st.sampled_from([-(2**63), -(2**31), -(2**30), -1, 0, 1, 2**30 - 1]),
    st.integers(-(2**30), 2**30 - 1),
)


@given(
    memory_mib=amounts,
    percent=amounts,
    clients=amounts,
    asked=st.integers(0, 2**63),
    asked_percent=amounts,
)
def test_amounts_that_no_gpu_has_are_compared_all_the_same(
    memory_mib: int, percent: int, clients: int, asked: int, asked_percent: int
) -> None:
    table, room = (
        GpuTable(),
        GpuCapacity(GpuName("GPU-0", 0), "gpu0", memory_mib, memory_mib, percent, clients),
    )
    policy = POLICY
    table.put(NodeCapacity("node1", policy, (room,), (), (), "", ((room.gpu, memory_mib),)))
    for memory in (asked, max(memory_mib, 0), max(memory_mib + 1, 0)):
        for request in (Request(memory, None, 1), Request(memory, max(asked_percent, 0), 1)):
            assert table.fits(request, table.slots(["node1"])).tolist() == [
                room.holds(request, policy)
            ]


def test_the_worst_of_many_kinds_of_nodes_score_nothing_and_still_fit() -> None:
    table, names = GpuTable(), [f"node{gib}" for gib in range(1, 41)]
    for gib, name in enumerate(names, 1):
        table.put(node_capacity(cluster_node(name, (gib,)), "", (), (), POLICY))
    slots = table.slots(names)
    assert (
        table.scores(Request(11 * GIB, None, 1), slots).tolist()
        == [0] * 10 + [*range(BEST, 0, -1)] + [0] * 20
    )
    assert int(table.fits(Request(11 * GIB, None, 1), slots).sum()) == 30


def test_the_nodes_that_pass_are_the_very_tuple_of_before_while_they_are_the_same() -> None:
    table, request = GpuTable(), Request(7 * GIB, None, 1)
    for name, gib in (("node1", 9), ("node2", 3), ("node3", 9)):
        table.put(node_capacity(cluster_node(name, (gib,)), "", (), (), POLICY))
    nodes = ("node1", "node2", "node3")
    before = table.passing(request, nodes)
    table.put(node_capacity(cluster_node("node3", (8,)), "", (), (), POLICY))
    assert table.passing(request, list(nodes)) is before == ("node1", "node3")
    table.put(node_capacity(cluster_node("node3", (6,)), "", (), (), POLICY))
    assert table.passing(request, nodes) == ("node1",)


# What was asked for last is kept, and found by what it was made from.


@given(st.lists(st.integers(0, 6)), st.integers(1, 4))
def test_the_last_different_keys_asked_for_are_kept_and_no_others(
    keys: list[int], most: int
) -> None:
    recent, order = RecentValues[tuple[int], int](most), list[int]()
    for key in keys:
        assert recent.get((key,)) == (key if key in order[:most] else None)
        if key not in order[:most]:
            recent.put((key,), key)
        order = [key, *(one for one in order if one != key)]
        assert list(recent.values()) == order[:most]


def test_the_very_object_is_found_before_one_that_is_equal() -> None:
    recent, first, second = RecentValues[list[int], str](), [1], [1]
    recent.put(first, "first")
    recent.put(second, "second")
    assert (recent.get(first), recent.get(second)) == ("first", "second")
    recent.clear()
    assert recent.get(first) is None
