"""The messages between kube-scheduler and its extenders: k8s.io/kube-scheduler/extender/v1, as
JSON, for an extender with nodeCacheCapable: nodes are named, and do not come whole.

Kubernetes names these fields as their Go structs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec

from mpsd.scheduler.rules.gpu_table import RecentValues

LONGEST_BODY = 8 * 1024**2  # a pod has 1.5 MB at most, the names of 5 000 nodes 150 kB
_KEPT = 4  # lists of names: of each scheduler that asks, those of its filter and of its prioritize
_LONGEST_KEPT = 2 * 1024**2  # 65 000 names

T = TypeVar("T")
Decoder = msgspec.json.Decoder
_Text = Annotated[str, msgspec.Meta(min_length=1)]


class MalformedRequest(Exception):
    """A body that is not a request of this verb."""


class _Asked(msgspec.Struct, rename="pascal"):
    pod: dict[str, Any]
    node_names: msgspec.Raw


class _Priority(msgspec.Struct, rename="pascal", gc=False):
    host: str
    score: int


class _Filtered(msgspec.Struct, rename="pascal"):
    node_names: Sequence[str] | None
    failed_nodes: Mapping[str, str]
    failed_and_unresolvable_nodes: Mapping[str, str]  # since 1.21; older ones pass it over
    error: str = ""
    nodes: None = None


class Victim(msgspec.Struct, frozen=True, rename={"uid": "UID"}):
    uid: _Text


class Victims(
    msgspec.Struct, frozen=True, rename={"pods": "Pods", "budgets_broken": "NumPDBViolations"}
):
    """Whom the scheduler would stop on a node, and how many disruption budgets that would break."""

    pods: tuple[Victim, ...] | None = None
    budgets_broken: int = 0

    @property
    def uids(self) -> tuple[str, ...]:
        return tuple(pod.uid for pod in self.pods or ())


class Preemption(
    msgspec.Struct, frozen=True, rename={"pod": "Pod", "nodes": "NodeNameToMetaVictims"}
):
    """A pod, as Kubernetes writes it, and by node whom the scheduler would stop for it."""

    pod: dict[str, Any]
    nodes: dict[str, Victims]


class BindArgs(
    msgspec.Struct,
    frozen=True,
    rename={
        "pod_namespace": "PodNamespace",
        "pod_name": "PodName",
        "pod_uid": "PodUID",
        "node": "Node",
    },
):
    """A request to bind: ExtenderBindingArgs of kube-scheduler."""

    pod_namespace: _Text
    pod_name: _Text
    pod_uid: _Text
    node: _Text

    @property
    def pod(self) -> str:
        return f"{self.pod_namespace}/{self.pod_name}"


_ASKED = Decoder(_Asked)
_NAMES: Decoder[tuple[str, ...] | None] = Decoder(tuple[str, ...] | None)
_PREEMPTION = Decoder(Preemption)
_BINDING = Decoder(BindArgs)


@dataclass(frozen=True, slots=True)
class Candidates:
    """A pod, as Kubernetes writes it, and the names of the nodes that it may go to."""

    pod: Mapping[str, Any]
    nodes: tuple[str, ...]


class CandidatesReader:
    """Reads requests to filter and prioritize. The same bytes of names give the very same tuple, by
    which the table keeps its results."""

    def __init__(self) -> None:
        self._names: RecentValues[bytes, tuple[str, ...]] = RecentValues(_KEPT)

    def read(self, body: bytes) -> Candidates:
        """MalformedRequest."""
        asked = _decoded(body, "the body", _ASKED)
        text = bytes(asked.node_names)
        names = self._names.get(text)
        if names is None:
            names = _decoded(text, "NodeNames", _NAMES)
            if names is None:
                raise MalformedRequest(
                    "NodeNames is null; set nodeCacheCapable: true for this extender in"
                    " kube-scheduler's configuration"
                )
            if len(text) <= _LONGEST_KEPT:
                self._names.put(text, names)
        return Candidates(asked.pod, names)


def filter_answer(
    passing: Sequence[str], failed: Mapping[str, str], never: Mapping[str, str]
) -> bytes:
    """failed: why nodes do not pass, by name. never: those of `failed` that would not either if
    every pod there were stopped."""
    return msgspec.json.encode(_Filtered(passing, failed, never))


def filter_error(reason: str) -> bytes:
    """The scheduler tries the pod again later, and says why."""
    return msgspec.json.encode(_Filtered(None, {}, {}, reason))


def prioritize_answer(nodes: Iterable[str], scores: Iterable[int]) -> bytes:
    return msgspec.json.encode([*map(_Priority, nodes, scores)])


def read_preemption(body: bytes) -> Preemption:
    """MalformedRequest."""
    return _decoded(body, "the body", _PREEMPTION)


def preempt_answer(nodes: Mapping[str, Victims]) -> bytes:
    return msgspec.json.encode({"NodeNameToMetaVictims": nodes})


def read_binding(body: bytes) -> BindArgs:
    """MalformedRequest where a part is missing."""
    return _decoded(body, "the body", _BINDING)


def bind_answer(reason: str) -> bytes:
    """reason: why the pod is not bound; empty where it is."""
    return msgspec.json.encode({"Error": reason})


def _decoded(text: bytes, name: str, decoder: Decoder[T]) -> T:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedRequest(f"{name}: {error}") from None
    except RecursionError:
        raise MalformedRequest(f"{name}: nested too deeply") from None
