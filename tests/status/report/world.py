"""A simulated cluster with one node, and a reporter of that node."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from mpsd.platform import logs
from mpsd.platform.kube import Kube, NotFound, Object, Resource
from mpsd.platform.kube_access import open_kube
from mpsd.status.report import NodeReporter
from tests.model.worlds import POLICY
from tests.simulated_api import SimulatedApi

NODE = "node1"
NODES, PODS, EVENTS = Resource("v1", "nodes"), Resource("v1", "pods"), Resource("v1", "events")
MPS_NODES = Resource("mpsd.io/v1alpha1", "mpsnodes")
CRDS = Resource("apiextensions.k8s.io/v1", "customresourcedefinitions")
DEADLINE_S = 20.0
_DEFINITION = Path(__file__).parents[3] / "manifests/chart/templates/crd/mpsnode.yaml"


class World:
    """kube: for the test itself. report: runs from the start."""

    def __init__(self, api: SimulatedApi, kubeconfig: Path) -> None:
        self.api = api
        self.kube = open_kube(kubeconfig)
        self._reporting: Kube = open_kube(kubeconfig)
        self.report = NodeReporter(self._reporting, NODE, lambda: POLICY)
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self.report.run(self._stop))

    async def stop_reporting(self) -> None:
        self._stop.set()
        await self._task

    async def close(self) -> None:
        await self.stop_reporting()
        self.kube.close()
        self._reporting.close()

    async def make_node(self) -> Object:
        return await self.kube.create(NODES, {"metadata": {"name": NODE}})

    async def define(self) -> None:
        await self.kube.create(CRDS, yaml.safe_load(_DEFINITION.read_text()))

    async def make_pod(self, name: str) -> Object:
        spec = {"nodeName": NODE, "containers": [{"name": "main", "image": "none"}]}
        return await self.kube.create(PODS, {"metadata": {"name": name}, "spec": spec}, "default")

    async def mpsnode(self) -> Object:
        """{} while there is none."""
        try:
            return await self.kube.get(MPS_NODES, NODE)
        except NotFound:
            return {}

    async def events(self) -> list[tuple[str, str, int]]:
        """Object, reason and count of each."""
        found = await self.kube.list(EVENTS)
        return sorted((one["involvedObject"]["name"], one["reason"], one["count"]) for one in found)

    def versions(self, plural: str) -> int:
        """How often objects of this kind have been written."""
        return self.api.do(
            lambda: sum(change.key.plural == plural for change in self.api.cluster.store.since(1))
        )


@asynccontextmanager
async def in_world(api: SimulatedApi, folder: Path) -> AsyncIterator[World]:
    world = World(api, api.kubeconfig(folder))
    try:
        yield world
    finally:
        await world.close()


async def eventually(look: Callable[[], Awaitable[Any]], what: str) -> Any:
    """What `look` gives once it is true."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not (found := await look()):  # noqa: ASYNC110 - what is waited for is behind an API
                await asyncio.sleep(0.02)
            return found
    except TimeoutError:
        raise AssertionError(f"not within {DEADLINE_S:g} s: {what}") from None


def logged(lines: Sequence[logs.Line], event: str) -> list[logs.Line]:
    return [line for line in lines if line["event"] == event]
