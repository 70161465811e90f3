"""A simulated API server with thousands of nodes and their pods, as a process that a scheduler can be pointed at.

One rule: what is stored has the shape and about the size of the real thing, since a scheduler's memory is measured.

`python -m tests.bench.many_nodes DIR NODES PODS` writes DIR/kubeconfig, says `ready`, and serves until SIGTERM. The
controllers of the simulated cluster do not run: there is nothing for them to do, and looking takes them long.
"""

import asyncio
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from uuid import UUID

import yaml

from mpsd.kubelet.rules.gpu_choice import annotations_at_bind
from mpsd.model.conditions import Condition, Truth, condition_object
from mpsd.model.grants import Gpu, Grant, evenly
from mpsd.model.identity import PodName
from mpsd.model.mpsnode import KIND
from mpsd.model.node_view import HeldGrant, NodeView
from mpsd.model.times import stamp
from mpsd.simulator.api_server.cluster import SimulatedCluster
from mpsd.simulator.api_server.kinds import CRDS, NODES, PODS, Object, ObjectKind
from mpsd.simulator.api_server.server import ApiServer, write_kubeconfig
from mpsd.status.rules.mpsnode import mpsnode_for, mpsnode_status
from tests.bench.cluster import MEMORY, pod
from tests.model.worlds import CAPABILITY, POLICY, record, view
from tests.scheduler.arrivals import CARDS_GIB, GPUS

_DEFINITION = Path(__file__).parents[2] / "manifests/chart/templates/crd/mpsnode.yaml"
_MODELS = {23: ("NVIDIA A30", 56), 79: ("NVIDIA A100-SXM4-80GB", 108), 139: ("NVIDIA H200", 132)}
_READY = Condition(Truth.TRUE, "Serving", "every GPU takes programs")
_IMAGES = 20  # that a Node lists


def name(number: int) -> str:
    return f"node-{number:05}.example.internal"


class NodeObjects:
    """One node, and what its agent, its kubelet and the API server say of it and its pods."""

    def __init__(self, number: int, pods: int) -> None:
        self._number, self._random = number, Random(number)
        gib = CARDS_GIB[number % len(CARDS_GIB)]
        model, sms = _MODELS[gib]
        self._gpus = tuple(
            Gpu(f"GPU-{self._uid(1, n)}", n, model, gib * 1024 + CAPABILITY.server_mib, sms, CAPABILITY)
            for n in range(GPUS)
        )
        self._grants = tuple(self._grant(n, gib) for n in range(pods))

    def objects(self, mpsnodes: ObjectKind) -> Iterator[tuple[ObjectKind, Object]]:
        """Everything that the API server keeps of it."""
        yield NODES, self.node()
        yield mpsnodes, self.mpsnode(self._uid(2))
        for grant in self._grants:
            yield PODS, self._pod(grant)

    def _uid(self, kind: int, of_kind: int = 0) -> str:
        return str(UUID(int=(kind << 96) + (self._number << 32) + of_kind))

    def _grant(self, number: int, gib: int) -> Grant:
        gpu = self._gpus[number % GPUS]
        return Grant(
            id=f"grant-{number}",
            domain=gpu.label,
            parts=evenly((gpu.uuid,), self._random.randint(1, gib) * 1024, 0),
            thread_percent=100,
            clients=POLICY.requests.clients_per_grant,
            holder=PodName("default", f"job-{self._number}-{number}-x7k2p", self._uid(3, number)),
            command="",
        )

    def _view(self) -> NodeView:
        records = tuple(replace(record(), domain=gpu.label, gpus=(gpu.uuid,)) for gpu in self._gpus)
        held = tuple(HeldGrant(grant, True) for grant in self._grants)
        return replace(view(grants=held, records=records, now=time.time()), gpus=self._gpus)

    def _pod(self, grant: Grant) -> Object:
        assert isinstance(grant.holder, PodName)
        thing = pod(grant.holder.name, ["python", "train.py"], {MEMORY: grant.memory_mib // 1024})
        gpu = next(gpu for gpu in self._gpus if gpu.uuid in grant.gpus)
        thing["metadata"] |= {
            "namespace": "default",
            "uid": grant.holder.uid,
            "creationTimestamp": stamp(time.time()),
            "annotations": annotations_at_bind([gpu], grant.memory_mib, gpu.memory_mib, POLICY, time.time_ns()),
        }
        thing["spec"] |= {"nodeName": name(self._number), "schedulerName": "mpsd-scheduler"}
        conditions = [
            {"type": each, "status": "True", "lastProbeTime": None, "lastTransitionTime": stamp(time.time())}
            for each in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
        ]
        return thing | {"status": {"phase": "Running", "conditions": conditions, "podIP": "10.0.0.7"}}

    def mpsnode(self, uid: str) -> Object:
        """As the agent of the Node with this uid writes it now."""
        condition = condition_object(_READY, None, stamp(time.time()))
        status = mpsnode_status(self._view(), POLICY, condition)
        return {**mpsnode_for(name(self._number), uid), "status": status}

    def node(self) -> Object:
        labels = {"kubernetes.io/hostname": name(self._number), "ack.node.gpu.schedule": "mps"}
        labels |= {f"node.example.com/feature-{number}": "true" for number in range(20)}
        conditions = [
            {
                "type": each,
                "status": "False",
                "lastHeartbeatTime": stamp(time.time()),
                "lastTransitionTime": stamp(time.time()),
                "reason": f"KubeletHasNo{each}",
                "message": f"kubelet has no {each}",
            }
            for each in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
        ]
        images = [
            {"names": [f"registry.example.com/team/image-{n}@sha256:{n:064x}"], "sizeBytes": 1 << 30}
            for n in range(_IMAGES)
        ]
        amounts = {"cpu": "128", "memory": "1056Gi", "pods": "110", MEMORY: "632", "aliyun.com/gpu-count": "8"}
        return {
            "metadata": {"name": name(self._number), "uid": self._uid(2), "labels": labels},
            "spec": {"providerID": f"example://{self._uid(2)}"},
            "status": {
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": conditions,
                "addresses": [{"type": "InternalIP", "address": "10.0.0.7"}],
                "images": images,
            },
        }


async def _serve(folder: Path, nodes: int, pods: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    cluster = SimulatedCluster()
    await cluster.create(CRDS, "v1", "", yaml.safe_load(_DEFINITION.read_text()))
    (mpsnodes,) = (kind for kind in cluster.kinds if kind.name == KIND)
    for number in range(nodes):
        for kind, thing in NodeObjects(number, pods // nodes).objects(mpsnodes):
            metadata = thing["metadata"]
            key = cluster.objects.key(kind, metadata.get("namespace", ""), metadata["name"])
            cluster.store.put(key, thing)
    server = ApiServer(cluster, bookmark_s=10)
    await server.start()
    await cluster.stop()
    write_kubeconfig(server, folder)
    print("ready", flush=True)
    await stop.wait()
    await server.stop()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
