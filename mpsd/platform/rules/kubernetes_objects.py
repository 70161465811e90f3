"""Finds the pod in a decoded Kubernetes object. Any JSON is an object with its problems; nothing
here raises."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mpsd.model.fields import FieldReader, Fields, at
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
    found = _GIT_VERSION.match(str(answer.get("gitVersion", "")))
    return (int(found[1]), int(found[2])) if found else None


@dataclass(frozen=True, slots=True)
class KubernetesObject:
    """An object as far as it could be read."""

    name: str  # kind, namespace and name in one
    namespace: str  # empty for a kind without a pod that names none
    pod: Pod | None  # None for a kind that holds none, or where none can be found
    problems: tuple[Problem, ...]
    unread: str = ""  # why nobody has looked for a pod in it; empty where somebody has


def objects_in(document: object) -> Iterator[object]:
    """The document itself, or the items of a List, PodList and so on, however nested."""
    pending = [document]
    while pending:
        thing = pending.pop()
        items = _items(thing)
        if items is None:
            yield thing
        else:
            pending.extend(reversed(items))


def _items(thing: object) -> list[object] | None:
    """The items of a list, with the kind of a typed list; None for what is no list."""
    if not isinstance(thing, dict):
        return None
    kind = thing.get("kind")
    items = thing.get("items", False)
    if not isinstance(kind, str) or not kind.endswith("List") or not isinstance(items, list | None):
        return None
    kind = kind.removesuffix("List")
    typed = {"kind": kind, "apiVersion": thing.get("apiVersion")} if kind else {}
    return [typed | item if isinstance(item, dict) else item for item in items or []]


def read_object(thing: object, namespace: str = "") -> KubernetesObject:
    """One object with the pod in it, or with every reason why it cannot be read. namespace: the one
    it is created in, empty for the one that it names itself."""
    if not isinstance(thing, dict):
        remedy = "start it with apiVersion and kind"
        problem = Problem(
            "not-an-object", "the document", shown(thing), "is not a Kubernetes object", remedy
        )
        return KubernetesObject("(not an object)", namespace, None, (problem,))
    shape = FieldReader()
    kind = shape.text(thing, "kind", "")
    if thing.get("kind") in (None, ""):
        shape.problems.append(
            Problem("field-missing", "kind", "", "is missing", "add it, such as kind: Pod")
        )
    if kind == "List" or (kind.endswith("List") and "items" in thing):
        value = shown(thing.get("items"))
        remedy = "write the items as a list of objects"
        shape.problems.append(Problem("wrong-type", "items", value, "is not one object", remedy))
    version = thing.get("apiVersion")
    found = thing.get("metadata")
    # None: it names no version
    group = version.rpartition("/")[0] if isinstance(version, str) else None
    holds_pod = kind in _KINDS and (group is None or group in _KINDS[kind][0])
    pod = _pod(shape, kind, thing) if holds_pod else None
    metadata = found if isinstance(found, dict) else {}
    place = namespace or _text(metadata, "namespace") or ("default" if kind in _KINDS else "")
    generated = _text(metadata, "generateName")
    own = _text(metadata, "name") or (f"{generated}*" if generated else "(no name)")
    name = f"{printable(kind) or '(no kind)'} {f'{place}/' if place else ''}{own}"
    if shape.too_many:
        return KubernetesObject(name, place, None, (shape.too_many,))
    return KubernetesObject(
        name, place, pod, tuple(shape.problems), "" if holds_pod else _unread(kind, group, version)
    )


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
    """What is reported of a kind that may make pods; empty for those of Kubernetes itself, by their
    group, which hold none."""
    is_of_kubernetes = group is not None and (
        "." not in group or (group.endswith(".k8s.io") and not group.endswith(".x-k8s.io"))
    )
    if is_of_kubernetes and kind not in _KINDS:
        return ""
    return (
        f"mpsd does not know {printable(kind)} of {printable(str(version or 'no apiVersion'))}, and"
        f" has looked for no pods in it; it reads {', '.join(_KINDS)} of Kubernetes itself"
    )


def _text(fields: Fields, key: str) -> str:
    value = fields.get(key)
    return shown_name(value) if isinstance(value, str) else ""


# A Node of the cluster as far as it decides who may run there. What cannot be read of it keeps
# nobody away: this explains what the scheduler decides, and decides nothing.

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
        return printable(
            f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}", _LONGEST_LABEL
        )


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
        return any(
            self.labels.get(key) == value
            for key, _is, value in (label.partition("=") for label in LABELS)
        )

    def meets(self, term: NodeSelectorTerm) -> bool:
        """Of a required node affinity. No Node meets an empty term; the one field is the name."""
        labels = [one.holds(self.labels.get(one.key)) for one in term.match_expressions]
        fields = [one.holds(self.name) for one in term.match_fields]
        return bool(labels or fields) and all((*labels, *fields))

    @property
    def nvidia_mps(self) -> str:
        """The label that starts NVIDIA's own MPS daemon there; empty where none does."""
        key = "nvidia.com/mps.capable"
        kept_away = self.labels.get("nvidia.com/gpu.deploy.device-plugin") == "false"
        return f"{key}=true" if self.labels.get(key) == "true" and not kept_away else ""

    @property
    def upgrade_state(self) -> str:
        """How far NVIDIA's GPU operator is with an upgrade of the driver; empty without one."""
        state = self.labels.get(_UPGRADE_STATE, "")
        return "" if state in _NO_UPGRADE else state

    @property
    def driver_upgrade(self) -> str:
        """The label by which NVIDIA's GPU operator upgrades the driver there, from the cordon until
        the new one is validated; empty otherwise. An unknown state is of an upgrade."""
        state = self.upgrade_state
        return f"{_UPGRADE_STATE}={state}" if state and not self.is_never_validated else ""

    @property
    def is_never_validated(self) -> bool:
        """Whether only NVIDIA's validator is missing, which mpsd keeps away from there."""
        is_kept_away = self.labels.get("nvidia.com/gpu.deploy.operator-validator") == "false"
        return is_kept_away and self.labels.get(_UPGRADE_STATE) == "validation-required"

    @property
    def is_upgrade_waiting(self) -> bool:
        """Whether that upgrade waits for pods to end."""
        return self.labels.get(_UPGRADE_STATE) in _WAITING_UPGRADE


def read_kubernetes_node(thing: object) -> KubernetesNode:
    """The Node in a decoded object of the API, whatever that holds."""
    fields: Fields = thing if isinstance(thing, dict) else {}
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
    """A JSON patch that removes the taints of this key, and fails where they have changed."""
    patch: list[dict[str, Any]] = []
    for index in reversed(range(len(taints))):  # the last one first, since what follows moves up
        if taints[index].key == key:
            patch.append({"op": "test", "path": f"/spec/taints/{index}/key", "value": key})
            patch.append({"op": "remove", "path": f"/spec/taints/{index}"})
    return patch


def _texts(fields: Fields) -> dict[str, str]:
    return {key: value for key, value in fields.items() if isinstance(value, str)}


def kept_away(wishes: NodeWishes, node: KubernetesNode) -> str:
    """Why Kubernetes keeps the pod away from this node, as read in brackets behind its name; empty
    where nothing that is read here does."""
    if not node.is_labelled:
        return f"not labelled {LABELS[0]}"
    if node.cordoned and not wishes.tolerates(_CORDONED, "", "NoSchedule"):
        return "cordoned"
    if not node.ready:
        return "not ready"
    for taint in node.taints:
        counts = (
            taint.effect in {"NoSchedule", "NoExecute"} and taint.key not in _REPORTED_OTHERWISE
        )
        if counts and not wishes.tolerates(taint.key, taint.value, taint.effect):
            return f"taint {taint} not tolerated"
    for key, value in wishes.selector:
        if node.labels.get(key) != value:
            return (
                f"not {printable(f'{key}={value}', _LONGEST_LABEL)}, as the pod's nodeSelector"
                " wants"
            )
    if wishes.terms and not any(map(node.meets, wishes.terms)):
        return "not what the pod's node affinity wants"
    return ""
