"""Which nodes pass, and what is said of those that do not."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsd.model.fields import MOST_FIELDS
from mpsd.model.grants import Request
from mpsd.scheduler.rules.capacity import NodeCapacity, can_ever, node_capacity
from mpsd.scheduler.rules.filter import (
    UNKNOWN_NODE,
    UnreadablePod,
    filtered,
    read_asking,
    scores,
    why_not,
)
from mpsd.scheduler.rules.gpu_table import BEST, GpuTable, Lack
from tests.docs.pages import page
from tests.model.worlds import POLICY
from tests.status.cluster_worlds import GIB, cluster_node, held, ledger, requests, reserved

SEVEN = Request(7 * GIB, None, 1)


def table(each: Iterable[NodeCapacity]) -> GpuTable:
    made = GpuTable()
    for one in each:
        made.put(one)
    return made


def node(name: str, *taken: int, **more: Any) -> NodeCapacity:
    """With two GPUs of 23 GiB, of which so much is taken."""
    grants = tuple(held(f"p{n}", gib, n, name) for n, gib in enumerate(taken) if gib)
    return node_capacity(cluster_node(name, **({"held": grants} | more)), "", (), (), POLICY)


def test_few_nodes_each_say_what_their_own_gpus_lack() -> None:
    small = node("small", gib=(6, 6))
    found = filtered(
        SEVEN,
        ("full", "empty", "small", "none"),
        table([node("full", 20, 19), node("empty"), small]),
        {},
    )
    assert found.passing == ("empty",)
    assert found.failed == {
        "full": why_not(SEVEN, node("full", 20, 19)),
        "small": why_not(SEVEN, small),
        "none": UNKNOWN_NODE,
    }
    assert all(
        free in found.failed["full"] for free in ("gpu0 has 3 of the needed 7 GiB", "gpu1 4")
    )
    assert found.never == {name: found.failed[name] for name in ("small", "none")}


def test_a_group_that_fits_the_sum_of_a_node_and_not_its_gpus_waits_in_part() -> None:
    """The example of docs/queues.md: two pods of 5 GiB on 7 and 3 free."""
    five = Request(5 * GIB, None, 1)
    assert filtered(five, ("node",), table([node("node", 16, 20)]), {}).passing == ("node",)
    then = filtered(five, ("node",), table([node("node", 21, 20)]), {})
    (fence,) = [
        one.text for one in page("docs/queues.md").fences if "nodes are available" in one.text
    ]
    assert fence == f"0/1 nodes are available: 1 {then.failed['node']}.\n"


MANY = [f"node{n}" for n in range(20)]


ALIKE: list[tuple[Request, dict[str, Any], Lack]] = [
    (SEVEN, {"taken": (20, 19)}, Lack.MEMORY),
    (SEVEN, {"gib": (6, 6)}, Lack.SIZE),
    (SEVEN, {"cordoned": (0,), "states": ("ready", "down")}, Lack.SERVING),
    (SEVEN, {"held": None}, Lack.SERVING),
    (Request(7 * GIB, 30, 1), {"percent": 80}, Lack.THREADS),
    (Request(0, 30, 1), {"percent": 80}, Lack.THREADS),
    (Request(7 * GIB, None, 2), {"taken": (20, 0)}, Lack.MEMORY),
    (Request(7 * GIB, None, 3), {}, Lack.SIZE),
    (Request(7 * GIB, None, 2), {}, Lack.TOGETHER),
]


def alike(one: dict[str, Any], names: list[str]) -> GpuTable:
    """Nodes that are all like this one."""
    more = dict(one)
    taken, percent = more.pop("taken", ()), more.pop("percent", 0)
    grants = [tuple(held(f"p{n}", 1, n, name, percent) for n in range(2)) for name in names]
    return table(
        node(name, *taken, **(more | ({"held": each} if percent else {})))
        for name, each in zip(names, grants, strict=True)
    )


@pytest.mark.parametrize(("request_", "one", "lack"), ALIKE)
def test_many_nodes_say_alike_what_can_be_counted(
    request_: Request, one: dict[str, Any], lack: Lack
) -> None:
    nodes = alike(one, MANY)
    found = filtered(request_, tuple(MANY), nodes, {})
    assert set(nodes.lacks(request_, nodes.slots(MANY)).tolist()) == {lack}
    assert (list(found.failed), len(set(found.failed.values()))) == (MANY, 1)
    assert found.never == (found.failed if lack is Lack.SIZE else {})


def crowded(names: list[str]) -> GpuTable:
    """Nodes whose GPUs have all their clients."""
    grants = {name: tuple(held(f"c{n}", 1, n % 2, name) for n in range(12)) for name in names}
    return table(node(name, held=grants[name]) for name in names)


def test_a_gpu_whose_clients_are_all_taken_says_so() -> None:
    nodes = crowded(MANY)
    assert set(nodes.lacks(SEVEN, nodes.slots(MANY)).tolist()) == {Lack.CLIENTS}
    assert len(set(filtered(SEVEN, tuple(MANY), nodes, {}).failed.values())) == 1


def test_a_node_that_promised_the_last_room_to_this_very_pod_passes_and_is_the_best() -> None:
    gone = node_capacity(cluster_node("node1", (7,)), "", (), (reserved("a", 7),), POLICY)
    free = node_capacity(cluster_node("node1", (7,)), "", (), (), POLICY)
    made = table([gone, node("node2"), node("node3", 22, 22)])
    nodes = ("node3", "node1", "node2")
    assert filtered(SEVEN, nodes, made, {}).passing == ("node2",)
    found = filtered(SEVEN, nodes, made, {"node1": free})
    assert (found.passing, [*found.failed]) == (("node1", "node2"), ["node3"])
    assert scores(SEVEN, ("node1", "node2"), made, {"node1": free}) == [BEST, BEST]


@settings(max_examples=40)
@given(st.data(), requests, st.booleans())
def test_each_node_passes_or_fails_by_its_own_ledger(
    data: st.DataObject, request: Request, many: bool
) -> None:
    each = {
        name: data.draw(ledger(name).filter(lambda one: one.rooms))
        for name in ("node0", "node1", "node2")
    }
    nodes = (*each, *(MANY[3:] if many else ()))
    found = filtered(request, nodes, table(each.values()), {})
    assert {*found.passing} | found.failed.keys() == set(nodes)
    assert not {*found.passing} & found.failed.keys()
    assert all(found.failed.values())
    for name, one in each.items():
        assert (name in found.passing) == (not why_not(request, one))
        assert (name in found.never) == (name in found.failed and not can_ever(request, one))
    assert found.never.items() <= found.failed.items()


def a_pod(limits: object, **annotations: str) -> dict[str, Any]:
    metadata = {
        "namespace": "default",
        "name": "a",
        "uid": "u",
        "creationTimestamp": "2026-11-21T08:00:00Z",
    }
    containers = [{"name": "main", "image": "i", "resources": {"limits": limits}}]
    return {"metadata": metadata | {"annotations": annotations}, "spec": {"containers": containers}}


def test_a_pod_that_asks_for_no_gpu_is_told_from_one_whose_request_cannot_be_read() -> None:
    names = POLICY.resources
    assert read_asking(a_pod({"cpu": "1"}), POLICY) is None
    assert read_asking(a_pod({names.memory: "0"}), POLICY) is None
    asking = read_asking(a_pod({names.memory: "7"}), POLICY)
    assert asking
    assert asking.request == SEVEN
    beside = a_pod({names.memory: "1"})
    beside["spec"]["containers"].append(
        {"name": "b", "resources": {"limits": {names.memory: "7Gi"}}}
    )
    for pod, why in (
        (beside, r'\[b\].* is "7Gi": has a unit, and the unit is already GiB; write 7'),
        (a_pod({names.memory: "7.5"}), "is not a whole number; write whole GiB, such as 8"),
        (a_pod({names.percent: "x"}), "is not a Kubernetes quantity"),
        (a_pod({names.memory: "7"}) | {"metadata": {}}, "no namespace, name, uid"),
    ):
        with pytest.raises(UnreadablePod, match=why):
            read_asking(pod, POLICY)


def test_the_shares_of_a_pods_containers_are_added() -> None:
    names = POLICY.resources
    thing = a_pod({names.memory: "1", names.percent: "7"})
    beside = thing["spec"]["containers"]
    beside.append({"name": "b", "resources": {"limits": {names.memory: "2"}}})
    asking = read_asking(thing, POLICY)
    assert asking
    assert asking.request == Request(3 * GIB, 7, 1)
    beside[1]["resources"]["limits"][names.percent] = "9"
    asking = read_asking(thing, POLICY)
    assert asking
    assert asking.request == Request(3 * GIB, 16, 1)


def test_a_pod_hides_nothing_of_what_it_asks_for_behind_thousands_of_fields() -> None:
    hidden = a_pod({POLICY.resources.memory: "7"}, **{f"a{n}": "" for n in range(MOST_FIELDS)})
    asking = read_asking(hidden, POLICY)
    assert asking
    assert asking.request == SEVEN


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=50)
@given(ANY, ANY, ANY)
def test_no_pod_whatever_is_a_fault_of_ours(
    spec: object, container: object, limits: object
) -> None:
    for pod in (
        {"spec": spec},
        {"spec": {"containers": [container], "initContainers": container}},
        {"spec": {"containers": [{"resources": {"limits": limits}}, {"resources": container}]}},
        a_pod({POLICY.resources.memory: limits}),
    ):
        try:
            read_asking(pod, POLICY)
        except UnreadablePod:
            continue
