"""The columns say of every node what its books say, whatever came and went before."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mpsd.core.gpu_table import BEST, GpuTable
from mpsd.core.grants import Request
from mpsd.core.node_books import NodeBooks, node_books
from mpsd.core.placement import Placed, place
from tests.core.cluster_worlds import GIB, TERMS, books, cluster_node, held, requests
from tests.core.cluster_worlds import uuid as gpu

NODES = tuple(f"node{n}" for n in range(5))


@given(
    steps=st.lists(st.sampled_from(NODES).flatmap(lambda node: st.tuples(st.just(node), st.none() | books(node)))),
    request=requests,
)
def test_a_node_fits_exactly_where_placement_finds_a_gpu_in_its_books(
    steps: list[tuple[str, NodeBooks | None]], request: Request
) -> None:
    table, now = GpuTable(), dict.fromkeys(NODES)
    for node, put in steps:
        now[node] = put
        if put is None:
            table.drop(node)
        else:
            table.put(put)
    expected = [one is not None and isinstance(place(request, one.rooms, one.policy), Placed) for one in now.values()]
    assert table.fits(request, table.slots(NODES)).tolist() == expected
    scores = table.scores(request, table.slots(NODES)).tolist()
    assert all(score == 0 or fits for score, fits in zip(scores, expected, strict=True))
    assert not any(expected) or max(scores) == BEST


def test_binpack_likes_the_node_best_whose_gpu_is_left_fullest() -> None:
    table = GpuTable()
    for name, gib in (("node1", 9), ("node2", 7), ("node3", 9), ("node4", 3)):
        node = cluster_node(name, (gib, 23))
        table.put(node_books(node, "", (), (), TERMS))
    slots = table.slots(["node4", "node3", "node2", "node1", "node9"])
    assert table.scores(Request(7 * GIB, None, 1), slots).tolist() == [BEST - 2, BEST - 1, BEST, BEST - 1, 0]


def test_spread_likes_the_node_best_that_has_the_emptiest_gpu() -> None:
    table = GpuTable()
    for name, taken in (("node1", 4), ("node2", 0)):
        node = cluster_node(name, (23,), held=(held("a", taken, 0, name),) if taken else ())
        table.put(node_books(node, "spread", (), (), TERMS))
    assert table.scores(Request(7 * GIB, None, 1), table.slots(["node1", "node2"])).tolist() == [BEST - 1, BEST]


def test_nodes_without_a_gpu_that_takes_pods_fit_nothing() -> None:
    table = GpuTable()
    table.put(node_books(cluster_node("node1", ()), "", (), (), TERMS))
    slots = table.slots(["node1", "elsewhere"])
    assert not np.any(table.fits(Request(GIB, None, 1), slots))
    assert gpu("node1", 0) not in {room.gpu.uuid for room in table.books("node1").rooms}  # type: ignore[union-attr]
