"""mpsd on a node with real GPUs: the chart as shipped, but for images, compute mode and what a rig
lacks."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.e2e.cluster import Cluster, Object
from tests.e2e.installation import (
    COUNT,
    MEMORY,
    PERCENT,
    Images,
    Installation,
    installed,
    labelled_node,
    values_of,
)
from tests.e2e.waiting import eventually
from tests.manifests.helm import merged

# to test these tests: cards to simulate, such as H200
SIMULATE = os.environ.get("MPSD_E2E_SIMULATE", "")
# CUDA's own context with all SMs of the largest card, and the last piece that was refused.
CONTEXT_MIB = 600
REAL = ("python", "-P", "-m", "mpsd.bench.cuda_client")
_SPEAKERS = {"mpsd-agent", "mpsd-webhook", "mpsd-scheduler"}
_NOTHING: Object = {}


@dataclass(frozen=True, slots=True)
class GpuInstallation(Installation):
    """Of as many GPUs as the node has, whatever they are. on_rig: on a node of ours, which lacks a
    network of pods."""

    on_rig: bool

    def objects(self, more: Object = _NOTHING) -> list[Object]:
        things = Installation.objects(self, more)
        if self.on_rig:
            for thing in things:
                _on_the_host(thing)
        return things

    def gpus(self) -> list[Object]:
        """As `mpsd status` has them: `uuid`, `memoryMiB`, `sms` and more."""
        return self.status()["gpus"]

    def wait_until_offered(self) -> None:
        def is_offered() -> bool:
            offered, gpus = self.allocatable(), self.told().get("gpus", ())
            wanted = {PERCENT: str(100 * len(gpus)), COUNT: str(len(gpus))}
            return bool(gpus) and wanted.items() <= offered.items() and int(offered[MEMORY]) > 0

        eventually(is_offered, "the GPUs in the node's status", within_s=90.0)

    def domain_of(self, uuid: str) -> Object:
        """As `mpsd status` shows it: `name`, `daemonPid` and more."""
        (found,) = [one for one in self.status().get("domains", ()) if uuid in one["gpus"]]
        return dict(found)

    def clients_of(self, pod: str) -> int:
        return sum(
            grant["clients"]
            for grant in self.status()["grants"]
            if grant["pod"].rpartition("/")[2] == pod
        )


@contextmanager
def on_gpus(
    cluster: Cluster, images: Images, *, on_rig: bool, simulate: str
) -> Iterator[GpuInstallation]:
    """simulate: the cards to simulate, or empty for those that are there."""
    values = values_of(images, simulate) | {"policy": {"exclusive_process": False}}
    if on_rig:
        values = merged(values, {"webhook": {"replicas": 1}, "scheduler": {"replicas": 1}})
    with installed(
        GpuInstallation(cluster, images, labelled_node(cluster), values, on_rig)
    ) as running:
        yield running


def _on_the_host(thing: Object) -> None:
    """Pods have no network on a rig, so who speaks to the API has the machine's, where each port is
    there once."""
    if thing["metadata"]["name"] not in _SPEAKERS or thing["kind"] not in {
        "DaemonSet",
        "Deployment",
    }:
        return
    if thing["kind"] == "Deployment":
        thing["spec"]["strategy"] = {"type": "Recreate"}
    pod = thing["spec"]["template"]["spec"]
    pod["hostNetwork"] = True
    for container in pod["containers"]:
        if container["name"] == "scheduler":
            (listen,) = (one for one in container["env"] if one["name"] == "MPSD_LISTEN")
            listen["value"] = "127.0.0.1:9458,0.0.0.0:9457"
            container["ports"] = [port for port in container["ports"] if port["name"] != "readers"]
