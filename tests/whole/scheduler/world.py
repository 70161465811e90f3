"""A simulated cluster whose agents the test plays, and schedulers that know and bind by
themselves."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from mpsd.kubelet.rules.node_pods import GPU
from mpsd.model.identity import PodName
from mpsd.model.times import stamp
from mpsd.platform.event_loop import until
from mpsd.platform.kube import Kube, Object, PatchKind, Resource
from mpsd.platform.kube_access import of_kubeconfig, open_kube
from mpsd.scheduler.bind import Binder
from mpsd.scheduler.ledger import ClusterLedger
from mpsd.scheduler.rules.capacity import NodeCapacity
from mpsd.scheduler.rules.reservations import KEY, LONGEST_S, Reservation, written
from mpsd.scheduler.wire import BindArgs
from mpsd.simulator.api_server.kinds import PODS as POD_KIND
from tests.model.worlds import POLICY
from tests.simulated_api import SimulatedApi

NODES, PODS = Resource("v1", "nodes"), Resource("v1", "pods")
MPS_NODES = Resource("mpsd.io/v1alpha1", "mpsnodes")
CRDS = Resource("apiextensions.k8s.io/v1", "customresourcedefinitions")
GIB = 1024
DEADLINE_S = 20.0
_DEFINITION = yaml.safe_load(
    (Path(__file__).parents[3] / "manifests/chart/templates/crd/mpsnode.yaml").read_text()
)


def uuid(node: str, ordinal: int) -> str:
    return f"GPU-{node}-{ordinal}"


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Scheduler:
    """One process. through: what all that it asks goes through where that is not the API server
    itself."""

    def __init__(
        self, kubeconfig: Path, clock: Callable[[], float], through: Kube | None, **how: float
    ) -> None:
        self.policy = POLICY
        self.kube = through or open_kube(kubeconfig)
        self.ledger = ClusterLedger(self.kube, lambda: self.policy, now=clock, **how)
        self.binder = Binder(self.kube, self.ledger)
        self._task = asyncio.create_task(self.ledger.run())

    async def bind(self, pod: Object, node: str = "node1") -> str:
        return await self.binder.bind(args_of(pod, node))

    def node(self, name: str = "node1") -> NodeCapacity:
        found = self.ledger.table.ledger(name)
        assert found, f"{name} has no row"
        return found

    def free(self, node: str = "node1") -> list[int]:
        """GiB of each of its GPUs."""
        return [room.memory_mib // GIB for room in self.node(node).rooms]

    async def is_ready(self) -> None:
        await self.sees(lambda: not self.ledger.trouble, "everything is heard of")

    async def sees(self, condition: Callable[[], object], what: str) -> None:
        await until(condition, DEADLINE_S, what)

    async def sees_free(self, *gib: int, node: str = "node1") -> None:
        def is_so() -> bool:
            return self.ledger.table.ledger(node) is not None and self.free(node) == list(gib)

        try:
            await until(is_so, DEADLINE_S, f"{node} has {gib} GiB free")
        except TimeoutError as error:
            raise AssertionError(f"{error}, and it has {self.ledger.table.ledger(node)}") from None

    async def die(self) -> None:
        """As a process that is killed: nothing more of it reaches the server."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.kube.close()


class World:
    """kube: for the test itself."""

    def __init__(self, api: SimulatedApi, kubeconfig: Path) -> None:
        self.api = api
        self.kube = Kube(of_kubeconfig(kubeconfig), deadline_s=DEADLINE_S)
        self.clock = Clock()
        self.kubeconfig = kubeconfig
        self._schedulers: list[Scheduler] = []
        self._gib: dict[str, tuple[int, ...]] = {}
        self._together: dict[str, bool] = {}
        self._kind: dict[str, str] = {}

    def new_scheduler(self, through: Kube | None = None, **how: float) -> Scheduler:
        scheduler = Scheduler(self.kubeconfig, self.clock, through, **how)
        self._schedulers.append(scheduler)
        return scheduler

    async def scheduler(self, through: Kube | None = None, **how: float) -> Scheduler:
        """Once it has heard of everything."""
        scheduler = self.new_scheduler(through, **how)
        await scheduler.is_ready()
        return scheduler

    async def close(self) -> None:
        for scheduler in self._schedulers:
            await scheduler.die()
        self.kube.close()

    async def add_node(
        self,
        name: str = "node1",
        gib: tuple[int, ...] = (23, 23),
        *,
        placement: str = "",
        together: bool = False,
        kind: str = "",
    ) -> None:
        """kind: of its domains, as its `mpsd control` records it."""
        labels = {"ack.node.gpu.schedule": "mps"} | (
            {"ack.node.gpu.placement": placement} if placement else {}
        )
        status = {
            "addresses": [
                {"type": "Hostname", "address": name},
                {"type": "InternalIP", "address": "10.0.0.7"},
            ]
        }
        await self.kube.create(NODES, {"metadata": {"name": name, "labels": labels}})
        await self.kube.patch(
            NODES, name, {"status": status}, PatchKind.STRATEGIC, subresource="status"
        )
        thing = {
            "apiVersion": "mpsd.io/v1alpha1",
            "kind": "MPSNode",
            "metadata": {"name": name},
            "spec": {},
        }
        await self.kube.create(MPS_NODES, thing)
        self._gib[name], self._together[name], self._kind[name] = gib, together, kind
        await self.tell(name)

    async def tell(self, name: str = "node1", *held: Object, used_mib: int = 0) -> None:
        """The agent writes its status. held: the pods that kubelet has given what is written on
        them."""
        status = told(name, self._gib[name], [_grant(pod, name) for pod in held], used_mib)
        if self._together[name]:
            gpus = status["gpus"]
            status["gpus"] = [gpu | {"domain": "all"} for gpu in gpus]
            status["domains"] = [
                {"name": "all", "gpus": [gpu["uuid"] for gpu in gpus], "state": "ready"}
            ]
        for domain in status["domains"] if self._kind[name] else ():
            domain["kind"] = self._kind[name]
        await self.kube.patch(
            MPS_NODES, name, {"status": status}, PatchKind.MERGE, subresource="status"
        )

    async def reserve(self, uid: str, name: str, gib: int, ordinal: int = 0) -> None:
        """As a scheduler that went no further."""
        reservation = Reservation(
            PodName("default", name, uid), (uuid("node1", ordinal),), gib * GIB, 0
        )
        patch = {"metadata": {"annotations": {KEY: written([reservation])}}}
        await self.kube.patch(MPS_NODES, "node1", patch, PatchKind.MERGE)

    async def add_pod(
        self,
        name: str,
        gib: int,
        *,
        node: str = "",
        gpus: int = 1,
        annotations: Mapping[str, str] | None = None,
    ) -> Object:
        """node, annotations: where some other scheduler has put it, and what that has written."""
        made = pod(name, gib, gpus)
        made["metadata"]["annotations"] = dict(annotations or {})
        made["spec"] |= {"nodeName": node} if node else {}
        return await self.kube.create(PODS, made, "default")

    async def end_pod(self, name: str) -> None:
        """At once, as kubelet reports it in the end."""
        objects = self.api.cluster.objects
        self.api.do(lambda: objects.delete(POD_KIND, "default", name, {"gracePeriodSeconds": 0}))

    async def pod(self, name: str) -> Object:
        return await self.kube.get(PODS, name, "default")

    async def reservations(self, node: str = "node1") -> Mapping[str, Any]:
        """What is written at the server, by uid."""
        metadata = (await self.kube.get(MPS_NODES, node))["metadata"]
        return json.loads((metadata.get("annotations") or {}).get(KEY, "{}"))

    def pass_time(self, seconds: float = LONGEST_S + 1) -> None:
        self.clock.now += seconds


def args_of(pod: Object, node: str) -> BindArgs:
    metadata = pod["metadata"]
    return BindArgs(metadata["namespace"], metadata["name"], metadata["uid"], node)


def pod(name: str, gib: int, gpus: int = 1) -> Object:
    amounts = {"aliyun.com/gpu-mem": str(gib * gpus)} if gib else {}
    labels = {"aliyun.com/gpu-count": str(gpus)} if gpus > 1 else {}
    container = {
        "name": "main",
        "image": "none",
        "resources": {"limits": amounts, "requests": amounts},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {"schedulerName": "mpsd", "containers": [container]},
    }


def gpu_of(pod: Object) -> str:
    """Written on it, empty where nothing is."""
    return (pod["metadata"].get("annotations") or {}).get(GPU, "")


def told(node: str, gib: tuple[int, ...], grants: list[Object], used_mib: int) -> Object:
    gpus = [
        {
            "uuid": uuid(node, n),
            "label": f"gpu{n}",
            "model": "A30",
            "domain": f"gpu{n}",
            "memoryMiB": each * GIB + 76,
            "promisedMiB": each * GIB,
            "promisedPercent": 100,
            "promisedClients": 48,
            "usedMiB": used_mib,
        }
        for n, each in enumerate(gib)
    ]
    domains = [
        {"name": f"gpu{n}", "gpus": [uuid(node, n)], "state": "ready"} for n in range(len(gib))
    ]
    return {"reportedAt": stamp(time.time()), "gpus": gpus, "domains": domains, "grants": grants}


def _grant(pod: Object, node: str) -> Object:
    metadata = pod["metadata"]
    gib = int(pod["spec"]["containers"][0]["resources"]["limits"]["aliyun.com/gpu-mem"])
    return {
        "pod": f"{metadata['namespace']}/{metadata['name']}",
        "uid": metadata["uid"],
        "gpus": (pod.get("held") or gpu_of(pod) or uuid(node, 0)).split(","),
        "memoryMiB": gib * GIB,
    }


@asynccontextmanager
async def in_cluster(api: SimulatedApi, folder: Path) -> AsyncIterator[World]:
    world = World(api, api.kubeconfig(folder))
    try:
        await world.kube.create(CRDS, _DEFINITION)
        yield world
    finally:
        await world.close()


def run(api: SimulatedApi, folder: Path, test: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        async with in_cluster(api, folder) as world:
            await test(world)

    asyncio.run(main())
