"""mpsd as pods: what `helm template` makes, with the images' names and simulated GPUs among the
values."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import TypeVar

from tests.e2e.cluster import Cluster, Object, listed
from tests.e2e.machine import Machine
from tests.e2e.waiting import eventually
from tests.manifests.helm import merged, rendered_by_helm
from tests.manifests.rendering import called

SYSTEM = "mpsd-system"
CONTROL, AGENT, SCHEDULER = "mps-control-daemon", "mpsd-agent", "mpsd-scheduler"
IN_AGENT = ("exec", f"daemonset/{AGENT}", "-n", SYSTEM, "--")
CONFIGURATIONS = ("validatingwebhookconfiguration", "mutatingwebhookconfiguration")
MEMORY, PERCENT, COUNT = (
    "aliyun.com/gpu-mem",
    "aliyun.com/gpu-core.percentage",
    "aliyun.com/gpu-count",
)
# Two GPUs of 24 062 MiB, of which 23 units of a GiB each are promised.
SIMULATED = "A30x2"
GPUS, UNITS = 2, 23

_NOTHING: Object = {}
_LABEL = "app.kubernetes.io/name"
# The first process of the container, which sees those of the host: nobody else is called by these
# words.
_KILL_CONTROL = """
import os, pathlib
for process in pathlib.Path("/proc").glob("[0-9]*"):
    words = (process / "cmdline").read_bytes().split(b"\\0")
    if words[0].endswith(b"/init/tini") and b"control" in words:
        os.kill(int(process.name), 9)
"""


@dataclass(frozen=True, slots=True)
class Images:
    """kube_scheduler: empty for an installation without a second scheduler."""

    mpsd: str
    kube_scheduler: str = ""


def values_of(images: Images, simulate: str) -> Object:
    """Those of the chart. simulate: the cards to simulate, or empty for those that are there."""
    given: Object = {"image": _image(images.mpsd)}
    if simulate:
        arguments = {"extraArgs": [f"--simulate={simulate}"]}
        given |= {"control": arguments, "agent": arguments}
    if images.kube_scheduler:
        given["scheduler"] = {"enabled": True, "kubeScheduler": _image(images.kube_scheduler)}
    return given


def _image(name: str) -> Object:
    repository, _colon, tag = name.rpartition(":")
    return {"repository": repository, "tag": tag}


@dataclass(frozen=True, slots=True)
class Installation:
    """node: the one node that it runs on. values: of the chart."""

    cluster: Cluster
    images: Images
    node: str
    values: Object

    @property
    def image(self) -> str:
        return self.images.mpsd

    def objects(self, more: Object = _NOTHING) -> list[Object]:
        """more: values beside those of the installation."""
        given = merged(merged(self.values, more), {"createNamespace": True})
        return deepcopy([*rendered_by_helm(given, self.cluster.version)])

    def apply(self, more: Object = _NOTHING) -> None:
        self.cluster.apply_all(self.objects(more))

    def apply_without(self, more: Object) -> None:
        before = self.objects()
        self.cluster.apply_all(before)
        names = {called(thing) for thing in before}
        left = [thing for thing in self.objects(more) if called(thing) not in names]
        self.cluster.do("delete", "-f", "-", given=listed(left))

    def uninstall(self) -> None:
        kinds = "validatingwebhookconfigurations,mutatingwebhookconfigurations"
        self.cluster.kubectl("delete", kinds, "mpsd-webhook", "--ignore-not-found")
        self.cluster.kubectl(
            "delete",
            "-n",
            SYSTEM,
            "daemonset,deployment",
            "--all",
            "--cascade=foreground",
            within_s=120,
        )
        rest = listed(self.objects())
        self.cluster.kubectl(
            "delete", "-f", "-", "--ignore-not-found", "--wait=false", given=rest, within_s=120
        )

    def pods(self, name: str) -> list[Object]:
        """Those of a component (control, agent, webhook, scheduler) that are not on their way
        out."""
        found = self.cluster.get("pods", "-n", SYSTEM, "-l", f"{_LABEL}=mpsd-{name}")["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def is_ready(self, name: str) -> bool:
        pods = self.pods(name)
        return bool(pods) and all(
            any(
                said["type"] == "Ready" and said["status"] == "True"
                for said in pod["status"].get("conditions", ())
            )
            for pod in pods
        )

    def wait_until_ready(self) -> None:
        """All pods are, and kubelet counts the GPUs among what it has."""
        for name in (
            "control",
            "agent",
            "webhook",
            *(["scheduler"] if self.images.kube_scheduler else []),
        ):
            eventually(lambda name=name: self.is_ready(name), f"{name} ready", within_s=180.0)
        self.wait_until_offered()

    def allocatable(self) -> dict[str, str]:
        return self.cluster.get("node", self.node)["status"]["allocatable"]

    def wait_until_offered(self) -> None:
        wanted = {MEMORY: str(GPUS * UNITS), PERCENT: str(100 * GPUS), COUNT: str(GPUS)}
        eventually(
            lambda: wanted.items() <= self.allocatable().items(),
            "the GPUs in the node's status",
            within_s=60.0,
        )

    def agent(self) -> str:
        names = [pod["metadata"]["name"] for pod in self.pods("agent")]
        assert len(names) == 1, names
        return str(names[0])

    def kill_agent(self) -> str:
        """Without any grace, so that the next one may start while it still ends."""
        agent = self.agent()
        self.cluster.do("delete", "pod", agent, "-n", SYSTEM, "--grace-period=0", "--force")
        return agent

    def wait_for_another_agent(self, agent: str) -> None:
        eventually(
            lambda: self.agent() != agent and self.is_ready("agent"),
            "another agent",
            within_s=150.0,
        )

    def daemons(self) -> dict[str, int]:
        """Their pids on the host, by domain; 0 where there is none."""
        domains = self.status().get("domains", ())
        return {domain["name"]: domain.get("daemonPid", 0) for domain in domains}

    def kill_control(self) -> None:
        (pod,) = self.pods("control")
        restarts = pod["status"]["containerStatuses"][0]["restartCount"]
        self.cluster.kubectl(
            "exec", f"daemonset/{CONTROL}", "-n", SYSTEM, "--", "python", "-c", _KILL_CONTROL
        )

        def is_back() -> bool:
            (pod,) = self.pods("control")
            (status,) = pod["status"]["containerStatuses"]
            return bool(status["restartCount"] == restarts + 1 and status["ready"])

        eventually(is_back, "control started again", within_s=60.0)

    def told(self) -> Object:
        """The status of its MPSNode."""
        return self.cluster.get("mpsnode", self.node).get("status", {})

    def granted_mib(self, namespace: str) -> dict[str, int]:
        """By pod, on each of its GPUs."""
        named = {
            tuple(grant["pod"].split("/")): grant["memoryMiB"]
            for grant in self.told().get("grants", ())
        }
        return {
            name: memory_mib for (where, name), memory_mib in named.items() if where == namespace
        }

    def is_ledger_at_zero(self) -> bool:
        told = self.told()
        assert told.get("gpus"), "nobody has told of GPUs"
        held = [gpu[field] for gpu in told["gpus"] for field in ("grantedMiB", "grantedPercent")]
        return not told.get("grants") and not any(held)

    def status(self) -> Object:
        """What `mpsd status` says on the node, which is never late."""
        return json.loads(self.status_text("-o", "json"))

    def status_text(self, *options: str) -> str:
        return self.cluster.do(*IN_AGENT, "mpsd", "status", *options).out

    def logs(self, name: str) -> str:
        names = [pod["metadata"]["name"] for pod in self.pods(name)]
        return "".join(self.cluster.do("logs", "-n", SYSTEM, each).out for each in names)

    def wait_until_closed(self) -> None:
        """The API server takes no pod any more that the webhook has not judged."""
        for kind in CONFIGURATIONS:
            eventually(
                lambda kind=kind: (
                    self.cluster.get(kind, "mpsd-webhook")["webhooks"][0]["failurePolicy"] == "Fail"
                ),
                f"{kind} fails closed",
            )

    def restart_kubelet(self, machine: Machine) -> None:
        """Until both resources are registered with the new one."""

        def registered() -> int:
            return self.logs("agent").count('"registered"')

        before = registered()
        machine.kubelet("kill")
        machine.kubelet("start")
        eventually(lambda: registered() >= before + 2, "both resources again")

    def as_it_stands(self) -> str:
        looks = [
            ("get", "pods", "-o", "wide"),
            ("get", "events"),
            ("logs", "-l", f"{_LABEL} in (mpsd-control, mpsd-agent, mpsd-webhook, mpsd-scheduler)"),
        ]
        looks.append((*looks[-1], "--previous"))
        more = {"logs": ("--tail=40", "--prefix", "--all-containers")}
        said = (self.cluster.kubectl(*look, "-n", SYSTEM, *more.get(look[0], ())) for look in looks)
        return "\n\n".join(f"{one.out}{one.err}" for one in said)

    def put_where(self, node_labels: dict[str, str]) -> None:
        """By their node selector."""
        patch = json.dumps(
            [{"op": "replace", "path": "/spec/template/spec/nodeSelector", "value": node_labels}]
        )
        for name in (CONTROL, AGENT):
            self.cluster.do("patch", "daemonset", name, "-n", SYSTEM, "--type=json", "-p", patch)


Installed = TypeVar("Installed", bound=Installation)


def labelled_node(cluster: Cluster) -> str:
    nodes = cluster.get("nodes", "-l", "ack.node.gpu.schedule=mps")["items"]
    assert len(nodes) == 1, "one node must have the label ack.node.gpu.schedule=mps"
    return nodes[0]["metadata"]["name"]


@contextmanager
def installed(installation: Installed) -> Iterator[Installed]:
    """Installs, and takes everything away again, in the order of docs/install.md; but on a cluster
    of with-cluster.sh, which ends with the tests."""
    cluster = installation.cluster
    eventually(
        lambda: not cluster.kubectl("get", "namespace", SYSTEM).ok,
        f"an old {SYSTEM} gone",
        within_s=60.0,
    )
    try:
        installation.apply()
        try:
            installation.wait_until_ready()
        except AssertionError as late:
            late.add_note(installation.as_it_stands())
            raise
        yield installation
    finally:
        if "MPSD_E2E_STATE" not in os.environ:
            installation.uninstall()
