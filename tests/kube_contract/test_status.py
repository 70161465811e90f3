"""Status subresources, conditions, and MPSNode as its definition describes it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from mpsd.platform.kube import Conflict, Kube, NotFound, PatchKind, Rejected, Resource
from mpsd.status.rules.mpsnode import labels_patch, node_labels, status_patch
from tests.kube_contract.conftest import NODES, World, define, make_node, pod
from tests.model.worlds import GPUS, POLICY

PODS, MPS_NODES = Resource("v1", "pods"), Resource("mpsd.io/v1alpha1", "mpsnodes")
_DEFINITION = Path(__file__).parents[2] / "manifests/chart/templates/crd/mpsnode.yaml"


async def test_a_status_changes_through_its_subresource_and_nothing_else_does(
    world: World, kube: Kube
) -> None:
    await kube.create(PODS, pod("a") | {"status": {"phase": "Running"}}, world.namespace)
    seen = await kube.get(PODS, "a", world.namespace)
    assert seen["status"]["phase"] == "Pending"
    patch = {"status": {"phase": "Running"}, "spec": {"activeDeadlineSeconds": 100}}
    patched = await kube.patch(PODS, "a", patch, PatchKind.MERGE, world.namespace, "status")
    assert patched["status"]["phase"] == "Running"
    assert "activeDeadlineSeconds" not in patched["spec"]
    unmoved = await kube.patch(
        PODS, "a", {"status": {"phase": "Failed"}}, PatchKind.MERGE, world.namespace
    )
    assert unmoved["status"]["phase"] == "Running"


async def test_a_pods_annotations_are_written_through_its_status_alone(
    world: World, kube: Kube
) -> None:
    """So `patch pods/status` suffices for annotations, and changes no image as `patch pods`
    does."""
    made = await kube.create(PODS, pod("a"), world.namespace)
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "d"}
    others: dict[str, Any] = {"labels": {"app": "b"}, "ownerReferences": [owner]}
    spec = {"containers": [{**made["spec"]["containers"][0], "image": "other"}]}
    patch = {
        "metadata": {
            "uid": made["metadata"]["uid"],
            "annotations": {"mpsd.io/gpu": "0"},
            **others,
        },
        "spec": spec,
    }
    await kube.patch(PODS, "a", patch, PatchKind.MERGE, world.namespace, "status")
    seen = await kube.get(PODS, "a", world.namespace)
    assert seen["metadata"]["annotations"] == {"mpsd.io/gpu": "0"}
    assert seen["metadata"]["labels"] == {"app": "b"}, "whoever has this right can also label a pod"
    assert "ownerReferences" not in seen["metadata"]
    assert seen["spec"] == made["spec"]
    assert seen["status"] == made["status"]
    other = {"metadata": {"uid": "1-2-3", "annotations": {"mpsd.io/gpu": "1"}}}
    with pytest.raises(Conflict):
        await kube.patch(PODS, "a", other, PatchKind.MERGE, world.namespace, "status")


async def test_the_status_of_a_node_has_its_labels_beside_it(world: World, kube: Kube) -> None:
    """What a right to `patch nodes/status` includes, and what it does not."""
    await make_node(kube, world)
    taint = {"key": "a", "effect": "NoSchedule"}
    patch = {"metadata": {"labels": {"app": "b"}}, "spec": {"taints": [taint]}}
    await kube.patch(NODES, world.node, patch, PatchKind.MERGE, subresource="status")
    seen = await kube.get(NODES, world.node)
    assert seen["metadata"]["labels"]["app"] == "b"
    assert seen["metadata"]["labels"]["contract"] == world.node, "others stay"
    assert taint not in seen.get("spec", {}).get("taints", [])
    wanted = node_labels(GPUS, POLICY)
    given = await kube.patch(
        NODES, world.node, labels_patch({}, wanted), PatchKind.MERGE, subresource="status"
    )
    assert given["metadata"]["labels"].items() >= wanted.items()
    fewer = labels_patch(wanted, {"mpsd.io/gpu.count": "1"})
    left = await kube.patch(NODES, world.node, fewer, PatchKind.MERGE, subresource="status")
    ours = {
        name: value
        for name, value in left["metadata"]["labels"].items()
        if name.startswith("mpsd.io/")
    }
    assert ours == {"mpsd.io/gpu.count": "1"}
    assert left["metadata"]["labels"]["app"] == "b"


async def test_a_condition_that_is_added_leaves_the_others(world: World, kube: Kube) -> None:
    await make_node(kube, world)
    ours: dict[str, Any] = {
        "type": "MPSReady",
        "status": "True",
        "reason": "AllServe",
        "message": "m",
    }
    amount = {"aliyun.com/gpu-count": "2"}
    patch = {"status": {"conditions": [ours], "capacity": amount, "allocatable": amount}}
    await kube.patch(NODES, world.node, patch, PatchKind.STRATEGIC, subresource="status")
    changed = {"status": {"conditions": [ours | {"status": "False"}]}}
    node = await kube.patch(NODES, world.node, changed, PatchKind.STRATEGIC, subresource="status")
    conditions = {one["type"]: one["status"] for one in node["status"]["conditions"]}
    assert conditions["MPSReady"] == "False"
    assert "Ready" in conditions
    assert node["status"]["capacity"].keys() >= {"cpu", "aliyun.com/gpu-count"}
    without = [{"type": "MPSReady", "$patch": "delete"}]
    gone = {"status": {"capacity": {"aliyun.com/gpu-count": None}, "conditions": without}}
    node = await kube.patch(NODES, world.node, gone, PatchKind.STRATEGIC, subresource="status")
    assert "aliyun.com/gpu-count" not in node["status"]["capacity"]
    assert [one["type"] for one in node["status"]["conditions"] if one["type"] == "MPSReady"] == []


def mps_node(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "mpsd.io/v1alpha1",
        "kind": "MPSNode",
        "metadata": {"name": name},
        "spec": spec,
    }


async def define_mps_nodes(kube: Kube) -> None:
    await define(kube, yaml.safe_load(_DEFINITION.read_text()))


async def test_a_custom_resources_status_is_no_change_and_its_spec_is(
    world: World, kube: Kube
) -> None:
    await define_mps_nodes(kube)
    await kube.create(MPS_NODES, mps_node(world.node))
    patch = {"status": {"driver": "580", "unknown": 1}, "spec": {"cordoned": ["all"]}}
    patch["metadata"] = {"annotations": {"a": "b"}}
    told = await kube.patch(MPS_NODES, world.node, patch, PatchKind.MERGE, subresource="status")
    assert (told["status"], told["spec"], told["metadata"]["generation"]) == (
        {"driver": "580"},
        {},
        1,
    )
    assert "annotations" not in told["metadata"], "unlike a pod's and a node's"
    cordon = {"spec": {"cordoned": ["all"]}, "status": {"driver": "581"}}
    cordoned = await kube.patch(MPS_NODES, world.node, cordon, PatchKind.MERGE)
    assert (cordoned["status"], cordoned["metadata"]["generation"]) == ({"driver": "580"}, 2)


async def test_a_json_patch_replaces_a_whole_status_and_leaves_the_rest(
    world: World, kube: Kube
) -> None:
    await define_mps_nodes(kube)
    await kube.create(MPS_NODES, mps_node(world.node, cordoned=["all"]))
    for status in (
        {"driver": "580", "summary": {"pods": 1, "used": "1Gi"}},
        {"version": "2", "summary": {"pods": 2}},
    ):
        patch = status_patch(status | {"unknown": 1})
        told = await kube.patch(MPS_NODES, world.node, patch, PatchKind.JSON, subresource="status")
        assert (told["status"], told["spec"]) == (status, {"cordoned": ["all"]})
        assert told["metadata"]["generation"] == 1


WRONG: dict[str, dict[str, Any]] = {
    "no list": {"cordoned": "all"},
    "no UUID": {"cordoned": ["gpu0"]},
    "named twice": {"cordoned": ["GPU-1", "GPU-1"]},
}


@pytest.mark.parametrize("spec", WRONG.values(), ids=WRONG.keys())
async def test_what_a_definition_forbids_fails(
    world: World, kube: Kube, spec: dict[str, Any]
) -> None:
    await define_mps_nodes(kube)
    with pytest.raises(Rejected, match=r"spec\.cordoned"):
        await kube.create(MPS_NODES, mps_node(world.node, **spec))
    with pytest.raises(NotFound):
        await kube.get(MPS_NODES, world.node)
