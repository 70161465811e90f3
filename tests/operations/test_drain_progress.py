"""Whether GPUs are empty, who may be evicted, and what withdraws a drain."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from mpsd.model.cluster_status import ClusterNode
from mpsd.model.domain import State
from mpsd.model.mpsnode import read_mpsnode
from mpsd.operations.lifecycle.rules.emptying import (
    are_empty,
    eviction_of,
    offers_room,
    states,
    what_is_left,
    what_stays,
)
from mpsd.status.rules.cordon import cordon_change
from tests.mpsnodes import NOW, damaged, mpsnode


def node(name: str = "gpu-a2", state: str = "", **gpu: object) -> ClusterNode:
    """state: of every domain. gpu: fields of every GPU."""
    thing = mpsnode(name)
    for domain in thing["status"]["domains"] if state else ():
        domain["state"] = state
    for one in thing["status"]["gpus"]:
        one |= gpu
    return read_mpsnode(thing, NOW)


def every(of: ClusterNode) -> list[str]:
    return [gpu.uuid for gpu in of.gpus]


def test_drained_is_empty_and_nothing_that_runs_a_daemon_is_otherwise() -> None:
    assert are_empty(node(state="drained"), every(node()))
    for state in set(State) - {State.DRAINED}:
        assert not are_empty(node(state=state, clients=1), every(node())), state


@pytest.mark.parametrize("state", ["refused", "down"])
def test_without_a_daemon_it_is_counted_and_what_is_not_known_is_not_empty(state: str) -> None:
    idle = changed(node(state=state, clients=0), pods=())
    assert are_empty(idle, every(idle))
    assert not are_empty(changed(idle, pods=None), every(idle))
    assert not are_empty(node(state=state, clients=0), every(idle)), "pods hold grants there"
    assert not are_empty(changed(node(state=state, clients=None), pods=()), every(idle))


def test_a_node_that_has_told_nothing_is_not_said_to_have_no_gpu() -> None:
    silent = changed(node(), gpus=(), reported_at=None)
    assert (
        states(silent, [])
        == "it has reported no GPU yet"
        == what_is_left(changed(silent, pods=()), [])
    )
    assert states(changed(silent, reported_at=NOW), []) == "no GPU"


def test_the_way_to_drained_is_reported_with_who_is_left() -> None:
    one = node(state="draining")
    assert (
        what_is_left(one, [one.gpus[0].uuid])
        == "gpu0 draining (clients: 1); left: default/train-1 (11 GiB of gpu0)"
    )


def test_nothing_that_a_silent_node_told_is_believed() -> None:
    drained = node("gpu-b1", state="drained", clients=0)
    assert not are_empty(drained, every(drained))


@given(damaged())
def test_whatever_a_node_tells_somebody_who_holds_a_gpu_is_shown(thing: Any) -> None:
    read = read_mpsnode(thing, NOW)
    gpus = every(read)
    shown = what_is_left(read, gpus)
    if any(set(pod.gpus).intersection(gpus) for pod in read.pods or ()):
        assert "; left: " in shown
    if read.pods is None:
        assert "does not report its pods" in shown


@given(
    st.sets(st.sampled_from([0, 1, 2, 3])),
    st.sets(st.sampled_from([0, 1, 2, 3]), min_size=1),
    st.booleans(),
)
def test_the_words_that_withdraw_a_drain_withdraw_that_and_nothing_else(
    before: set[int], named: set[int], whole: bool
) -> None:
    thing = mpsnode("gpu-a2")
    uuids = [gpu["uuid"] for gpu in thing["status"]["gpus"]]
    thing["spec"] = {"cordoned": [uuids[at] for at in before]}
    first = read_mpsnode(thing, NOW)
    change = cordon_change(first, [] if whole else [f"gpu{at}" for at in named], cordon=True)
    said = what_stays(first, change, "")
    thing["spec"] = {"cordoned": list(change.cordoned)}
    if "kubectl mps undrain gpu-a2" in said:
        gpus = said.partition("undrain gpu-a2")[2].replace("--gpu", "").split()
        thing["spec"] = {
            "cordoned": list(cordon_change(read_mpsnode(thing, NOW), gpus, cordon=False).cordoned)
        }
    assert sorted(thing["spec"]["cordoned"]) == sorted(uuids[at] for at in before) or (
        whole and len(before) == 4
    )


# -- eviction

HOLDER = next(pod for pod in node().pods or () if pod.name == "train-1")
JOB = [{"kind": "Job", "name": "train", "controller": True}]


@pytest.mark.parametrize(
    ("metadata", "goes", "why"),
    [
        ({"ownerReferences": JOB}, True, "evicted default/train-1"),
        ({}, True, "no controller recreates it"),
        (
            {"ownerReferences": [{"kind": "DaemonSet", "name": "dcgm", "controller": True}]},
            False,
            "the DaemonSet dcgm",
        ),
        (
            {"annotations": {"kubernetes.io/config.mirror": "x"}, "ownerReferences": JOB},
            False,
            "static pod",
        ),
        ({"deletionTimestamp": "2026-11-21T08:30:00Z"}, False, "already terminating"),
        ({"uid": "another"}, False, "is gone from the API"),
        (None, False, "is gone from the API"),
    ],
)
def test_a_pod_is_evicted_that_holds_the_grant_and_would_not_come_back(
    metadata: Any, goes: bool, why: str
) -> None:
    pod = None if metadata is None else {"metadata": {"uid": HOLDER.uid, **metadata}}
    evicted, said = eviction_of(pod, HOLDER)
    assert evicted is goes
    assert why in said
    assert eviction_of(pod, changed(HOLDER, uid=""))[0] is False


def test_room_is_offered_until_a_domain_drains() -> None:
    ready, draining = node(state="ready"), node(state="draining")
    assert offers_room(ready, every(ready))
    assert not offers_room(draining, every(draining))
    first, *rest = ready.gpus
    in_part = changed(ready, gpus=(first, *draining.gpus[1:]))
    assert offers_room(in_part, every(in_part)), "one GPU of several is enough"
    assert not offers_room(in_part, [one.uuid for one in rest])
    assert not offers_room(node(), [every(node())[0]])
