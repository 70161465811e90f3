"""Finds the pod in a decoded Kubernetes object, and the objects in a list of them.

One rule: any JSON whatever is an object with its problems; nothing here raises.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mpsd.model.fields import Fields, Shape, at
from mpsd.model.pod import Pod, read_pod
from mpsd.model.problem import Problem, printable, shown, shown_name


@dataclass(frozen=True, slots=True)
class _Kind:
    """The API groups that a kind with a pod in it comes from, and the steps to the pod."""

    groups: frozenset[str]
    steps: tuple[str, ...]


_CORE, _BATCH, _APPS = frozenset({""}), frozenset({"batch"}), frozenset({"apps", "extensions"})
_TEMPLATE = ("spec", "template")
_KINDS: Mapping[str, _Kind] = {
    "Pod": _Kind(_CORE, ()),
    "PodTemplate": _Kind(_CORE, ("template",)),
    "ReplicationController": _Kind(_CORE, _TEMPLATE),
    "Job": _Kind(_BATCH, _TEMPLATE),
    "CronJob": _Kind(_BATCH, ("spec", "jobTemplate", *_TEMPLATE)),
    "Deployment": _Kind(_APPS, _TEMPLATE),
    "StatefulSet": _Kind(_APPS, _TEMPLATE),
    "DaemonSet": _Kind(_APPS, _TEMPLATE),
    "ReplicaSet": _Kind(_APPS, _TEMPLATE),
}
_READ = f"{', '.join(_KINDS)} of Kubernetes itself"


@dataclass(frozen=True, slots=True)
class KubernetesObject:
    """An object as far as it could be read. pod: None for a kind that holds none, or where none can be found.

    name: kind, namespace and name in one. namespace: empty for a kind without a pod that names none.
    unread: why nobody has looked for a pod in it, empty where somebody has.
    """

    name: str
    namespace: str
    pod: Pod | None
    problems: tuple[Problem, ...]
    unread: str = ""


def objects_in(document: object) -> Iterator[object]:
    """The objects of a document: itself, or the items of a List, PodList, JobList and so on, however nested."""
    pending = [document]
    while pending:
        thing = pending.pop()
        items = _items(thing)
        if items is None:
            yield thing
        else:
            pending.extend(reversed(items))


def _items(thing: object) -> list[object] | None:
    """The items of a list, with the kind that a typed list says once for all of them; None for what is no list."""
    if not isinstance(thing, dict):
        return None
    kind, items = thing.get("kind"), thing.get("items", False)
    if not isinstance(kind, str) or not kind.endswith("List") or not isinstance(items, list | None):
        return None
    kind = kind.removesuffix("List")
    typed = {"kind": kind, "apiVersion": thing.get("apiVersion")} if kind else {}
    return [typed | item if isinstance(item, dict) else item for item in items or []]


def read_object(thing: object, namespace: str = "") -> KubernetesObject:
    """One object with the pod in it, or with every reason why it cannot be read.

    namespace: the one it is created in, empty for the one that it names itself.
    """
    if not isinstance(thing, dict):
        remedy = "start it with apiVersion and kind"
        problem = Problem("not-an-object", "the document", shown(thing), "is not a Kubernetes object", remedy)
        return KubernetesObject("(not an object)", namespace, None, (problem,))
    shape = Shape()
    kind = shape.text(thing, "kind", "")
    shape.problems.extend(_no_single_object(kind, thing))
    pod = _pod(shape, kind, thing)
    found = thing.get("metadata")
    metadata = found if isinstance(found, dict) else {}
    place = namespace or _text(metadata, "namespace") or ("default" if kind in _KINDS else "")
    if shape.too_many:
        return KubernetesObject(_name(kind, place, metadata), place, None, (shape.too_many,))
    unread = "" if pod else _unread(kind, thing)
    return KubernetesObject(_name(kind, place, metadata), place, pod, tuple(shape.problems), unread)


def _no_single_object(kind: str, thing: Fields) -> Iterator[Problem]:
    if thing.get("kind") in (None, ""):
        yield Problem("field-missing", "kind", "", "is missing", "add it, such as kind: Pod")
    if kind == "List" or (kind.endswith("List") and "items" in thing):
        value = shown(thing.get("items"))
        yield Problem("wrong-type", "items", value, "is not one object", "write the items as a list of objects")


def _pod(shape: Shape, kind: str, thing: Fields) -> Pod | None:
    """The pod at the end of the kind's steps; None where the kind has none or something on the way is missing."""
    known = _KINDS.get(kind)
    group = _group(thing)
    if known is None or (group is not None and group not in known.groups):
        return None
    path, fields = "", thing
    for step in known.steps:
        inner = shape.needed(fields, step, path)
        if inner is None:
            return None
        path, fields = at(path, step), inner
    return read_pod(shape, fields, path)


def _group(thing: Fields) -> str | None:
    """The API group of an object; None where it names no version."""
    version = thing.get("apiVersion")
    return version.rpartition("/")[0] if isinstance(version, str) else None


def _unread(kind: str, thing: Fields) -> str:
    """What is said of a kind that somebody else has made, and that may make pods."""
    known, group = _KINDS.get(kind), _group(thing)
    if (known and (group is None or group in known.groups)) or _is_of_kubernetes(kind, group):
        return ""
    version = printable(str(thing.get("apiVersion") or "no apiVersion"))
    return f"mpsd does not know {printable(kind)} of {version}, and has looked for no pods in it; it reads {_READ}"


def _is_of_kubernetes(kind: str, group: str | None) -> bool:
    """Whether Kubernetes itself has such a group, and this kind of it holds no pods, as all those not in `_KINDS`."""
    if kind in _KINDS or group is None:
        return False
    return "." not in group or (group.endswith(".k8s.io") and not group.endswith(".x-k8s.io"))


def _name(kind: str, place: str, metadata: Fields) -> str:
    """The object as a person names it, such as `Job default/mps-sample`, whatever its metadata holds."""
    own, generated = _text(metadata, "name"), _text(metadata, "generateName")
    name = own or (f"{generated}*" if generated else "(no name)")
    return f"{printable(kind) or '(no kind)'} {f'{place}/' if place else ''}{name}"


def _text(fields: Fields, key: str) -> str:
    value = fields.get(key)
    return shown_name(value) if isinstance(value, str) else ""
