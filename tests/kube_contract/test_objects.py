"""Creating, reading, changing and deleting objects."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from mpsd.platform.kube import (
    Conflict,
    Forbidden,
    Kube,
    NotFound,
    Object,
    PatchKind,
    Resource,
    Unavailable,
)
from tests.kube_contract.conftest import NAMESPACES, World, config_map, eventually, pod

MAPS, PODS = Resource("v1", "configmaps"), Resource("v1", "pods")
JOBS = Resource("batch/v1", "jobs")
# from 1.21 on, to 1.24
BUDGETS = [Resource(api, "poddisruptionbudgets") for api in ("policy/v1", "policy/v1beta1")]

RUNNING = {"status": {"phase": "Running"}}  # a budget says nothing of a pod that has not begun


async def test_a_name_is_taken_once_or_made_up_from_its_beginning(world: World, kube: Kube) -> None:
    await kube.create(MAPS, config_map("a"), world.namespace)
    with pytest.raises(Conflict):
        await kube.create(MAPS, config_map("a"), world.namespace)
    made = await kube.create(MAPS, {"metadata": {"generateName": "b-"}}, world.namespace)
    assert made["metadata"]["name"].startswith("b-")
    assert len(made["metadata"]["name"]) == 7


async def test_nothing_is_made_where_its_namespace_or_kind_is_missing(
    world: World, kube: Kube
) -> None:
    with pytest.raises(NotFound, match="namespaces"):
        await kube.create(MAPS, config_map("a"), f"{world.namespace}-not")
    with pytest.raises(NotFound):
        await kube.list(Resource("example.com/v1", "things"))
    with pytest.raises(NotFound):
        await kube.get(MAPS, "not-there", world.namespace)


async def test_each_change_has_a_newer_version_and_no_other(world: World, kube: Kube) -> None:
    made = await kube.create(MAPS, config_map("a", key="1"), world.namespace)
    changed = await kube.replace(MAPS, made | {"data": {"key": "2"}}, world.namespace)
    assert int(changed["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
    again = await kube.patch(MAPS, "a", {"data": {"key": "2"}}, PatchKind.MERGE, world.namespace)
    assert again["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"]


async def test_who_changes_what_has_changed_hears_of_a_conflict(world: World, kube: Kube) -> None:
    made = await kube.create(MAPS, config_map("a", key="1"), world.namespace)
    await kube.patch(MAPS, "a", {"data": {"key": "2"}}, PatchKind.MERGE, world.namespace)
    with pytest.raises(Conflict):
        await kube.replace(MAPS, made | {"data": {"key": "3"}}, world.namespace)
    stale = {
        "metadata": {"resourceVersion": made["metadata"]["resourceVersion"]},
        "data": {"key": "3"},
    }
    with pytest.raises(Conflict):
        await kube.patch(MAPS, "a", stale, PatchKind.MERGE, world.namespace)


async def test_what_is_meant_for_another_object_of_that_name_conflicts(
    world: World, kube: Kube
) -> None:
    await kube.create(PODS, pod("a"), world.namespace)
    patch = {"metadata": {"uid": "another", "annotations": {"a": "b"}}}
    with pytest.raises(Conflict):
        await kube.patch(PODS, "a", patch, PatchKind.MERGE, world.namespace)
    with pytest.raises(Conflict):
        await kube.delete(PODS, "a", world.namespace, uid="another")
    assert "annotations" not in (await kube.get(PODS, "a", world.namespace))["metadata"]


PATCHES: dict[str, tuple[PatchKind, Any, dict[str, str]]] = {
    "merge": (PatchKind.MERGE, {"data": {"b": "2", "a": None}}, {"b": "2"}),
    "strategic": (PatchKind.STRATEGIC, {"data": {"b": "2"}}, {"a": "1", "b": "2"}),
    "json": (
        PatchKind.JSON,
        [{"op": "add", "path": "/data/b", "value": "2"}],
        {"a": "1", "b": "2"},
    ),
    "json that moves": (
        PatchKind.JSON,
        [{"op": "move", "from": "/data/a", "path": "/data/c"}],
        {"c": "1"},
    ),
}


@pytest.mark.parametrize(("kind", "patch", "data"), PATCHES.values(), ids=PATCHES.keys())
async def test_each_way_of_patching_changes_what_it_says(
    world: World, kube: Kube, kind: PatchKind, patch: Any, data: dict[str, str]
) -> None:
    await kube.create(MAPS, config_map("a", a="1"), world.namespace)
    assert (await kube.patch(MAPS, "a", patch, kind, world.namespace))["data"] == data
    assert (await kube.get(MAPS, "a", world.namespace))["data"] == data


async def test_an_object_goes_when_its_finalizer_does(world: World, kube: Kube) -> None:
    metadata = {"name": "a", "finalizers": ["mpsd.io/contract"]}
    await kube.create(MAPS, {"metadata": metadata}, world.namespace)
    await kube.delete(MAPS, "a", world.namespace)
    assert "deletionTimestamp" in (await kube.get(MAPS, "a", world.namespace))["metadata"]
    await kube.patch(
        MAPS, "a", {"metadata": {"finalizers": None}}, PatchKind.MERGE, world.namespace
    )
    with pytest.raises(NotFound):
        await kube.get(MAPS, "a", world.namespace)


async def test_what_belongs_to_an_object_goes_with_it(world: World, kube: Kube) -> None:
    owner = await kube.create(MAPS, config_map("owner"), world.namespace)
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "owner",
        "uid": owner["metadata"]["uid"],
    }
    await kube.create(
        MAPS, {"metadata": {"name": "owned", "ownerReferences": [reference]}}, world.namespace
    )
    await kube.delete(MAPS, "owner", world.namespace)

    async def is_gone() -> bool:
        return "owned" not in {
            one["metadata"]["name"] for one in await kube.list(MAPS, world.namespace)
        }

    await eventually(is_gone, "the owned object gone")


async def test_a_namespace_that_ends_takes_its_contents_with_it(world: World, kube: Kube) -> None:
    name = f"{world.namespace}-ending"
    await kube.create(NAMESPACES, {"metadata": {"name": name}})
    await kube.create(MAPS, {"metadata": {"name": "a", "finalizers": ["mpsd.io/contract"]}}, name)
    await kube.delete(NAMESPACES, name)
    with pytest.raises(Forbidden, match="terminated"):
        await kube.create(MAPS, config_map("b"), name)
    await kube.patch(MAPS, "a", {"metadata": {"finalizers": None}}, PatchKind.MERGE, name)

    async def is_gone() -> bool:
        return name not in {one["metadata"]["name"] for one in await kube.list(NAMESPACES)}

    await eventually(is_gone, "the namespace gone")


async def _create_by_the_first_served(
    kube: Kube, resources: Sequence[Resource], thing: Object, namespace: str
) -> None:
    *newer, oldest = resources
    for resource in newer:
        with suppress(NotFound):
            await kube.create(resource, thing, namespace)
            return
    await kube.create(oldest, thing, namespace)


async def test_an_eviction_ends_a_pod_unless_a_budget_forbids_it(world: World, kube: Kube) -> None:
    guarded = pod("guarded")
    guarded["metadata"]["labels"] = {"guarded": "yes"}
    for one in (guarded, pod("free")):
        await kube.create(PODS, one, world.namespace)
    budget = {
        "metadata": {"name": "none"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"guarded": "yes"}}},
    }
    await _create_by_the_first_served(kube, BUDGETS, budget, world.namespace)
    with pytest.raises(Conflict):
        await kube.evict("free", world.namespace, uid="another")
    await kube.evict("free", world.namespace)
    with pytest.raises(NotFound):
        await kube.get(PODS, "free", world.namespace)
    await kube.patch(PODS, "guarded", RUNNING, PatchKind.STRATEGIC, world.namespace, "status")
    with pytest.raises(Unavailable, match="disruption budget"):
        await kube.evict("guarded", world.namespace)
    with pytest.raises(NotFound):
        await kube.evict("not-there", world.namespace)
