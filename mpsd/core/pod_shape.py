"""Where the pod is in a decoded Kubernetes object, and the parts of it that mpsd reads.

One rule: any JSON whatever gives an object with its problems; nothing here raises, and null is absent, as in Kubernetes.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from mpsd.core.problem import Problem, printable, shown

Fields = Mapping[str, object]

# Where each kind keeps its pod: the API groups it may come from, and the steps to the pod.
_PODS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "Pod": (("",), ()),
    "PodTemplate": (("",), ("template",)),
    "ReplicationController": (("",), ("spec", "template")),
    "Job": (("batch",), ("spec", "template")),
    "CronJob": (("batch",), ("spec", "jobTemplate", "spec", "template")),
    "Deployment": (("apps", "extensions"), ("spec", "template")),
    "StatefulSet": (("apps",), ("spec", "template")),
    "DaemonSet": (("apps", "extensions"), ("spec", "template")),
    "ReplicaSet": (("apps", "extensions"), ("spec", "template")),
}
_CONTAINER_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # a DNS label, as Kubernetes asks
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")
_KINDS = {dict: "a mapping", list: "a list", str: "text", bool: "true or false"}


class Role(StrEnum):
    """When a container runs: beside the others, before them, before and beside them, or added while they run."""

    MAIN = "main"
    INIT = "init"
    SIDECAR = "sidecar"
    EPHEMERAL = "ephemeral"


@dataclass(frozen=True, slots=True)
class Variable:
    """One entry of `env`. value: None when it comes from somewhere else (`valueFrom`)."""

    name: str
    value: str | None
    path: str


@dataclass(frozen=True, slots=True)
class VariableSource:
    """One entry of `envFrom`: every key of a ConfigMap or Secret becomes a variable, behind the prefix."""

    kind: str
    name: str
    prefix: str
    path: str


@dataclass(frozen=True, slots=True)
class Container:
    """A container; `path` leads to it from the object's root and names it."""

    name: str
    role: Role
    path: str
    limits: Fields
    requests: Fields
    variables: tuple[Variable, ...]
    sources: tuple[VariableSource, ...]


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod or the template of one; `path` leads to it from the object's root, empty for a bare pod.

    host_ipc: None when the pod does not say, which Kubernetes takes for false.
    """

    path: str
    labels: Fields
    host_ipc: bool | None
    containers: tuple[Container, ...]


@dataclass(frozen=True, slots=True)
class KubernetesObject:
    """A decoded object as far as it could be read. pod: None for a kind that holds none, or none that can be found."""

    name: str
    kind: str
    pod: Pod | None
    problems: tuple[Problem, ...]


def at(path: str, *keys: str) -> str:
    """The path of a field below `path`, in the way Kubernetes writes paths: `spec.limits[aliyun.com/gpu-mem]`."""
    for key in keys:
        if _PLAIN_KEY.fullmatch(key):
            path = f"{path}.{key}" if path else key
        else:
            path = f"{path}[{printable(key)}]"
    return path


def objects_in(document: object) -> Iterator[object]:
    """The objects of a document: itself, or the items of a List or of a PodList, JobList, …, however nested.

    Items of a typed list need not repeat their kind, so they get it from the list.
    """
    pending = [document]
    while pending:
        thing = pending.pop()
        if not _is_list(thing):
            yield thing
            continue
        assert isinstance(thing, dict)  # _is_list has looked; this tells the type checker
        item_kind = {"kind": str(thing["kind"]).removesuffix("List"), "apiVersion": thing.get("apiVersion")}
        typed = item_kind if item_kind["kind"] else {}
        items = [typed | item if isinstance(item, dict) else item for item in thing["items"] or []]
        pending.extend(reversed(items))


def _is_list(thing: object) -> bool:
    if not isinstance(thing, dict) or not isinstance(thing.get("kind"), str):
        return False
    return thing["kind"].endswith("List") and isinstance(thing.get("items", False), list | None)


def read_object(thing: object) -> KubernetesObject:
    """One object with the pod in it, or with every reason why it cannot be read."""
    if not isinstance(thing, dict):
        problem = Problem("not-an-object", "the document", shown(thing), "is not a Kubernetes object", _START)
        return KubernetesObject("(not an object)", "", None, (problem,))
    shape = _Shape()
    kind = shape.text(thing, "kind", "")
    name = _object_name(kind, thing)
    if not kind:
        shape.note("kind-missing", "kind", thing.get("kind"), "says what an object is", "add it, such as kind: Pod")
    elif kind.endswith("List") and ("items" in thing or kind == "List"):
        shape.note("wrong-type", "items", thing.get("items"), "is not a list", "write a list of objects")
    elif steps := _steps_to_pod(kind, thing):
        return KubernetesObject(name, kind, _pod(shape, thing, steps[0]), tuple(shape.problems))
    return KubernetesObject(name, kind, None, tuple(shape.problems))


_START = "start it with apiVersion and kind"


def _steps_to_pod(kind: str, thing: Fields) -> tuple[tuple[str, ...], ...]:
    """The steps to the pod in a one-tuple; empty for a kind of that name in a group mpsd does not read."""
    if kind not in _PODS:
        return ()
    groups, steps = _PODS[kind]
    version = thing.get("apiVersion")
    if not isinstance(version, str):  # a bare object in a test or a typed list: taken for the built-in kind
        return (steps,)
    group = version.rpartition("/")[0]
    return (steps,) if group in groups else ()


def _object_name(kind: str, thing: Fields) -> str:
    """The object as a person names it, such as `Job default/mps-sample`, whatever its metadata holds."""
    found = thing.get("metadata")
    metadata = found if isinstance(found, dict) else {}
    name, generated = metadata.get("name"), metadata.get("generateName")
    said = name if isinstance(name, str) and name else f"{generated}*" if isinstance(generated, str) else "(no name)"
    namespace = metadata.get("namespace")
    if not isinstance(namespace, str) or not namespace:
        namespace = "default" if kind in _PODS else ""
    place = f"{printable(namespace)}/" if namespace else ""
    return f"{printable(kind) or '(no kind)'} {place}{printable(said, 253)}"


def _pod(shape: "_Shape", thing: Fields, steps: Sequence[str]) -> Pod | None:
    """The pod at the end of `steps`; None where something on the way is missing or no mapping."""
    path, fields = "", thing
    for step in steps:
        fields, path = shape.needed(fields, step, path), at(path, step)
        if not fields:
            return None
    metadata = shape.mapping(fields, "metadata", path)
    labels = shape.mapping(metadata, "labels", at(path, "metadata"))
    spec = shape.needed(fields, "spec", path)
    spec_path = at(path, "spec")
    if spec and not shape.sequence(spec, "containers", spec_path) and isinstance(spec.get("containers"), list | None):
        shape.note(
            "field-missing", at(spec_path, "containers"), spec.get("containers"), "holds no container", "add a container"
        )
    containers = tuple(_containers(shape, spec, spec_path)) if spec else ()
    return Pod(path, labels, shape.flag(spec, "hostIPC", spec_path), containers)


_CONTAINER_FIELDS = {"containers": Role.MAIN, "initContainers": Role.INIT, "ephemeralContainers": Role.EPHEMERAL}
