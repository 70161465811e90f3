"""Reads decoded Kubernetes objects: the pod in one, and Nodes. Nothing here raises."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mpsd.model.fields import FieldReader, Fields, as_mapping, at
from mpsd.model.pod import NodeSelectorTerm, NodeWishes, Pod, read_pod
from mpsd.model.problem import Problem, printable, shown, shown_name

# v1.30.4-gke.1348000; of a build without a version v0.0.0
_GIT_VERSION = re.compile(r"v([1-9]\d*)\.(\d+)\.")
_CORE = frozenset({""})
_BATCH = frozenset({"batch"})
_APPS = frozenset({"apps", "extensions"})
_TEMPLATE = ("spec", "template")
_KINDS = {  # with a pod: the API groups that the kind comes from, and the steps to the pod
    "Pod": (_CORE, ()),
    "PodTemplate": (_CORE, ("template",)),
    "ReplicationController": (_CORE, _TEMPLATE),
    "Job": (_BATCH, _TEMPLATE),
    "CronJob": (_BATCH, ("spec", "jobTemplate", *_TEMPLATE)),
    **dict.fromkeys(("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"), (_APPS, _TEMPLATE)),
}


def kubernetes_version(answer: Fields) -> tuple[int, int] | None:
    """Major and minor version, of gitVersion at /version (major and minor are empty in builds of
    some distributions); None where it does not say."""
    if found := _GIT_VERSION.match(str(answer.get("gitVersion", ""))):
        return int(found[1]), int(found[2])
    return None


@dataclass(frozen=True, slots=True)
class KubernetesObject:
    name: str  # kind, namespace and name in one
    namespace: str  # empty for a kind without a pod that names none
    pod: Pod | None  # None for a kind that holds none, or where none can be found
    problems: tuple[Problem, ...]
    unread: str = ""  # why nobody has looked for a pod in it; empty where somebody has


def objects_in(document: object) -> Iterator[object]:
    """The document, or the items of a List, PodList and so on, however nested."""
    pending = [document]
    while pending:
        thing = pending.pop()
        items = _items(thing)
        if items is None:
            yield thing
        else:
            pending.extend(reversed(items))


def _items(thing: object) -> list[object] | None:
    """The items, with the kind of a typed list; None for what is no list."""
    fields = as_mapping(thing)
    kind = fields.get("kind")
    items = fields.get("items", False)
    if not isinstance(kind, str) or not kind.endswith("List") or not isinstance(items, list | None):
        return None
    typed: list[object] = []
    for item in items or ():
        if isinstance(item, dict) and kind != "List":
            item = {
                "kind": kind.removesuffix("List"),
                "apiVersion": fields.get("apiVersion"),
                **item,
            }
        typed.append(item)
    return typed


def read_object(thing: object, namespace: str = "") -> KubernetesObject:
    """The object with every reason why it cannot be read. namespace: the one it is created in,
    empty for the one that it names itself."""
    if not isinstance(thing, dict):
        what = ("the document", shown(thing), "is not a Kubernetes object")
        problem = Problem("not-an-object", *what, "start it with apiVersion and kind")
        return KubernetesObject("(not an object)", namespace, None, (problem,))
    shape = FieldReader()
    kind = shape.text(thing, "kind", "")
    if thing.get("kind") in (None, ""):
        remedy = "add it, such as kind: Pod"
        shape.problems.append(Problem("field-missing", "kind", "", "is missing", remedy))
    if kind == "List" or (kind.endswith("List") and "items" in thing):
        value = shown(thing.get("items"))
        remedy = "write the items as a list of objects"
        shape.problems.append(Problem("wrong-type", "items", value, "is not one object", remedy))
    version = thing.get("apiVersion")
    group = None  # it names no version
    if isinstance(version, str):
        group = version.rpartition("/")[0]
    metadata = as_mapping(thing.get("metadata"))
    place = namespace or _text(metadata, "namespace")
    if kind in _KINDS:
        place = place or "default"
    own = _text(metadata, "name") or f"{_text(metadata, 'generateName')}*"
    if own == "*":
        own = "(no name)"
    name = f"{printable(kind) or '(no kind)'} {'/'.join(filter(None, (place, own)))}"
    pod = None
    unread = ""
    if kind in _KINDS and (group is None or group in _KINDS[kind][0]):
        pod = _pod(shape, kind, thing)
    else:
        unread = _unread(kind, group, version)
    if shape.too_many:
        return KubernetesObject(name, place, None, (shape.too_many,))
    return KubernetesObject(name, place, pod, tuple(shape.problems), unread)


def _pod(shape: FieldReader, kind: str, thing: Fields) -> Pod | None:
    path = ""
    fields = thing
    for step in _KINDS[kind][1]:
        inner = shape.needed(fields, step, path)
        if inner is None:
            return None
        path = at(path, step)
        fields = inner
    return read_pod(shape, fields, path)


def _unread(kind: str, group: str | None, version: object) -> str:
    """What is reported of a kind that may make pods; empty for those of Kubernetes itself, by
    group."""
    in_group = group is not None and ("." not in group or group.endswith(".k8s.io"))
    if in_group and kind not in _KINDS and not f"{group}".endswith(".x-k8s.io"):
        return ""
    return (
        f"mpsd does not know {printable(kind)} of {printable(str(version or 'no apiVersion'))}, and"
        f" has looked for no pods in it; it reads {', '.join(_KINDS)} of Kubernetes itself"
    )


def _text(fields: Fields, key: str) -> str:
    value = fields.get(key)
    if isinstance(value, str):
        return shown_name(value)
    return ""


# A Node as far as it decides who may run there. What cannot be read of it keeps nobody away: this
# explains what the scheduler decides.

# of nodes that mpsd's DaemonSets run on; any of them does
LABELS = ("ack.node.gpu.schedule=mps", "mpsd.io/share=mps")
UNKNOWN_ADDRESS = "unknown"
_UPGRADE_STATE = "nvidia.com/gpu-driver-upgrade-state"  # k8s-operator-libs, pkg/upgrade/consts.go
_NO_UPGRADE = frozenset({"", "upgrade-required", "uncordon-required", "upgrade-done"})
_WAITING_UPGRADE = frozenset({"wait-for-jobs-required", "pod-deletion-required", "drain-required"})
_LONGEST_LABEL = 120  # characters of a label or taint that are shown
_CORDONED = "node.kubernetes.io/unschedulable"  # the taint that comes with `kubectl cordon`
_REPORTED_OTHERWISE = frozenset(
    {_CORDONED, "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
)


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        name = f"{self.key}={self.value}".removesuffix("=")
        return printable(f"{name}:{self.effect}", _LONGEST_LABEL)


@dataclass(frozen=True, slots=True)
class KubernetesNode:
    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    cordoned: bool  # by `kubectl cordon`
    ready: bool
    address: str  # its InternalIP; UNKNOWN_ADDRESS where it has none
    allocatable: Mapping[str, str]  # by resource, as written

    @property
    def is_labelled(self) -> bool:
        return any(f"{key}={value}" in LABELS for key, value in self.labels.items())

    def meets(self, term: NodeSelectorTerm) -> bool:
        """No Node meets an empty term; the one field is the name."""
        labels = [one.holds(self.labels.get(one.key)) for one in term.match_expressions]
        fields = [one.holds(self.name) for one in term.match_fields]
        return bool(labels or fields) and all((*labels, *fields))

    @property
    def nvidia_mps(self) -> str:
        """The label that starts NVIDIA's own MPS daemon there; empty where none does."""
        key = "nvidia.com/mps.capable"
        kept_away = self.labels.get("nvidia.com/gpu.deploy.device-plugin") == "false"
        if kept_away or self.labels.get(key) != "true":
            return ""
        return f"{key}=true"

    @property
    def upgrade_state(self) -> str:
        """How far NVIDIA's GPU operator is with an upgrade of the driver; empty without one."""
        state = self.labels.get(_UPGRADE_STATE, "")
        if state in _NO_UPGRADE:
            return ""
        return state

    @property
    def driver_upgrade(self) -> str:
        """The label by which NVIDIA's GPU operator upgrades the driver there, from the cordon until
        the new one is validated; empty otherwise. An unknown state is of an upgrade."""
        if self.is_never_validated or not self.upgrade_state:
            return ""
        return f"{_UPGRADE_STATE}={self.upgrade_state}"

    @property
    def is_never_validated(self) -> bool:
        """Whether only NVIDIA's validator is missing, which mpsd keeps away."""
        is_kept_away = self.labels.get("nvidia.com/gpu.deploy.operator-validator") == "false"
        return is_kept_away and self.labels.get(_UPGRADE_STATE) == "validation-required"

    @property
    def is_upgrade_waiting(self) -> bool:
        """Whether the upgrade waits for pods to end."""
        return self.labels.get(_UPGRADE_STATE) in _WAITING_UPGRADE


def read_kubernetes_node(thing: object) -> KubernetesNode:
    """The Node in a decoded object of the API, whatever that holds."""
    fields = as_mapping(thing)
    shape = FieldReader()
    metadata, spec, status = (
        shape.mapping(fields, part, "") for part in ("metadata", "spec", "status")
    )
    conditions = [entry for _path, entry in shape.entries(status, "conditions", "status")]
    addresses = [entry for _path, entry in shape.entries(status, "addresses", "status")]
    internal = [
        shape.text(one, "address", "") for one in addresses if one.get("type") == "InternalIP"
    ]
    return KubernetesNode(
        name=shape.text(metadata, "name", "metadata"),
        labels=_texts(shape.mapping(metadata, "labels", "metadata")),
        taints=tuple(
            Taint(*(shape.text(entry, key, path) for key in ("key", "value", "effect")))
            for path, entry in shape.entries(spec, "taints", "spec")
        ),
        cordoned=shape.flag(spec, "unschedulable", "spec"),
        ready=all(one.get("status") == "True" for one in conditions if one.get("type") == "Ready"),
        address=next(filter(None, internal), UNKNOWN_ADDRESS),
        allocatable=_texts(shape.mapping(status, "allocatable", "status")),
    )


def taint_removal(taints: Sequence[Taint], key: str) -> list[dict[str, Any]]:
    """A JSON patch that fails where the taints have changed."""
    patch: list[dict[str, Any]] = []
    for index in reversed(range(len(taints))):  # the last one first, since what follows moves up
        if taints[index].key == key:
            patch.append({"op": "test", "path": f"/spec/taints/{index}/key", "value": key})
            patch.append({"op": "remove", "path": f"/spec/taints/{index}"})
    return patch


def _texts(fields: Fields) -> dict[str, str]:
    return {key: value for key, value in fields.items() if isinstance(value, str)}


def kept_away(wishes: NodeWishes, node: KubernetesNode) -> str:
    """Why, as read in brackets behind the node's name; empty where nothing here keeps it away."""
    if not node.is_labelled:
        return f"not labelled {LABELS[0]}"
    if node.cordoned and not wishes.tolerates(_CORDONED, "", "NoSchedule"):
        return "cordoned"
    if not node.ready:
        return "not ready"
    for taint in node.taints:
        if taint.effect not in {"NoSchedule", "NoExecute"} or taint.key in _REPORTED_OTHERWISE:
            continue
        if not wishes.tolerates(taint.key, taint.value, taint.effect):
            return f"taint {taint} not tolerated"
    for key, value in wishes.selector:
        if node.labels.get(key) != value:
            label = printable(f"{key}={value}", _LONGEST_LABEL)
            return f"not {label}, as the pod's nodeSelector wants"
    if wishes.terms and not any(map(node.meets, wishes.terms)):
        return "not what the pod's node affinity wants"
    return ""
