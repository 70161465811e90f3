"""What `kubectl mps doctor` saw of a cluster, read from objects of the API. Nothing is judged
here."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from mpsd.admission.rules.requests import named, ours
from mpsd.admission.rules.rule import RequestContext
from mpsd.admission.rules.verdict import judge, modes_in
from mpsd.model.cluster_status import ClusterNode
from mpsd.model.fields import Fields
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.mpsnode import cluster_status, status_writes
from mpsd.model.names import NAME_LABEL
from mpsd.model.policy import Policy, RuleId, RuleMode
from mpsd.model.times import seconds
from mpsd.operations.doctor.rules.checks import Fact, Unknown, known
from mpsd.platform.rules.kubernetes_objects import (
    KubernetesNode,
    kubernetes_version,
    read_kubernetes_node,
    read_object,
)
from mpsd.status.rules.pods import PodSeen, quoted, read_pod_seen

Object: TypeAlias = Mapping[str, Any]
Objects: TypeAlias = Fact[Sequence[Object]]

# The rules of admission about ways to a GPU that no ledger sees; the others are about what a pod
# requests.
_BYPASSES = {
    RuleId.ENVIRONMENT_BLOCKED,
    RuleId.PRIVILEGED,
    RuleId.CAPABILITIES,
    RuleId.HOST_PATH,
    RuleId.MOUNT_PATH,
    RuleId.MPSD_FILES,
    RuleId.RUNTIME_CLASS,
    RuleId.UNASKED_VISIBLE_DEVICES,
    RuleId.UNASKED_PRIVILEGED,
    RuleId.UNASKED_HOST_PATH,
}


def inside(thing: Object | None, *keys: str) -> Any:
    """What an object of the API has at these keys; None where one of them is missing."""
    found: Any = thing
    for key in keys:
        found = (found or {}).get(key)
    return found


def _component(thing: Object) -> str:
    return inside(thing, "metadata", "labels", NAME_LABEL) or ""


def _variable(pod: Object, name: str) -> str:
    """The value in the first container of a pod, or of a template, that has it; empty: none has."""
    for container in inside(pod, "spec", "containers") or ():
        for one in container.get("env") or ():
            if one["name"] == name:
                return str(one.get("value", ""))
    return ""


@dataclass(frozen=True, slots=True)
class OwnPod:
    name: str
    #: Its app.kubernetes.io/name.
    component: str
    node: str
    ending: bool
    #: Why it does not run, as kubelet or the scheduler reports; empty where it does.
    trouble: str
    #: Of the container of mpsd itself.
    image: str
    #: The name under which it serves resource claims; empty where it serves none.
    claim_driver: str = ""


def read_own_pod(thing: Object, policy: Policy) -> OwnPod:
    seen = read_pod_seen(thing, policy)
    images = [one.get("image", "") for one in inside(thing, "spec", "containers") or ()]
    return OwnPod(
        name=seen.name.name,
        component=_component(thing),
        node=seen.node,
        ending=seen.terminating or seen.phase == "Succeeded",
        trouble="; ".join(_trouble(seen)),
        image=next((image for image in images if "kube-scheduler" not in image), ""),
        claim_driver=_variable(thing, "MPSD_DRA"),
    )


def _trouble(seen: PodSeen) -> Iterator[str]:
    if seen.phase == "Failed":
        yield f"{seen.reason}: {quoted(seen.message)}"
    for one in seen.waiting:
        if not one.is_plain:
            yield ": ".join(filter(None, (one.name, one.reason, quoted(one.message))))
    if seen.unscheduled and not seen.node:
        yield quoted(seen.unscheduled)


@dataclass(frozen=True, slots=True)
class Workload:
    #: As kubectl writes it, such as `ds`.
    kind: str
    name: str
    component: str
    #: Pods, as `ready`.
    wanted: int
    ready: int


def read_workload(thing: Object, kind: str) -> Workload:
    status = thing.get("status") or {}
    wanted = inside(thing, "spec").get("replicas", 1)
    ready = status.get("readyReplicas", 0)
    if kind == "ds":
        wanted = status.get("desiredNumberScheduled", 0)
        ready = status.get("numberReady", 0)
    return Workload(kind, thing["metadata"]["name"], _component(thing), wanted, ready)


@dataclass(frozen=True, slots=True)
class ClusterNodeFacts:
    node: KubernetesNode
    #: As it reports it, such as `v1.36.2`.
    kubelet: str
    #: As it reports it, such as `containerd://2.1.9`.
    runtime: str
    #: The resource of another device plugin that gives GPUs there, with its number; empty: none.
    whole_gpus: str


def read_machine(thing: Object, policy: Policy) -> ClusterNodeFacts:
    versions = inside(thing, "status", "nodeInfo") or {}
    return ClusterNodeFacts(
        node=read_kubernetes_node(thing),
        kubelet=versions.get("kubeletVersion") or "",
        runtime=versions.get("containerRuntimeVersion") or "",
        whole_gpus=", ".join(_whole_gpus(inside(thing, "status", "capacity") or {}, policy)),
    )


def _whole_gpus(amounts: Fields, policy: Policy) -> list[str]:
    found = named(amounts, policy.admission.other_gpus)
    return [f"{name}: {amount}" for name, amount in found if name not in ours(policy)]


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod of anybody's that is on a node of mpsd's, or waits for its GPUs."""

    seen: PodSeen
    #: How it gets at a GPU outside the ledger, in admission's words; empty where it does not.
    outside: tuple[str, ...]


def read_user(
    thing: Object, policy: Policy, facts: GpuFacts, namespaces: Mapping[str, Fields]
) -> PodFacts | None:
    """None where the pod has ended, or is exempt. namespaces: their labels, which choose the
    modes."""
    seen = read_pod_seen(thing, policy)
    is_exempt = seen.name.namespace in policy.admission.exempt_namespaces
    if is_exempt or seen.phase in ("Succeeded", "Failed"):
        return None
    found = read_object({"kind": "Pod", **thing})
    pod = found.pod
    if not pod:
        return PodFacts(seen, ())
    before = pod.annotations
    context = RequestContext(annotations_before=before, is_placed=True, is_changed=True)
    modes = modes_in(namespaces.get(seen.name.namespace, {}), policy.admission.rules).modes

    def outside() -> Iterator[str]:
        for one in judge(found, policy, facts, context):
            if one.rule in _BYPASSES and modes.get(one.rule) is RuleMode.ENFORCE:
                yield one.problem.fault
        for container in pod.containers:
            for whole in _whole_gpus(container.limits, policy):
                yield f"another device plugin gave it {whole}"

    return PodFacts(seen, tuple(outside()))


@dataclass(frozen=True)
class ClusterFacts:
    """What the API server answered, and what is read of that; reading raises Unknown where there
    was no answer.

    Objects are those of the API, none or one where an object of one name is meant. Where nodes were
    named, nodes, mpsnodes and own_pods are of these alone; a pod that has no node yet is one of
    them.
    """

    #: Seconds since 1970 by the clock of this machine.
    now: float
    #: The version of this command line.
    ours: str
    policy: Policy
    gpu_facts: GpuFacts
    #: What the API server answers of its own.
    version: Object
    #: How many seconds behind the API server's; below zero, ahead.
    own_clock: Fact[float]
    namespace: Objects
    definition: Objects
    own_pods: Objects
    daemon_sets: Objects
    deployments: Objects
    nodes: Objects
    mpsnodes: Objects
    validating: Objects
    mutating: Objects
    policies: Objects
    endpoints: Objects
    slices: Objects
    warnings: Objects
    namespaces: Objects
    pods: Objects

    @cached_property
    def kubernetes(self) -> tuple[int, int]:
        """Major and minor version."""
        if found := kubernetes_version(self.version):
            return found
        raise Unknown("the API server does not report its version")

    @cached_property
    def is_injected(self) -> bool:
        """Whether cert-manager serves the webhook's certificates."""
        return any("cert-manager.io/inject-ca-from" in str(one) for one in known(self.validating))

    @cached_property
    def workloads(self) -> tuple[Workload, ...]:
        daemon_sets = [read_workload(one, "ds") for one in known(self.daemon_sets)]
        deployments = [read_workload(one, "deploy") for one in known(self.deployments)]
        return *daemon_sets, *deployments

    def of_agents(self, name: str) -> str:
        """A variable of the agents, by their DaemonSet; empty where that does not have it."""
        for one in known(self.daemon_sets):
            if found := _variable(inside(one, "spec", "template"), name):
                return found
        return ""

    @cached_property
    def components(self) -> tuple[OwnPod, ...]:
        return tuple(read_own_pod(thing, self.policy) for thing in known(self.own_pods))

    @cached_property
    def machines(self) -> tuple[ClusterNodeFacts, ...]:
        return tuple(read_machine(thing, self.policy) for thing in known(self.nodes))

    @property
    def shared(self) -> list[KubernetesNode]:
        """The Nodes with mpsd's label."""
        return [one.node for one in self.machines if one.node.is_labelled]

    @cached_property
    def reports(self) -> Mapping[str, ClusterNode]:
        return {node.name: node for node in cluster_status(known(self.mpsnodes), self.now).nodes}

    @cached_property
    def node_clocks(self) -> Mapping[str, float]:
        """How many seconds each node's is behind the API server's, as far as that is known: when
        the node says that it wrote its MPSNode, against when the API server says so."""
        found = {}
        reporting = [one for one in known(self.mpsnodes) if inside(one, "status", "reportedAt")]
        for one in reporting:
            reported = seconds(inside(one, "status", "reportedAt"))
            written = status_writes(one)
            if reported is not None and written:
                found[str(one["metadata"]["name"])] = max(written) - reported
        if reporting and not found:
            raise Unknown("the API server has no managedFields of a node's status")
        return found

    @cached_property
    def users(self) -> tuple[PodFacts, ...]:
        """The pods on mpsd's nodes, and those that have no node yet."""
        namespaces = [one["metadata"] for one in known(self.namespaces)]
        labels = {one["name"]: one.get("labels") or {} for one in namespaces}
        ours = {None, "", *(one.name for one in self.shared)}
        there = [one for one in known(self.pods) if inside(one, "spec", "nodeName") in ours]
        found = [read_user(pod, self.policy, self.gpu_facts, labels) for pod in there]
        return tuple(filter(None, found))
