"""The pods of a node that do not run yet, as an API server tells them that may be away."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from mpsd.platform.event_loop import until
from mpsd.platform.kube import PatchKind, Resource
from mpsd.status.page.node import PodsOfNode
from mpsd.status.page.rules.view import PodsHeard, PodsHere
from tests.model.worlds import GPUS, POLICY
from tests.page_worlds import node
from tests.status.report.world import DEADLINE_S, NODE, PODS, World
from tests.status.test_pod_explanation import pod

SEEN = node(GPUS, [])
CLAIMS = Resource("resource.k8s.io/v1", "resourceclaims")


@asynccontextmanager
async def read(world: World) -> AsyncIterator[PodsOfNode]:
    pods = PodsOfNode(world.kube, NODE, lambda: POLICY)
    async with pods.watching():
        yield pods


def names(here: PodsHere) -> list[str]:
    return [card.name for card in here.cards]


async def eventually(pods: PodsOfNode, is_so: Callable[[PodsHere], bool], what: str) -> PodsHere:
    await until(lambda: is_so(pods.shown(SEEN, {})), DEADLINE_S, what)
    return pods.shown(SEEN, {})


async def make(world: World, name: str, gib: int = 7, **spec: Any) -> None:
    await world.kube.create(PODS, pod(gib, spec=spec, metadata={"name": name}), "default")


async def test_only_pods_of_this_node_that_ask_for_a_gpu_and_do_not_run_are_known(
    world: World,
) -> None:
    await make(world, "ours", nodeName=NODE)
    await make(world, "theirs", nodeName="another")
    await make(world, "nobodys")
    await make(world, "without-gpu", gib=0, nodeName=NODE)
    async with read(world) as pods:
        await eventually(
            pods, lambda here: names(here) == ["default/ours"], "the one that waits is heard of"
        )
        assert not pods.changed.is_set()
        await make(world, "another", nodeName=NODE)
        await until(pods.changed.is_set, DEADLINE_S, "the new one is heard of")
        both = ["default/another", "default/ours"]
        await eventually(pods, lambda here: names(here) == both, "both are known")
        runs = {"status": {"phase": "Running"}}
        await world.kube.patch(PODS, "ours", runs, PatchKind.MERGE, "default", subresource="status")
        await eventually(
            pods, lambda here: names(here) == ["default/another"], "what runs waits no more"
        )
        await world.kube.delete(PODS, "another", "default")
        await eventually(pods, lambda here: not here.cards, "nor does what is being deleted")


async def claim(world: World, name: str, device_class: str) -> None:
    exactly = {"deviceClassName": device_class, "capacity": {"requests": {"memory": "7Gi"}}}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    await world.kube.create(CLAIMS, {"metadata": {"name": name}, "spec": spec}, "default")


async def test_pods_whose_claim_is_for_a_gpu_of_mpsd_are_listed_with_what_it_asks_for(
    world: World,
) -> None:
    await claim(world, "ours", "mps.mpsd.io")
    await claim(world, "theirs", "gpu.nvidia.com")
    async with read(world) as pods:
        for name in ("ours", "theirs"):
            entry = {"name": "gpu", "resourceClaimName": name}
            await make(world, name, gib=0, nodeName=NODE, resourceClaims=[entry])
        here = await eventually(
            pods, lambda here: names(here) == ["default/ours"], "the one of mpsd is known"
        )
        assert here.cards[0].memory_mib == 7 * 1024


async def test_while_the_api_server_is_away_it_is_said_and_what_was_heard_last_stays(
    world: World,
) -> None:
    await make(world, "ours", nodeName=NODE)
    await asyncio.to_thread(world.api.stop)
    async with read(world) as pods:
        here = await eventually(pods, lambda here: "refused" in here.heard.away, "it is said why")
        assert (here.cards, here.heard.since) == ((), None)
        await asyncio.to_thread(world.api.start)
        here = await eventually(pods, lambda here: here.heard == PodsHeard(), "it is heard of")
        assert names(here) == ["default/ours"]
        await asyncio.to_thread(world.api.stop)
        here = await eventually(
            pods, lambda here: bool(here.heard.away), "it is said that it is away again"
        )
        assert names(here) == ["default/ours"]
        assert here.heard.since is not None
