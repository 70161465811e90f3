"""A cluster of one node for benchmarks: the simulated API server and the simulated kubelet.

One rule: what they cost is nobody's row, so they run in the process of the benchmark.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import yaml

from mpsd.simulator.api_server.cluster import SimulatedCluster
from mpsd.simulator.api_server.kinds import CRDS, NODES, PODS, Object
from mpsd.simulator.api_server.server import ApiServer, write_kubeconfig
from mpsd.simulator.kubelet.kubelet import Kubelet, SimulatedKubeletSettings
from mpsd.simulator.kubelet.pods import NEWEST, KubeletPace
from mpsd.simulator.kubelet.sources import ApiServerSource as PodsOfApi
from mpsd.simulator.kubelet.sources import read_kubeconfig

NODE = "bench"
MEMORY, PERCENT = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"
_MPSNODE = Path(__file__).parents[2] / "manifests/chart/templates/crd/mpsnode.yaml"
# it is not in a hurry: it shares the machine with what is measured
_PACE = KubeletPace(list_s=0.5, look_s=0.2)


class OneNode:
    """The cluster, as whoever uses it sees it."""

    def __init__(self, cluster: SimulatedCluster, kubeconfig: Path, kubelet_folder: Path) -> None:
        self.simulated = self._cluster = cluster
        self.kubeconfig = kubeconfig
        self.kubelet_folder = kubelet_folder

    async def create(self, pod: Object) -> None:
        await self._cluster.create(PODS, "v1", "default", pod)

    def delete(self, name: str) -> None:
        """As `kubectl delete`: it is gone once kubelet has ended it."""
        self._cluster.objects.delete(PODS, "default", name, {})

    def is_offered(self, *resources: str) -> bool:
        """Whether kubelet has all devices of these to give. Before that it refuses pods that ask
        for them."""
        (node,) = (thing for _key, thing in self._cluster.store.all(NODES))
        amounts = [
            [node["status"].get(name, {}).get(one) for name in ("capacity", "allocatable")]
            for one in resources
        ]
        return all(
            capacity == allocatable and capacity not in (None, "0")
            for capacity, allocatable in amounts
        )

    def phases(self) -> Mapping[str, str]:
        """Of each pod, by name."""
        pods = self._cluster.store.all(PODS)
        return {key.name: thing["status"]["phase"] for key, thing in pods}


def pod(name: str, command: Sequence[str], limits: Mapping[str, int]) -> Object:
    """Bound to the node, with as much in it as a pod of a Job has at least."""
    amounts = {resource: str(amount) for resource, amount in limits.items()}
    labels = {"job-name": name, "app.kubernetes.io/name": "bench"}
    container = {
        "name": "main",
        "image": "registry.example.com/team/training:2026-11-21",
        "command": list(command),
        "resources": {"limits": amounts},
        "env": [{"name": f"OPTION_{number}", "value": "x" * 20} for number in range(8)],
        "terminationMessagePath": "/dev/termination-log",
        "imagePullPolicy": "IfNotPresent",
    }
    owned = [
        {
            "manager": "kubelet",
            "operation": "Update",
            "fieldsV1": {f"f:{label}": {} for label in labels},
        }
    ]
    spec = {
        "nodeName": NODE,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
    }
    return {"metadata": {"name": name, "labels": labels, "managedFields": owned}, "spec": spec}


@asynccontextmanager
async def one_node(folder: Path) -> AsyncIterator[OneNode]:
    """At the end no container runs any more."""
    cluster = SimulatedCluster()
    server = ApiServer(cluster)
    await server.start()
    await cluster.create(CRDS, "v1", "", yaml.safe_load(_MPSNODE.read_text()))
    kubeconfig = write_kubeconfig(server, folder)
    pods = PodsOfApi(read_kubeconfig(kubeconfig), NODE)
    kubelet = Kubelet(SimulatedKubeletSettings(folder / "kubelet", NEWEST, pace=_PACE), pods)
    await kubelet.start()
    stopping = asyncio.Event()
    running = asyncio.create_task(kubelet.run(stopping))
    try:
        yield OneNode(cluster, kubeconfig, folder / "kubelet")
    finally:
        stopping.set()
        await running
        await kubelet.switch_off()
        for uid in kubelet.containers.pods():
            kubelet.containers.forget(uid)
        await pods.close()
        await server.stop()
