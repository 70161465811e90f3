"""The messages between kube-scheduler and its extenders: k8s.io/kube-scheduler/extender/v1, as JSON.

Kubernetes names these fields as their Go structs, and reads them in any case, and so does this module.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from mpsd.scheduler.rules.gpu_table import RecentValues

LONGEST_BODY = 32 * 1024**2  # 5 000 Nodes as Kubernetes writes them; their names alone are 150 kB
_KEPT = 4  # lists of names: of each scheduler that asks, those of its filter and of its prioritize
_LONGEST_KEPT = 1024**2
_NULL = msgspec.Raw(b"null")

T = TypeVar("T")
Decoder = msgspec.json.Decoder


class MalformedRequest(Exception):
    """A body that is not a request of this verb."""


class _Metadata(msgspec.Struct):
    name: str


class _WireNode(msgspec.Struct):
    metadata: _Metadata


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


_Listed = dict[str, dict[str, Any] | None]
_FIELDS: Decoder[dict[str, msgspec.Raw]] = Decoder(dict[str, msgspec.Raw])
_POD: Decoder[dict[str, Any]] = Decoder(dict[str, Any])
_NAMES: Decoder[tuple[str, ...] | None] = Decoder(tuple[str, ...] | None)
_NODES: Decoder[_NodeList | None] = Decoder(_NodeList | None)
_NODE: Decoder[_WireNode] = Decoder(_WireNode)
_VICTIMS: Decoder[_Listed | None] = Decoder(_Listed | None)
_TEXT: Decoder[str] = Decoder(str)


@dataclass(frozen=True, slots=True)
class Candidates:
    """A pod, as Kubernetes writes it, and the names of the nodes that it may go to.

    whole: the nodes as they came, in the order of `nodes`, where the scheduler is not nodeCacheCapable; else None.
    """

    pod: Mapping[str, Any]
    nodes: tuple[str, ...]
    whole: tuple[msgspec.Raw, ...] | None


@dataclass(frozen=True, slots=True)
class Proposed:
    """Whom the scheduler would stop on a node: their uids, and how many disruption budgets that would break."""

    victims: tuple[str, ...]
    budgets_broken: int


@dataclass(frozen=True, slots=True)
class Preemption:
    """A pod, as Kubernetes writes it, and by node whom the scheduler would stop for it."""

    pod: Mapping[str, Any]
    nodes: Mapping[str, Proposed]


class CandidatesReader:
    """Reads what filter and prioritize are asked with. The names of thousands of nodes come again and again: the same
    bytes are the very same tuple, whose nodes nobody has to look for again either.
    """

    def __init__(self) -> None:
        self._names: RecentValues[bytes, tuple[str, ...]] = RecentValues(_KEPT)

    def read(self, body: bytes) -> Candidates:
        """MalformedRequest."""
        fields = _fields(body)
        pod = _field(fields, "Pod", _POD)
        names = self._read_names(bytes(fields.get("nodenames", _NULL)))
        if names is not None:
            return Candidates(pod, names, None)
        listed = _field(fields, "Nodes", _NODES)
        if listed is None:
            raise MalformedRequest("both Nodes and NodeNames are null")
        whole = tuple(listed.items or ())
        return Candidates(pod, tuple(_decoded(node, "Nodes", _NODE).metadata.name for node in whole), whole)

    def _read_names(self, text: bytes) -> tuple[str, ...] | None:
        names = self._names.get(text)
        if names is None:
            names = _decoded(text, "NodeNames", _NAMES)
            if names is not None and len(text) <= _LONGEST_KEPT:
                self._names.put(text, names)
        return names


def filter_answer(
    asked: Candidates, passing: Sequence[str], failed: Mapping[str, str], never: Mapping[str, str]
) -> bytes:
    """passing: some of the nodes asked about. failed: why the others do not, by name. never: those of `failed` that
    would not either if every pod there were stopped.
    """
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
    """A score from 0 to 10 for each node."""
    return msgspec.json.encode([*map(_Priority, nodes, scores)])


def read_preemption(body: bytes) -> Preemption:
    """What preempt is asked with, whether the victims come whole or as their uids. MalformedRequest."""
    fields = _fields(body)
    pod = _field(fields, "Pod", _POD)
    by_uid = _field(fields, "NodeNameToMetaVictims", _VICTIMS)
    if by_uid is not None:
        return Preemption(pod, {node: _proposed(node, listed, _meta_uid) for node, listed in by_uid.items()})
    whole = _field(fields, "NodeNameToVictims", _VICTIMS)
    if whole is None:
        raise MalformedRequest("both NodeNameToVictims and NodeNameToMetaVictims are null")
    return Preemption(pod, {node: _proposed(node, listed, _pod_uid) for node, listed in whole.items()})


def preempt_answer(nodes: Mapping[str, Proposed]) -> bytes:
    """The nodes where stopping these helps, which the scheduler then chooses one of."""
    victims = {
        node: {"Pods": [{"UID": uid} for uid in one.victims], "NumPDBViolations": one.budgets_broken}
        for node, one in nodes.items()
    }
    return msgspec.json.encode({"NodeNameToMetaVictims": victims})


def read_binding(body: bytes) -> dict[str, str]:
    """pod_namespace, pod_name, pod_uid and node of what bind is asked with. MalformedRequest where one is missing."""
    fields = _fields(body)
    names = {"pod_namespace": "PodNamespace", "pod_name": "PodName", "pod_uid": "PodUID", "node": "Node"}
    read = {ours: _field(fields, theirs, _TEXT) for ours, theirs in names.items()}
    if missing := [theirs for ours, theirs in names.items() if not read[ours]]:
        raise MalformedRequest(f"{' and '.join(missing)} must not be empty")
    return read


def bind_answer(reason: str) -> bytes:
    """reason: why the pod is not bound; empty where it is."""
    return msgspec.json.encode({"Error": reason})


def _proposed(node: str, listed: Mapping[str, Any] | None, uid_of: Callable[[Mapping[str, Any]], object]) -> Proposed:
    fields = {name.lower(): value for name, value in (listed or {}).items()}
    pods, broken = fields.get("pods") or [], fields.get("numpdbviolations") or 0
    uids = [uid_of(pod) if isinstance(pod, dict) else None for pod in pods] if isinstance(pods, list) else [None]
    victims = tuple(uid for uid in uids if isinstance(uid, str) and uid)
    if len(victims) < len(uids) or type(broken) is not int:
        raise MalformedRequest(f"victims of node {node}: not a list of pods, each with a uid, and a number")
    return Proposed(victims, broken)


def _meta_uid(pod: Mapping[str, Any]) -> object:
    return next((value for name, value in pod.items() if name.lower() == "uid"), None)


def _pod_uid(pod: Mapping[str, Any]) -> object:
    metadata = pod.get("metadata")
    return metadata.get("uid") if isinstance(metadata, dict) else None


def _fields(body: bytes) -> dict[str, msgspec.Raw]:
    """By name in small letters."""
    return {name.lower(): value for name, value in _decoded(body, "the body", _FIELDS).items()}


def _field(fields: Mapping[str, msgspec.Raw], name: str, decoder: Decoder[T]) -> T:
    return _decoded(fields.get(name.lower(), _NULL), name, decoder)


def _decoded(text: bytes | msgspec.Raw, name: str, decoder: Decoder[T]) -> T:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedRequest(f"{name}: {error}") from None
    except RecursionError:
        raise MalformedRequest(f"{name}: nested too deeply") from None
