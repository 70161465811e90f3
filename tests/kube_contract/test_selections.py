"""Lists and watches of some objects."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from mpsd.model.events import Event, EventCount, Reason, event_object, pod_subject
from mpsd.model.identity import PodName
from mpsd.platform.kube import Kube, PatchKind, Rejected, Resource
from mpsd.platform.kube_mirror import ChangeKind, Selection, WatchEvent, watch
from tests.kube_contract.conftest import World, config_map, make_node, pod
from tests.listing import listing

MAPS, PODS, EVENTS = Resource("v1", "configmaps"), Resource("v1", "pods"), Resource("v1", "events")
_DEADLINE_S = 20.0


async def next_change(changes: AsyncIterator[WatchEvent]) -> tuple[ChangeKind, str]:
    """That is no bookmark, with the name of its object."""
    async with asyncio.timeout(_DEADLINE_S):
        async for change in changes:
            if change.kind is not ChangeKind.BOOKMARK:
                return change.kind, change.object["metadata"]["name"]
    raise AssertionError("the watch has ended")


async def labelled(kube: Kube, world: World, name: str, **labels: str) -> None:
    await kube.create(MAPS, {"metadata": {"name": name, "labels": labels}}, world.namespace)


SELECTORS = {
    "a=1": {"one"},
    "a==1,b": set[str](),
    "a!=1": {"two", "none"},
    "a in (1, 2)": {"one", "two"},
    "a notin (1)": {"two", "none"},
    "a": {"one", "two"},
    "!a": {"none"},
}


async def test_labels_select(world: World, kube: Kube) -> None:
    await labelled(kube, world, "one", a="1")
    await labelled(kube, world, "two", a="2")
    await labelled(kube, world, "none")
    for selector, names in SELECTORS.items():
        found = await kube.list(MAPS, world.namespace, {"labelSelector": selector})
        # some clusters put in their own
        ours = {one["metadata"]["name"] for one in found} & {"one", "two", "none"}
        assert ours == names, selector


async def test_fields_select_and_others_are_refused(world: World, kube: Kube) -> None:
    await make_node(kube, world)
    await kube.create(PODS, pod("here", world.node), world.namespace)
    await kube.create(
        PODS,
        pod("nowhere") | {"spec": pod("")["spec"] | {"schedulerName": "nobody"}},
        world.namespace,
    )
    for selector, names in {
        f"spec.nodeName={world.node}": ["here"],
        "spec.nodeName=": ["nowhere"],
        f"spec.nodeName!={world.node}": ["nowhere"],
        "metadata.name=here": ["here"],
        f"metadata.name=here,spec.nodeName={world.node},status.phase=Pending": ["here"],
        "status.phase=Running": [],
    }.items():
        found = await kube.list(PODS, world.namespace, {"fieldSelector": selector})
        assert [one["metadata"]["name"] for one in found] == names, selector
    for resource, selector in ((PODS, "spec.hostname=a"), (MAPS, "data.a=1")):
        with pytest.raises(Rejected):
            await kube.list(resource, world.namespace, {"fieldSelector": selector})


async def test_our_events_are_found_by_source_and_by_object(world: World, kube: Kube) -> None:
    subject = pod_subject(PodName(world.namespace, "train", "a-uid"))
    ours = event_object(EventCount(Event(subject, Reason.FAULT, "a fault"), 1.0, 2.0, 1), "node1")
    other = ours | {"metadata": {"name": "other"}, "source": {"component": "kubelet"}}
    for event in (
        ours,
        {key: value for key, value in other.items() if not key.startswith("reporting")},
    ):
        await kube.create(EVENTS, event, world.namespace)
    for selector, number in {
        "source=mpsd-agent": 1,
        "involvedObject.uid=a-uid,reason=MPSFault": 2,
    }.items():
        assert len(await kube.list(EVENTS, world.namespace, {"fieldSelector": selector})) == number
    counted = await kube.patch(
        EVENTS, ours["metadata"]["name"], {"count": 5}, PatchKind.MERGE, world.namespace
    )
    assert counted["count"] == 5


async def test_a_list_is_of_exactly_the_version_asked_for(world: World, kube: Kube) -> None:
    await kube.create(MAPS, config_map("first"), world.namespace)
    since = (await listing(kube, MAPS, world.namespace)).version
    await kube.delete(MAPS, "first", world.namespace)
    await kube.create(MAPS, config_map("second"), world.namespace)
    exactly = await listing(kube, MAPS, world.namespace, {"resourceVersion": since})
    names = {one["metadata"]["name"] for one in exactly.items}
    assert {"first", "second"} & names == {"first"}
    asked = {"resourceVersion": since, "resourceVersionMatch": "NotOlderThan"}
    assert int((await listing(kube, MAPS, world.namespace, asked)).version) >= int(since)


async def test_a_watch_tells_every_change_after_the_list_in_order(world: World, kube: Kube) -> None:
    await kube.create(MAPS, config_map("before"), world.namespace)
    since = (await listing(kube, MAPS, world.namespace)).version
    await kube.create(MAPS, config_map("a", key="1"), world.namespace)
    async with watch(
        kube,
        Selection(MAPS, world.namespace, {"fieldSelector": "metadata.name=a"}),
        since=since,
    ) as changes:
        assert await next_change(changes) == (ChangeKind.ADDED, "a")
        await kube.patch(MAPS, "a", {"data": {"key": "2"}}, PatchKind.MERGE, world.namespace)
        assert await next_change(changes) == (ChangeKind.MODIFIED, "a")
        await kube.create(MAPS, config_map("another"), world.namespace)  # of no concern
        await kube.delete(MAPS, "a", world.namespace)
        assert await next_change(changes) == (ChangeKind.DELETED, "a")


async def test_a_watch_goes_on_from_any_change_it_told(world: World, kube: Kube) -> None:
    since = (await listing(kube, MAPS, world.namespace)).version
    for name in "abc":
        await labelled(kube, world, name, mine="yes")
    query = {"labelSelector": "mine"}
    async with watch(kube, Selection(MAPS, world.namespace, query), since=since) as changes:
        async for change in changes:
            first = change
            break
    async with watch(kube, Selection(MAPS, world.namespace, query), since=first.version) as changes:
        assert [await next_change(changes) for _ in range(2)] == [
            (ChangeKind.ADDED, "b"),
            (ChangeKind.ADDED, "c"),
        ]


async def test_pods_of_a_node_are_watched_from_binding_to_end(world: World, kube: Kube) -> None:
    await make_node(kube, world)
    query = {"fieldSelector": f"spec.nodeName={world.node}"}
    since = (await listing(kube, PODS, query=query)).version
    async with watch(kube, Selection(PODS, query=query), since=since) as changes:
        await kube.create(
            PODS,
            pod("a") | {"spec": pod("")["spec"] | {"schedulerName": "nobody"}},
            world.namespace,
        )
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "a", "annotations": {"mpsd.io/gpu": "GPU-0"}},
            "target": {"kind": "Node", "name": world.node},
        }
        await kube.create(PODS, binding, world.namespace, "binding")
        async with asyncio.timeout(_DEADLINE_S):
            change = await anext(changes)
        assert change.kind is ChangeKind.ADDED
        assert change.object["metadata"]["annotations"]["mpsd.io/gpu"] == "GPU-0"
        await kube.delete(PODS, "a", world.namespace)
        kind, _name = await next_change(changes)  # its kubelet has to end it first
        assert kind is ChangeKind.MODIFIED
