"""What `kubectl mps doctor` saw of a cluster, and how it is read from objects of the API.

Any JSON is read as far as it can be: nothing here raises, and nothing is judged.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mpsd.admission.rules.requests import named, ours
from mpsd.admission.rules.rule import RequestContext
from mpsd.admission.rules.verdict import judge, modes_in
from mpsd.model.cluster_status import ClusterNode
from mpsd.model.fields import Fields
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.names import NAME_LABEL
from mpsd.model.policy import Policy, RuleId, RuleMode
from mpsd.model.times import seconds
from mpsd.operations.doctor.rules.checks import Fact, Unknown
from mpsd.platform.rules.certificates import ANNOTATION, Validity, read_annotation
from mpsd.platform.rules.kubernetes_objects import read_kubernetes_node, read_object
from mpsd.status.rules.pods import quoted, read_pod_seen

# How a node is known to have NVIDIA GPUs: what NVIDIA's operator, node feature discovery and clouds write.
_GPU_LABELS: Mapping[str, str] = {
    "nvidia.com/gpu.present": "true",
    "feature.node.kubernetes.io/pci-10de.present": "true",
    "feature.node.kubernetes.io/pci-0302_10de.present": "true",
}
_GPU_KEYS = ("cloud.google.com/gke-accelerator", "aliyun.accelerator/nvidia_name", "k8s.amazonaws.com/accelerator")
# What of kube-scheduler's options can name extenders; the policies are of versions before 1.23.
_CONFIGURING = frozenset({"--config", "--policy-config-file", "--policy-configmap"})
_STATUS_FIELDS = ("toldAt", "driver", "version", "summary", "gpus", "domains", "grants", "conditions", "violations")
# The rules of admission about ways to a GPU that no ledger sees; the others are about what a pod requests.
_BYPASSES = frozenset(
    {
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
)


def _mapping(thing: object, *keys: str) -> Fields:
    """The mapping at these keys; empty where there is none."""
    for key in keys:
        thing = thing.get(key) if isinstance(thing, dict) else None
    return thing if isinstance(thing, dict) else {}


def _entries(thing: object, *keys: str) -> list[Fields]:
    """The mappings in the list at these keys."""
    found = _mapping(thing, *keys[:-1]).get(keys[-1])
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def _text(thing: object, *keys: str) -> str:
    found = _mapping(thing, *keys[:-1]).get(keys[-1])
    return found if isinstance(found, str) else ""


def _number(thing: object, *keys: str, absent: int = 0) -> int:
    found = _mapping(thing, *keys[:-1]).get(keys[-1])
    return found if type(found) is int else absent


# -- mpsd's own objects ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OwnPod:
    """A pod of mpsd's. component: its app.kubernetes.io/name. trouble: why it does not run, as kubelet or the scheduler
    reports; empty where it does or nothing is reported. restarts: of all its containers. ended: how the last one ended;
    empty where none has. image: of the container of mpsd itself.
    """

    name: str
    component: str
    node: str
    ending: bool
    trouble: str
    restarts: int
    ended: str
    image: str


def read_own_pod(thing: object, policy: Policy) -> OwnPod:
    seen = read_pod_seen(thing, policy)
    statuses = _entries(thing, "status", "containerStatuses")
    images = [_text(entry, "image") for entry in _entries(thing, "spec", "containers")]
    last = [_mapping(one, "lastState", "terminated") for one in statuses]
    failed = [f"{seen.reason}: {quoted(seen.message)}"] if seen.phase == "Failed" else []
    waiting = [
        f"{one.name}: {one.reason}" + (f": {quoted(one.message)}" if one.message else "")
        for one in seen.waiting
        if not one.is_plain
    ]
    unscheduled = [quoted(seen.unscheduled)] if seen.unscheduled and not seen.node else []
    return OwnPod(
        name=seen.name.name,
        component=_text(thing, "metadata", "labels", NAME_LABEL),
        node=seen.node,
        ending=seen.terminating or seen.phase == "Succeeded",
        trouble="; ".join([*failed, *waiting, *unscheduled]),
        restarts=sum(_number(one, "restartCount") for one in statuses),
        ended=next((_ended(one) for one in last if one), ""),
        image=next((image for image in images if "kube-scheduler" not in image), ""),
    )


def _ended(terminated: Fields) -> str:
    reason, code = _text(terminated, "reason"), _number(terminated, "exitCode", absent=-1)
    return f"{reason or 'ended'} (exit code {code})" if code >= 0 else reason


@dataclass(frozen=True, slots=True)
class Workload:
    """A DaemonSet or Deployment of mpsd's. kind: as kubectl writes it, such as `ds`. wanted, ready: pods."""

    kind: str
    name: str
    component: str
    wanted: int
    ready: int

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


def read_workload(thing: object, kind: str) -> Workload:
    """kind: `ds` or `deploy`."""
    wanted = (
        _number(thing, "status", "desiredNumberScheduled")
        if kind == "ds"
        else _number(thing, "spec", "replicas", absent=1)
    )
    return Workload(
        kind=kind,
        name=_text(thing, "metadata", "name"),
        component=_text(thing, "metadata", "labels", NAME_LABEL),
        wanted=wanted,
        ready=_number(thing, "status", "numberReady" if kind == "ds" else "readyReplicas"),
    )


@dataclass(frozen=True, slots=True)
class Definition:
    """MPSNode's definition. served: whether version v1alpha1 is. lacks: fields of a status that it drops and this mpsd
    writes.
    """

    established: bool
    served: bool
    lacks: tuple[str, ...]


def read_definition(thing: object) -> Definition:
    """thing: a CustomResourceDefinition."""
    said = [one.get("status") for one in _entries(thing, "status", "conditions") if one.get("type") == "Established"]
    version = next((one for one in _entries(thing, "spec", "versions") if one.get("name") == "v1alpha1"), None)
    schema = _mapping(version, "schema", "openAPIV3Schema", "properties", "status", "properties")
    lacks = tuple(name for name in _STATUS_FIELDS if schema and name not in schema)
    return Definition(not said or said[0] == "True", version is not None and version.get("served") is True, lacks)


@dataclass(frozen=True, slots=True)
class RightSeen:
    """Whether a component has a right that it needs. what: verb and resource."""

    component: str
    what: str
    allowed: bool


@dataclass(frozen=True, slots=True)
class Hook:
    """A webhook in a configuration. policy: failurePolicy. bundle: its caBundle; empty for none.

    serving: of the certificate that the webhook presents, as the configuration's annotation says.
    """

    kind: str
    name: str
    policy: str
    bundle: str
    serving: Fact[Validity]


def read_hooks(thing: object, kind: str) -> Iterator[Hook]:
    """The webhooks in a configuration."""
    untold = f"no webhook has reported it (annotation {ANNOTATION}): it is older, or has not registered itself yet"
    serving = read_annotation(_mapping(thing)) or Unknown(untold)
    for entry in _entries(thing, "webhooks"):
        bundle = _text(entry, "clientConfig", "caBundle")
        yield Hook(kind, _text(entry, "name"), _text(entry, "failurePolicy"), bundle, serving)


@dataclass(frozen=True, slots=True)
class CaBundleCertificate:
    """A certificate in a caBundle. ends_at: seconds since 1970."""

    subject: str
    ends_at: float


def ready_addresses(thing: object) -> int:
    """Of an Endpoints object."""
    return sum(len(_entries(one, "addresses")) for one in _entries(thing, "subsets"))


def is_refusal(event: object) -> bool:
    """Whether an Event says that an API server could not ask mpsd's webhook."""
    message = _text(event, "message")
    return "failed calling webhook" in message and "mpsd.io" in message


# -- nodes -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClusterNodeFacts:
    """A Node. gpus: why it is known to have NVIDIA GPUs, such as a label; empty where nothing says so. whole_gpus: the
    resource of another device plugin that gives GPUs there, with its number; empty where there is none.
    """

    name: str
    is_shared: bool
    gpus: str
    whole_gpus: str


def read_machine(thing: object, policy: Policy) -> ClusterNodeFacts:
    node = read_kubernetes_node(thing)
    others = [f"{name}: {amount}" for name, amount in _whole_gpus(_mapping(thing, "status", "capacity"), policy)]
    labels = [f"label {key}" for key, value in _GPU_LABELS.items() if node.labels.get(key) == value]
    labels += [f"label {key}" for key in _GPU_KEYS if key in node.labels]
    return ClusterNodeFacts(node.name, node.is_labelled, next(iter([*labels, *others]), ""), ", ".join(others))


def _whole_gpus(amounts: Mapping[str, object], policy: Policy) -> Iterator[tuple[str, object]]:
    """Resources of other device plugins."""
    for name, amount in named(amounts, policy.admission.other_gpus):
        if name not in ours(policy):
            yield name, amount


@dataclass(frozen=True, slots=True)
class Clock:
    """behind_s: how far a clock is behind the API server's; negative: ahead of it. of: whose."""

    of: str
    behind_s: float


def read_clock(thing: object) -> Clock | None:
    """How far the clock of a node is behind the API server's: when the node says that it wrote its MPSNode, against
    when the API server says that its status was written. None where either is missing.
    """
    told = seconds(_text(thing, "status", "toldAt"))
    written = [
        seconds(_text(entry, "time"))
        for entry in _entries(thing, "metadata", "managedFields")
        if "f:status" in _mapping(entry, "fieldsV1")
    ]
    times = [time for time in written if time is not None]
    if told is None or not times:
        return None
    return Clock(f"node {_text(thing, 'metadata', 'name')}", max(times) - told)


# -- pods of others ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod of anybody's that is on a node of mpsd's, or waits for its GPUs.

    asks: for GPU memory. outside: how it gets at a GPU outside the ledger, in admission's words; empty where it does
    not. whole_gpus: another resource of GPUs that it has. placed: a scheduler of mpsd's has written which GPU it has.
    """

    name: str
    node: str
    asks: bool
    outside: tuple[str, ...]
    whole_gpus: str
    scheduler: str
    placed: bool
    pending: bool


def read_user(thing: object, policy: Policy, facts: GpuFacts, namespaces: Mapping[str, Fields]) -> PodFacts | None:
    """None where the pod has ended, or is exempt. namespaces: their labels, which choose the modes."""
    seen = read_pod_seen(thing, policy)
    if seen.phase in ("Succeeded", "Failed") or seen.name.namespace in policy.admission.exempt_namespaces:
        return None
    found = read_object({"kind": "Pod", **thing} if isinstance(thing, dict) else thing)
    outside: Sequence[str] = ()
    whole = ""
    if found.pod:
        context = RequestContext(annotations_before=found.pod.annotations, is_placed=True, is_changed=True)
        modes = modes_in(namespaces.get(seen.name.namespace, {}), policy.admission.rules).modes
        judged = judge(found, policy, facts, context).found
        outside = [
            str(one.problem.fault)
            for one in judged
            if one.rule in _BYPASSES and modes.get(one.rule) is RuleMode.ENFORCE
        ]
        wholes = [pair for one in found.pod.containers for pair in _whole_gpus(one.limits, policy)]
        whole = f"{wholes[0][0]}: {wholes[0][1]}" if wholes else ""
    return PodFacts(
        name=f"{seen.name.namespace}/{seen.name.name}",
        node=seen.node,
        asks=seen.shared is not None,
        outside=tuple(outside),
        whole_gpus=whole,
        scheduler=seen.scheduler or "default-scheduler",
        placed=bool(seen.shared and seen.shared.choice),
        pending=seen.is_pending,
    )


@dataclass(frozen=True, slots=True)
class KubeScheduler:
    """A pod of the cluster's own kube-scheduler. configured: its command names a file of configuration."""

    name: str
    configured: bool


def read_kube_scheduler(thing: object) -> KubeScheduler | None:
    """None for any other pod. kubeadm and its like label theirs so."""
    metadata = _mapping(thing, "metadata")
    if metadata.get("namespace") != "kube-system" or _text(metadata, "labels", "component") != "kube-scheduler":
        return None
    words = [word for one in _entries(thing, "spec", "containers") for word in _command(one)]
    configured = any(word.partition("=")[0] in _CONFIGURING for word in words)
    return KubeScheduler(f"kube-system/{metadata.get('name')}", configured)


def _command(container: Fields) -> list[str]:
    parts = [container.get(part) for part in ("command", "args")]
    words = [str(word) for part in parts if isinstance(part, list) for word in part]
    return " ".join(words).split()  # as a shell takes them, which some clusters start it by


# -- all of it ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """now: seconds since 1970 by the clock of this machine. ours: the version of this command line.

    kubernetes: major and minor. namespace: whether mpsd's exists. definition: None where there is none. hooks: of
    mpsd's configurations. authorities: by caBundle. endpoints: addresses behind the webhook's Service that are ready.
    refusals: what API servers have reported of a webhook that they could not ask. mpsnodes: by name. users: pods on
    mpsd's nodes, and those without a node yet. kube_schedulers: those that run as pods of kube-system.
    """

    now: float
    ours: str
    kubernetes: Fact[tuple[int, int]]
    namespace: Fact[bool]
    definition: Fact[Definition | None]
    rights: Fact[tuple[RightSeen, ...]]
    pods: Fact[tuple[OwnPod, ...]]
    workloads: Fact[tuple[Workload, ...]]
    machines: Fact[tuple[ClusterNodeFacts, ...]]
    mpsnodes: Fact[Mapping[str, ClusterNode]]
    hooks: Fact[tuple[Hook, ...]]
    authorities: Fact[Mapping[str, tuple[CaBundleCertificate, ...]]]
    endpoints: Fact[int]
    refusals: Fact[tuple[str, ...]]
    own_clock: Fact[Clock]
    node_clocks: Fact[tuple[Clock, ...]]
    users: Fact[tuple[PodFacts, ...]]
    kube_schedulers: Fact[tuple[KubeScheduler, ...]]
