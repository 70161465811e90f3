"""The messages between kube-scheduler and its extenders: k8s.io/kube-scheduler/extender/v1, as
JSON.

Kubernetes names these fields as their Go structs, and reads them in any case, and so does this
module.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from mpsd.scheduler.rules.gpu_table import RecentValues

LONGEST_BODY = 32 * 1024**2  # 5 000 Nodes as Kubernetes writes them; their names alone are 150 kB
_KEPT = 4  # lists of names: of each scheduler that asks, those of its filter and of its prioritize
_LONGEST_KEPT = 2 * 1024**2  # 65 000 names
_NULL = msgspec.Raw(b"null")

T = TypeVar("T")
Decoder = msgspec.json.Decoder
_Text = Annotated[str, msgspec.Meta(min_length=1)]


class MalformedRequest(Exception):
    """A body that is not a request of this verb."""


class _NodeList(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


class _Priority(msgspec.Struct, rename="pascal", gc=False):
    host: str
    score: int


class _Filtered(msgspec.Struct, rename="pascal"):
    nodes: _NodeList | None
    node_names: Sequence[str] | None
    failed_nodes: Mapping[str, str]
    failed_and_unresolvable_nodes: Mapping[str, str]  # since 1.21; older ones pass it over
    error: str


class _Uid(msgspec.Struct):
    uid: _Text


class _Named(msgspec.Struct):
    name: str


class _WireNode(msgspec.Struct):
    metadata: _Named


class _Victims(msgspec.Struct):
    pods: list[dict[str, Any]] | None = None
    numpdbviolations: int | None = None


class BindArgs(msgspec.Struct, frozen=True, rename=lambda name: name.replace("_", "")):
    """A request to bind: ExtenderBindingArgs of kube-scheduler."""

    pod_namespace: _Text
    pod_name: _Text
    pod_uid: _Text
    node: _Text

    @property
    def pod(self) -> str:
        return f"{self.pod_namespace}/{self.pod_name}"


_FIELDS: Decoder[dict[str, msgspec.Raw]] = Decoder(dict[str, msgspec.Raw])
_POD: Decoder[dict[str, Any]] = Decoder(dict[str, Any])
_NAMES: Decoder[tuple[str, ...] | None] = Decoder(tuple[str, ...] | None)
_NODES: Decoder[_NodeList | None] = Decoder(_NodeList | None)
_NODE: Decoder[_WireNode] = Decoder(_WireNode)
_VICTIMS: Decoder[dict[str, dict[str, Any] | None] | None] = Decoder(
    dict[str, dict[str, Any] | None] | None
)


@dataclass(frozen=True, slots=True)
class Candidates:
    """A pod, as Kubernetes writes it, and the names of the nodes that it may go to. whole: the
    nodes as they came, in the order of `nodes`, where the scheduler is not nodeCacheCapable; else
    None."""

    pod: Mapping[str, Any]
    nodes: tuple[str, ...]
    whole: tuple[msgspec.Raw, ...] | None


@dataclass(frozen=True, slots=True)
class Proposed:
    """Whom the scheduler would stop on a node: their uids, and how many disruption budgets that
    would break."""

    victims: tuple[str, ...]
    budgets_broken: int


class Preemption(NamedTuple):
    """A pod, as Kubernetes writes it, and by node whom the scheduler would stop for it."""

    pod: Mapping[str, Any]
    nodes: Mapping[str, Proposed]


class CandidatesReader:
    """Reads requests to filter and prioritize. The names of thousands of nodes come again and
    again: the same bytes give the very same tuple, by which the table keeps its results."""

    def __init__(self) -> None:
        self._names: RecentValues[bytes, tuple[str, ...]] = RecentValues(_KEPT)

    def read(self, body: bytes) -> Candidates:
        """MalformedRequest."""
        fields = _lower(_decoded(body, "the body", _FIELDS))
        pod = _field(fields, "Pod", _POD)
        text = bytes(fields.get("nodenames", _NULL))
        names = self._names.get(text)
        if names is None:
            names = _decoded(text, "NodeNames", _NAMES)
            if names is not None and len(text) <= _LONGEST_KEPT:
                self._names.put(text, names)
        if names is not None:
            return Candidates(pod, names, None)
        listed = _field(fields, "Nodes", _NODES)
        if listed is None:
            raise MalformedRequest("both Nodes and NodeNames are null")
        whole = tuple(listed.items or ())
        return Candidates(
            pod, tuple(_decoded(node, "Nodes", _NODE).metadata.name for node in whole), whole
        )


def filter_answer(
    asked: Candidates, passing: Sequence[str], failed: Mapping[str, str], never: Mapping[str, str]
) -> bytes:
    """passing: some of the nodes asked about. failed: why the others do not, by name. never: those
    of `failed` that would not either if every pod there were stopped."""
    whole = asked.whole
    if whole is None:
        return msgspec.json.encode(_Filtered(None, passing, failed, never, ""))
    wanted = frozenset(passing)
    nodes = [node for name, node in zip(asked.nodes, whole, strict=True) if name in wanted]
    return msgspec.json.encode(_Filtered(_NodeList(nodes), None, failed, never, ""))


def filter_error(reason: str) -> bytes:
    """The scheduler tries the pod again later, and says why."""
    return msgspec.json.encode(_Filtered(None, None, {}, {}, reason))


def prioritize_answer(nodes: Iterable[str], scores: Iterable[int]) -> bytes:
    return msgspec.json.encode([*map(_Priority, nodes, scores)])


def read_preemption(body: bytes) -> Preemption:
    """What preempt is asked with, whether the victims come whole or as their uids.
    MalformedRequest."""
    fields = _lower(_decoded(body, "the body", _FIELDS))
    pod = _field(fields, "Pod", _POD)
    for name in ("NodeNameToMetaVictims", "NodeNameToVictims"):
        if (listed := _field(fields, name, _VICTIMS)) is not None:
            return Preemption(
                pod, {node: _proposed(node, one or {}) for node, one in listed.items()}
            )
    raise MalformedRequest("both NodeNameToVictims and NodeNameToMetaVictims are null")


def _proposed(node: str, listed: dict[str, Any]) -> Proposed:
    try:
        found = msgspec.convert(_lower(listed), _Victims)
        pods = [pod.get("metadata", _lower(pod)) for pod in found.pods or ()]
        uids = tuple(one.uid for one in msgspec.convert(pods, list[_Uid]))
    except msgspec.ValidationError as error:
        raise MalformedRequest(f"victims of node {node}: {error}") from None
    return Proposed(uids, found.numpdbviolations or 0)


def preempt_answer(nodes: Mapping[str, Proposed]) -> bytes:
    victims = {
        node: {
            "Pods": [{"UID": uid} for uid in one.victims],
            "NumPDBViolations": one.budgets_broken,
        }
        for node, one in nodes.items()
    }
    return msgspec.json.encode({"NodeNameToMetaVictims": victims})


def read_binding(body: bytes) -> BindArgs:
    """What bind is asked with. MalformedRequest where a part is missing."""
    fields = _lower(_decoded(body, "the body", _POD))
    try:
        return msgspec.convert(fields, BindArgs)
    except msgspec.ValidationError as error:
        raise MalformedRequest(f"the body: {error}") from None


def bind_answer(reason: str) -> bytes:
    """reason: why the pod is not bound; empty where it is."""
    return msgspec.json.encode({"Error": reason})


def _lower(fields: dict[str, T]) -> Mapping[str, T]:
    return {name.lower(): value for name, value in fields.items()}


def _field(fields: Mapping[str, msgspec.Raw], name: str, decoder: Decoder[T]) -> T:
    return _decoded(fields.get(name.lower(), _NULL), name, decoder)


def _decoded(text: bytes | msgspec.Raw, name: str, decoder: Decoder[T]) -> T:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedRequest(f"{name}: {error}") from None
    except RecursionError:
        raise MalformedRequest(f"{name}: nested too deeply") from None
