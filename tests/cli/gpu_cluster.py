"""Nodes with GPUs of any size, and pods that want some, in a cluster for tests of the programs that
show its ledger."""

import time
from typing import Any

from mpsd.model.times import stamp
from mpsd.platform.kube import MPS_NODES, NODES, PODS, PatchKind, Resource
from tests.cli.cluster_world import ClusterWorld

GIB = 1024
Object = dict[str, Any]


def uuid(node: str, ordinal: int) -> str:
    return f"GPU-{node}-{ordinal}"


def grant(pod: Object, gib: int, node: str, *gpus: int, percent: int = 0) -> Object:
    """What an MPSNode says that a pod of the cluster got."""
    metadata = pod["metadata"]
    return {
        "pod": f"{metadata['namespace']}/{metadata['name']}",
        "uid": metadata["uid"],
        "gpus": [uuid(node, gpu) for gpu in gpus or (0,)],
        "memoryMiB": gib * GIB,
        "threadPercent": percent or 100,
        "reservedPercent": percent,
        "usedMiB": 512,
        "clients": 1,
    }


def mpsnode(
    name: str,
    *gib: int,
    grants: list[Object] | None = None,
    states: dict[int, str] | None = None,
    reserved: str = "",
    told_ago_s: float = 5,
) -> Object:
    """gib: what each GPU may promise. states: of domains that are not ready."""
    now = time.time()
    gpus = [
        {
            "uuid": uuid(name, n),
            "label": f"gpu{n}",
            "model": "NVIDIA A30",
            "domain": f"gpu{n}",
            "memoryMiB": each * GIB + 76,
            "promisedMiB": each * GIB,
            "promisedPercent": 100,
            "promisedClients": 48,
        }
        for n, each in enumerate(gib)
    ]
    domains = [
        {
            "name": f"gpu{n}",
            "gpus": [uuid(name, n)],
            "state": (states or {}).get(n, "ready"),
            "since": stamp(now - 600),
            "restarts": 0,
            "reason": "its server is in FAULT" if n in (states or {}) else "",
        }
        for n in range(len(gib))
    ]
    reported_at = stamp(now - told_ago_s)
    status = {"reportedAt": reported_at, "gpus": gpus, "domains": domains, "grants": grants or []}
    metadata = {"name": name, "annotations": {"mpsd.io/reserved": reserved} if reserved else {}}
    return {
        "apiVersion": "mpsd.io/v1alpha1",
        "kind": "MPSNode",
        "metadata": metadata,
        "spec": {},
        "status": status,
    }


def machine(
    name: str, address: str = "", *, labels: dict[str, str] | None = None, **spec: Any
) -> Object:
    """A Node that mpsd shares."""
    addresses = [{"type": "Hostname", "address": name}]
    addresses += [{"type": "InternalIP", "address": address}] if address else []
    return {
        "metadata": {"name": name, "labels": {"ack.node.gpu.schedule": "mps"} | (labels or {})},
        "spec": spec,
        "status": {"addresses": addresses, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def gpu_pod(
    name: str,
    gib: int = 0,
    *,
    percent: int = 0,
    gpus: int = 1,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> Object:
    """gib: 0 asks for no GPU. By a scheduler that nobody plays, unless one is named."""
    limits = {"aliyun.com/gpu-mem": str(gib)} if gib else {}
    limits |= {"aliyun.com/gpu-core.percentage": str(percent)} if percent else {}
    labels = {"aliyun.com/gpu-count": str(gpus)} if gpus > 1 else {}
    container = {"name": "main", "image": "trainer", "resources": {"limits": limits}}
    return {
        "metadata": {"name": name, "labels": labels, "annotations": annotations or {}},
        "spec": {"schedulerName": "mpsd-scheduler", "containers": [container], **spec},
    }


class GpuCluster:
    def __init__(self, world: ClusterWorld) -> None:
        self.world = world

    def nodes(self, *things: Object) -> None:
        """Nodes and MPSNodes."""
        for thing in things:
            kind = MPS_NODES if thing.get("kind") == "MPSNode" else NODES
            self._create(kind, thing)

    def pod(
        self, thing: Object, status: Object | None = None, namespace: str = "default"
    ) -> Object:
        """As the API server keeps it."""
        return self._create(PODS, thing | ({"status": status} if status else {}), namespace)

    def thing(self, resource: Resource, value: Object, namespace: str = "") -> Object:
        return self._create(resource, value, namespace)

    def _create(self, resource: Resource, value: Object, namespace: str = "") -> Object:
        async def questions(kube: Any) -> Object:
            created: Object = await kube.create(resource, value, namespace)
            if "status" not in value:
                return created
            name, patch = created["metadata"]["name"], {"status": value["status"]}
            written: Object = await kube.patch(
                resource, name, patch, PatchKind.MERGE, namespace, "status"
            )
            return written

        found: Object = self.world.ask(questions)
        return found
