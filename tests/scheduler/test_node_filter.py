"""Which nodes pass, and what is said of those that do not."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsd.model.fields import MOST_FIELDS
from mpsd.model.grants import Request
from mpsd.scheduler.rules.capacity import NodeCapacity, can_ever, node_capacity
from mpsd.scheduler.rules.filter import UNKNOWN_NODE, UnreadablePod, filtered, read_asking, scores, why_not
from mpsd.scheduler.rules.gpu_table import BEST, GpuTable
from tests.model.worlds import POLICY
from tests.status.cluster_worlds import GIB, TERMS, cluster_node, held, ledger, promised, requests

SEVEN = Request(7 * GIB, None, 1)


def table(each: Iterable[NodeCapacity]) -> GpuTable:
    made = GpuTable()
    for one in each:
        made.put(one)
    return made


def node(name: str, *taken: int, **more: Any) -> NodeCapacity:
    """With two GPUs of 23 GiB, of which so much is taken."""
    grants = tuple(held(f"p{n}", gib, n, name) for n, gib in enumerate(taken) if gib)
    return node_capacity(cluster_node(name, **({"held": grants} | more)), "", (), (), TERMS)


def test_few_nodes_each_say_what_their_own_gpus_lack() -> None:
    small = node("small", gib=(6, 6))
    found = filtered(SEVEN, ("full", "empty", "small", "none"), table([node("full", 20, 19), node("empty"), small]), {})
    assert found.passing == ("empty",)
    assert found.failed == {
        "full": "gpu0 has 3 of 7 GiB free, gpu1 4",
        "small": "gpu0 has 6 of 7 GiB free, gpu1 6",
        "none": UNKNOWN_NODE,
    }
    assert found.never == {name: found.failed[name] for name in ("small", "none")}


MANY = [f"node{n}" for n in range(20)]


@pytest.mark.parametrize(
    ("request_", "one", "words", "ever"),
    [
        (SEVEN, {"taken": (20, 19)}, "no GPU has 7 GiB free", True),
        (SEVEN, {"gib": (6, 6)}, "no GPU is as large as 7 GiB", False),
        (SEVEN, {"cordoned": (0,), "states": ("ready", "down")}, "every GPU is cordoned or not ready", True),
        (SEVEN, {"held": None}, "kubelet has not listed who holds which device", True),
        (Request(7 * GIB, 30, 1), {"percent": 80}, "no GPU has 7 GiB and 30 % of its threads free", True),
        (Request(0, 30, 1), {"percent": 80}, "no GPU has 30 % of its threads free", True),
        (Request(7 * GIB, None, 2), {"taken": (20, 0)}, "fewer than 2 GPUs have 7 GiB free", True),
        (Request(7 * GIB, None, 3), {}, "fewer than 3 GPUs are as large as 7 GiB", False),
        (Request(7 * GIB, None, 2), {}, "no domain has 2 GPUs with room", True),
    ],
)
def test_many_nodes_say_alike_what_can_be_counted(
    request_: Request, one: dict[str, Any], words: str, ever: bool
) -> None:
    more = dict(one)
    taken, percent = more.pop("taken", ()), more.pop("percent", 0)
    if percent:
        more["held"] = (held("a", 1, 0, percent=percent), held("b", 1, 1, percent=percent))
    if more.get("held"):
        grants = {name: tuple(held(h.pod, 1, n, name, percent) for n, h in enumerate(more["held"])) for name in MANY}
        made = [node(name, **{**more, "held": grants[name]}) for name in MANY]
    else:
        made = [node(name, *taken, **more) for name in MANY]
    found = filtered(request_, tuple(MANY), table(made), {})
    assert found.failed == dict.fromkeys(MANY, words)
    assert found.never == ({} if ever else found.failed)


def test_a_gpu_whose_clients_are_all_taken_says_so() -> None:
    grants = {name: tuple(held(f"c{n}", 1, n % 2, name) for n in range(12)) for name in MANY}
    found = filtered(SEVEN, tuple(MANY), table(node(name, held=grants[name]) for name in MANY), {})
    assert set(found.failed.values()) == {"no GPU has 7 GiB and enough clients free"}


def test_many_unknown_nodes_are_told_what_one_is_told() -> None:
    found = filtered(SEVEN, tuple(MANY), GpuTable(), {})
    assert found.failed == found.never == dict.fromkeys(MANY, UNKNOWN_NODE)


def test_a_node_that_promised_the_last_room_to_this_very_pod_passes_and_is_the_best() -> None:
    gone = node_capacity(cluster_node("node1", (7,)), "", (), (promised("a", 7),), TERMS)
    free = node_capacity(cluster_node("node1", (7,)), "", (), (), TERMS)
    made = table([gone, node("node2"), node("node3", 22, 22)])
    nodes = ("node3", "node1", "node2")
    assert filtered(SEVEN, nodes, made, {}).passing == ("node2",)
    found = filtered(SEVEN, nodes, made, {"node1": free})
    assert (found.passing, [*found.failed]) == (("node1", "node2"), ["node3"])
    assert scores(SEVEN, ("node1", "node2"), made, {"node1": free}) == [BEST, BEST]


@settings(max_examples=40)
@given(st.data(), requests, st.booleans())
def test_each_node_passes_or_fails_by_its_own_books(data: st.DataObject, request: Request, many: bool) -> None:
    each = {name: data.draw(ledger(name).filter(lambda one: one.rooms)) for name in ("node0", "node1", "node2")}
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
    metadata = {"namespace": "default", "name": "a", "uid": "u", "creationTimestamp": "2026-11-21T08:00:00Z"}
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
    beside["spec"]["containers"].append({"name": "b", "resources": {"limits": {names.memory: "7Gi"}}})
    for pod, why in (
        (beside, r'\[b\].* is "7Gi": has a unit, and the unit is already GiB; write 7'),
        (a_pod({names.memory: "7.5"}), "is not a whole number; write whole GiB, such as 8"),
        (a_pod({names.percent: "x"}), "not a number"),
        (a_pod({names.memory: "7"}) | {"metadata": {}}, "no namespace, name, uid"),
    ):
        with pytest.raises(UnreadablePod, match=why):
            read_asking(pod, POLICY)


def test_a_pod_hides_nothing_of_what_it_asks_for_behind_thousands_of_fields() -> None:
    hidden = a_pod({POLICY.resources.memory: "7"}, **{f"a{n}": "" for n in range(MOST_FIELDS)})
    asking = read_asking(hidden, POLICY)
    assert asking
    assert asking.request == SEVEN


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=50)
@given(ANY, ANY, ANY)
def test_no_pod_whatever_is_a_fault_of_ours(spec: object, container: object, limits: object) -> None:
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
