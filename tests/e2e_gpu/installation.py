"""mpsd on a node with real GPUs: the manifests as shipped, but for images, compute mode and what a rig lacks."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

import mpsd
from tests.e2e.cluster import Cluster, Object
from tests.e2e.installation import (
    COUNT,
    MEMORY,
    PERCENT,
    SYSTEM,
    Images,
    Installation,
    installed,
    labelled_node,
    simulating,
)
from tests.e2e.waiting import eventually

SIMULATE = os.environ.get("MPSD_E2E_SIMULATE", "")  # to test these tests: cards to simulate, such as H200
# CUDA's own context with all SMs of the largest card, and the last piece that was refused.
CONTEXT_MIB = 600
REAL = ("python", "-P", "-m", "mpsd.mps.cuda_client")
_LIMITS = Path(mpsd.__file__).parents[1] / "limits"
_ALONE: Object = {"replicas": 1, "strategy": {"type": "Recreate", "rollingUpdate": None}}


@dataclass(frozen=True, slots=True)
class GpuInstallation(Installation):
    """Of as many GPUs as the node has, whatever they are."""

    def gpus(self) -> list[Object]:
        """As `mpsd status` has them: `uuid`, `memory_mib`, `sms` and more."""
        found: list[Object] = self.status()["gpus"]
        return found

    def wait_until_offered(self) -> None:
        def is_offered() -> bool:
            offered, gpus = self.allocatable(), self.told().get("gpus", ())
            wanted = {PERCENT: str(100 * len(gpus)), COUNT: str(len(gpus))}
            return bool(gpus) and wanted.items() <= offered.items() and int(offered[MEMORY]) > 0

        eventually(is_offered, "the GPUs in the node's status", within_s=90.0)

    def domain_of(self, uuid: str) -> Object:
        """As `mpsd status` shows it: `name`, `daemon_pid` and more."""
        (found,) = [domain for domain in self.status()["domains"] if uuid in domain["gpus"]]
        return dict(found)

    def clients_of(self, pod: str) -> int:
        """How many of its processes mpsd sees on the GPU."""
        return sum(grant["clients"] for grant in self.status()["grants"] if grant["pod"] == pod)


@contextmanager
def on_gpus(
    cluster: Cluster, images: Images, folder: Path, *, on_rig: bool, simulate: str
) -> Iterator[GpuInstallation]:
    """simulate: the cards to simulate, or empty for those that are there."""
    policy = yaml.safe_load((_LIMITS / "policy.yaml").read_text()) | {"exclusive_process": False}
    (folder / "policy.yaml").write_text(yaml.safe_dump(policy, sort_keys=False))
    merged = {"name": "mpsd-limits", "namespace": "mpsd-system", "behavior": "merge", "files": ["policy.yaml"]}
    patches = _on_a_rig() if on_rig else []
    if simulate:
        patches.append(simulating(simulate))
    installation = GpuInstallation(cluster, images, labelled_node(cluster), folder)
    with installed(installation, *patches, configMapGenerator=[merged]) as running:
        yield running


def _on_a_rig() -> list[Object]:
    """Pods have no network there, so who speaks to the API has the machine's, where each port is there once."""
    metrics = {"name": "MPSD_LISTEN", "value": "127.0.0.1:9458,0.0.0.0:9457"}
    elsewhere = {"name": "scheduler", "env": [metrics], "ports": [{"containerPort": 9447, "$patch": "delete"}]}
    return [
        _on_the_host("DaemonSet", "mpsd-agent", {}),
        _on_the_host("Deployment", "mpsd-webhook", _ALONE),
        _on_the_host("Deployment", "mpsd-scheduler", _ALONE, elsewhere),
    ]


def _on_the_host(kind: str, name: str, fields: Object, *containers: Object) -> Object:
    template: Object = {"hostNetwork": True} | ({"containers": list(containers)} if containers else {})
    return {
        "patch": json.dumps(
            {
                "apiVersion": "apps/v1",
                "kind": kind,
                "metadata": {"name": name, "namespace": SYSTEM},
                "spec": {**fields, "template": {"spec": template}},
            }
        )
    }
