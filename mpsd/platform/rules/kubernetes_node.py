"""A Node of the cluster as far as it decides who may run there: its labels, taints and state, and its address.

One rule: what cannot be read of it keeps nobody away; this explains what the scheduler decides, and decides nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mpsd.model.fields import Fields, Shape
from mpsd.model.problem import printable

LABELS = ("ack.node.gpu.schedule=mps", "mpsd.io/share=mps")  # of nodes that mpsd's DaemonSets run on; any of them does
UNKNOWN_ADDRESS = "unknown"
_CORDONED = "node.kubernetes.io/unschedulable"  # the taint that comes with `kubectl cordon`
_KEEPS_AWAY = frozenset({"NoSchedule", "NoExecute"})
_SAID_OTHERWISE = frozenset({_CORDONED, "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return printable(f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}", 120)


@dataclass(frozen=True, slots=True)
class KubernetesNode:
    """address: its InternalIP, UNKNOWN_ADDRESS where it has none. cordoned: by `kubectl cordon`."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    cordoned: bool
    ready: bool
    address: str

    @property
    def is_labelled(self) -> bool:
        return any(self.labels.get(key) == value for key, _is, value in (label.partition("=") for label in LABELS))


def read_kubernetes_node(thing: object) -> KubernetesNode:
    """The Node in a decoded object of the API, whatever that holds."""
    fields: Fields = thing if isinstance(thing, dict) else {}
    shape = Shape()
    metadata = shape.mapping(fields, "metadata", "")
    spec, status = shape.mapping(fields, "spec", ""), shape.mapping(fields, "status", "")
    conditions = [entry for _path, entry in shape.entries(status, "conditions", "status")]
    addresses = [entry for _path, entry in shape.entries(status, "addresses", "status")]
    internal = [shape.text(one, "address", "") for one in addresses if one.get("type") == "InternalIP"]
    return KubernetesNode(
        name=shape.text(metadata, "name", "metadata"),
        labels=_texts(shape.mapping(metadata, "labels", "metadata")),
        taints=tuple(_taints(shape, spec)),
        cordoned=shape.flag(spec, "unschedulable", "spec"),
        ready=all(one.get("status") == "True" for one in conditions if one.get("type") == "Ready"),
        address=next(filter(None, internal), UNKNOWN_ADDRESS),
    )


def _taints(shape: Shape, spec: Fields) -> Iterator[Taint]:
    for path, entry in shape.entries(spec, "taints", "spec"):
        yield Taint(*(shape.text(entry, key, path) for key in ("key", "value", "effect")))


def _texts(fields: Fields) -> dict[str, str]:
    return {key: value for key, value in fields.items() if isinstance(value, str)}


# -- what a pod wants of a node ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Toleration:
    """key: empty for any. value: None for any. effect: empty for any."""

    key: str
    value: str | None
    effect: str

    def holds(self, taint: Taint) -> bool:
        return self.key in ("", taint.key) and self.value in (None, taint.value) and self.effect in ("", taint.effect)


@dataclass(frozen=True, slots=True)
class Wanted:
    """One requirement of a node affinity. of_fields: about `metadata.name`, else about a label."""

    key: str
    operator: str
    values: tuple[str, ...]
    of_fields: bool

    def holds(self, node: KubernetesNode) -> bool:
        found = node.name if self.of_fields else node.labels.get(self.key)
        match self.operator:
            case "In":
                return found in self.values
            case "NotIn":
                return found not in self.values
            case "Exists":
                return found is not None
            case "DoesNotExist":
                return found is None
            case "Gt" | "Lt":
                return _is_beyond(found, self.values, above=self.operator == "Gt")
            case _:
                return True


@dataclass(frozen=True, slots=True)
class NodeWishes:
    """What a pod says of where it may run. selector: keys and values. terms: of its required node affinity, one of
    which is to hold; none where it has none.
    """

    selector: tuple[tuple[str, str], ...]
    tolerations: tuple[Toleration, ...]
    terms: tuple[tuple[Wanted, ...], ...]

    def tolerates(self, taint: Taint) -> bool:
        return any(one.holds(taint) for one in self.tolerations)


def read_wishes(shape: Shape, spec: Fields) -> NodeWishes:
    """spec: of a pod."""
    affinity = shape.mapping(shape.mapping(spec, "affinity", "spec"), "nodeAffinity", "spec.affinity")
    required = shape.mapping(affinity, "requiredDuringSchedulingIgnoredDuringExecution", "spec.affinity.nodeAffinity")
    terms = shape.entries(required, "nodeSelectorTerms", "spec.affinity.nodeAffinity")
    return NodeWishes(
        selector=tuple(_texts(shape.mapping(spec, "nodeSelector", "spec")).items()),
        tolerations=tuple(_tolerations(shape, spec)),
        terms=tuple(tuple(_wanted(shape, term, path)) for path, term in terms),
    )


def _tolerations(shape: Shape, spec: Fields) -> Iterator[Toleration]:
    for path, entry in shape.entries(spec, "tolerations", "spec"):
        value = None if entry.get("operator") == "Exists" else shape.text(entry, "value", path)
        yield Toleration(shape.text(entry, "key", path), value, shape.text(entry, "effect", path))


def _wanted(shape: Shape, term: Fields, path: str) -> Iterator[Wanted]:
    for kind in ("matchExpressions", "matchFields"):
        for inner, entry in shape.entries(term, kind, path):
            key, operator = (shape.text(entry, name, inner) for name in ("key", "operator"))
            yield Wanted(key, operator, shape.texts(entry, "values", inner), kind == "matchFields")


def _is_beyond(found: str | None, values: tuple[str, ...], *, above: bool) -> bool:
    try:
        here, limit = int(found or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return here > limit if above else here < limit


def kept_away(wishes: NodeWishes, node: KubernetesNode) -> str:
    """Why Kubernetes itself lets the pod not go there, as it reads in brackets behind the node's name; empty where
    nothing that is read here does."""
    if not node.is_labelled:
        return f"not labelled {LABELS[0]}"
    if node.cordoned and not wishes.tolerates(Taint(_CORDONED, "", "NoSchedule")):
        return "cordoned"
    if not node.ready:
        return "not ready"
    for taint in node.taints:
        if taint.effect in _KEEPS_AWAY and taint.key not in _SAID_OTHERWISE and not wishes.tolerates(taint):
            return f"taint {taint} not tolerated"
    for key, value in wishes.selector:
        if node.labels.get(key) != value:
            return f"not {printable(f'{key}={value}', 120)}, as the pod's nodeSelector wants"
    if wishes.terms and not any(term and all(one.holds(node) for one in term) for term in wishes.terms):
        return "not what the pod's node affinity wants"
    return ""
