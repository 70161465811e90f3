"""Objects of the API as `kubectl mps doctor` looks at them.

One rule: any JSON is read as far as it can be; nothing here raises, and nothing is judged.
"""

from collections.abc import Iterator, Mapping, Sequence

from mpsd.admission.rules.requests import named, ours
from mpsd.admission.rules.rule import RequestContext
from mpsd.admission.rules.verdict import judge, modes_in
from mpsd.model.fields import FieldReader, Fields, Seconds
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.names import NAME_LABEL
from mpsd.model.pod import Container
from mpsd.model.policy import Policy, RuleMode
from mpsd.operations.doctor.rules.cluster_facts import (
    Clock,
    ClusterNodeFacts,
    Definition,
    Hook,
    KubeScheduler,
    OwnPod,
    PodFacts,
    Workload,
)
from mpsd.operations.doctor.rules.cluster_pods import BYPASSES
from mpsd.operations.doctor.rules.facts import Unknown
from mpsd.platform.rules.certificates import ANNOTATION, read_annotation
from mpsd.platform.rules.kubernetes_objects import read_kubernetes_node, read_object
from mpsd.status.rules.pods import quoted, read_pod_seen

# How a node is known to have NVIDIA GPUs: what NVIDIA's operator, node feature discovery and clouds write.
_GPU_LABELS: Mapping[str, str] = {
    "nvidia.com/gpu.present": "true",
    "feature.node.kubernetes.io/pci-10de.present": "true",
    "feature.node.kubernetes.io/pci-0302_10de.present": "true",
}
_GPU_KEYS = ("cloud.google.com/gke-accelerator", "aliyun.accelerator/nvidia_name", "k8s.amazonaws.com/accelerator")
_SERVING_UNTOLD = Unknown(
    f"no webhook has told it (annotation {ANNOTATION}): it is of an older mpsd, or has not registered itself yet"
)
# What of kube-scheduler's options can name extenders; the policies are of versions before 1.23.
_CONFIGURING = frozenset({"--config", "--policy-config-file", "--policy-configmap"})
_TOLD = ("toldAt", "driver", "version", "summary", "gpus", "domains", "grants", "conditions", "violations")


def read_own_pod(thing: object, policy: Policy) -> OwnPod:
    seen = read_pod_seen(thing, policy)
    shape, fields = FieldReader(), thing if isinstance(thing, dict) else {}
    labels = shape.mapping(shape.mapping(fields, "metadata", ""), "labels", "metadata")
    status, spec = shape.mapping(fields, "status", ""), shape.mapping(fields, "spec", "")
    statuses = [entry for _path, entry in shape.entries(status, "containerStatuses", "status")]
    images = [shape.text(entry, "image", path) for path, entry in shape.entries(spec, "containers", "spec")]
    last = [shape.mapping(shape.mapping(one, "lastState", ""), "terminated", "") for one in statuses]
    conditions = [entry for _path, entry in shape.entries(status, "conditions", "status")]
    said = [
        f"{one.name}: {one.reason}" + (f": {quoted(one.message)}" if one.message else "")
        for one in seen.waiting
        if not one.is_plain
    ]
    failed = [f"{seen.reason}: {quoted(seen.message)}"] if seen.phase == "Failed" else []
    unscheduled = [quoted(seen.unscheduled)] if seen.unscheduled and not seen.node else []
    return OwnPod(
        name=seen.name.name,
        component=shape.text(labels, NAME_LABEL, "metadata.labels"),
        node=seen.node,
        ready=any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions),
        ending=seen.terminating or seen.phase == "Succeeded",
        trouble="; ".join([*failed, *said, *unscheduled]),
        restarts=sum(shape.number(one, "restartCount", "", absent=0) or 0 for one in statuses),
        ended=next((_ended(shape, one) for one in last if one), ""),
        image=next((image for image in images if "kube-scheduler" not in image), ""),
    )


def _ended(shape: FieldReader, terminated: Fields) -> str:
    reason = shape.text(terminated, "reason", "")
    code = shape.number(terminated, "exitCode", "", absent=None)
    return f"{reason or 'ended'} (exit code {code})" if code is not None else reason


def read_workload(thing: object, kind: str) -> Workload:
    """kind: `ds` or `deploy`."""
    shape, fields = FieldReader(), thing if isinstance(thing, dict) else {}
    metadata, spec, status = (shape.mapping(fields, key, "") for key in ("metadata", "spec", "status"))
    labels = shape.mapping(metadata, "labels", "metadata")
    place, ready = (status, "numberReady") if kind == "ds" else (spec, "readyReplicas")
    number = shape.number(place, "desiredNumberScheduled" if kind == "ds" else "replicas", "", absent=None)
    return Workload(
        kind=kind,
        name=shape.text(metadata, "name", "metadata"),
        component=shape.text(labels, NAME_LABEL, "metadata.labels"),
        wanted=number if number is not None else int(kind == "deploy"),
        ready=shape.number(status, ready, "status", absent=0) or 0,
    )


def read_machine(thing: object, policy: Policy) -> ClusterNodeFacts:
    node = read_kubernetes_node(thing)
    shape, fields = FieldReader(), thing if isinstance(thing, dict) else {}
    capacity = shape.mapping(shape.mapping(fields, "status", ""), "capacity", "status")
    others = [
        f"{name}: {amount}" for name, amount in named(capacity, policy.admission.other_gpus) if name not in ours(policy)
    ]
    labels = [f"label {key}" for key, value in _GPU_LABELS.items() if node.labels.get(key) == value]
    labels += [f"label {key}" for key in _GPU_KEYS if key in node.labels]
    return ClusterNodeFacts(node.name, node.is_labelled, next(iter([*labels, *others]), ""), ", ".join(others))


def read_definition(thing: object) -> Definition:
    """A CustomResourceDefinition."""
    shape, fields = FieldReader(), thing if isinstance(thing, dict) else {}
    spec, status = shape.mapping(fields, "spec", ""), shape.mapping(fields, "status", "")
    conditions = [entry for _path, entry in shape.entries(status, "conditions", "status")]
    said = [one.get("status") for one in conditions if one.get("type") == "Established"]
    served = [entry for _path, entry in shape.entries(spec, "versions", "spec") if entry.get("name") == "v1alpha1"]
    schema: Fields = served[0] if served else {}
    for step in ("schema", "openAPIV3Schema", "properties", "status", "properties"):
        schema = shape.mapping(schema, step, "")
    is_served = bool(served) and served[0].get("served") is True
    lacks = tuple(name for name in _TOLD if schema and name not in schema)
    return Definition(not said or said[0] == "True", is_served, lacks)


def read_hooks(thing: object, kind: str, seconds: Seconds) -> Iterator[Hook]:
    """Those of a webhook configuration."""
    shape, fields = FieldReader(), thing if isinstance(thing, dict) else {}
    serving = read_annotation(fields, seconds) or _SERVING_UNTOLD
    for path, entry in shape.entries(fields, "webhooks", ""):
        configured = shape.mapping(entry, "clientConfig", path)
        policy = shape.text(entry, "failurePolicy", path)
        name, bundle = shape.text(entry, "name", path), shape.text(configured, "caBundle", path)
        yield Hook(kind, name, policy, bundle, serving)


def ready_addresses(thing: object) -> int:
    """Of an Endpoints object."""
    shape, fields = FieldReader(), thing if isinstance(thing, dict) else {}
    subsets = [entry for _path, entry in shape.entries(fields, "subsets", "")]
    return sum(len([*shape.entries(one, "addresses", "subsets")]) for one in subsets)


def read_clock(thing: object, seconds: Seconds) -> Clock | None:
    """How far the clock of a node is behind the API server's: when it says that it told its MPSNode, against when the
    API server says that its status was written. None where that is not said.
    """
    shape, fields = FieldReader(), thing if isinstance(thing, dict) else {}
    metadata, status = shape.mapping(fields, "metadata", ""), shape.mapping(fields, "status", "")
    told = seconds(shape.text(status, "toldAt", "status"))
    written = [
        seconds(shape.text(entry, "time", path))
        for path, entry in shape.entries(metadata, "managedFields", "metadata")
        if "f:status" in shape.mapping(entry, "fieldsV1", path)
    ]
    times = [time for time in written if time is not None]
    if told is None or not times:
        return None
    return Clock(f"node {shape.text(metadata, 'name', 'metadata')}", max(times) - told)


def is_refusal(event: object) -> bool:
    """Whether an Event says that an API server could not ask mpsd's webhook."""
    message = event.get("message") if isinstance(event, dict) else None
    return isinstance(message, str) and "failed calling webhook" in message and "mpsd.io" in message


def read_kube_scheduler(thing: object) -> KubeScheduler | None:
    """None for any other pod. kubeadm and its like label theirs so."""
    shape, fields = FieldReader(), thing if isinstance(thing, dict) else {}
    metadata, spec = shape.mapping(fields, "metadata", ""), shape.mapping(fields, "spec", "")
    labels = shape.mapping(metadata, "labels", "metadata")
    if metadata.get("namespace") != "kube-system" or labels.get("component") != "kube-scheduler":
        return None
    words = [word for _path, one in shape.entries(spec, "containers", "spec") for word in _command(one)]
    configured = any(word.partition("=")[0] in _CONFIGURING for word in words)
    return KubeScheduler(f"kube-system/{metadata.get('name')}", configured)


def _command(container: Fields) -> list[str]:
    parts = [container.get(part) for part in ("command", "args")]
    words = [str(word) for part in parts if isinstance(part, list) for word in part]
    return " ".join(words).split()  # as a shell takes them, which some clusters start it by


def read_said(thing: object, policy: Policy, facts: GpuFacts, namespaces: Mapping[str, Fields]) -> PodFacts | None:
    """A pod of anybody's; None where it has ended, or is exempt. namespaces: their labels, which choose the modes."""
    seen = read_pod_seen(thing, policy)
    if seen.phase in ("Succeeded", "Failed") or seen.name.namespace in policy.admission.exempt_namespaces:
        return None
    found = read_object({"kind": "Pod", **thing} if isinstance(thing, dict) else thing)
    outside: Sequence[str] = ()
    whole = ""
    if found.pod:
        circumstances = RequestContext(annotations_before=found.pod.annotations, is_placed=True, is_changed=True)
        modes = modes_in(namespaces.get(seen.name.namespace, {}), policy.admission.rules).modes
        judged = judge(found, policy, facts, circumstances).found
        outside = [
            str(one.problem.fault) for one in judged if one.rule in BYPASSES and modes.get(one.rule) is RuleMode.ENFORCE
        ]
        whole = next((f"{name}: {amount}" for name, amount in _whole(found.pod.containers, policy)), "")
    return PodFacts(
        name=f"{seen.name.namespace}/{seen.name.name}",
        node=seen.node,
        asks=seen.shared is not None,
        outside=tuple(outside),
        whole_gpus=whole,
        scheduler=seen.scheduler or "default-scheduler",
        placed=bool(seen.shared and seen.shared.choice),
        pending=seen.is_pending,
        unscheduled=seen.unscheduled,
    )


def _whole(containers: Sequence[Container], policy: Policy) -> Iterator[tuple[str, object]]:
    for container in containers:
        for name, amount in named(container.limits, policy.admission.other_gpus):
            if name not in ours(policy):
                yield name, amount
