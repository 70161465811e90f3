"""What is known around a pod when somebody asks why it waits, and the form of the answer.

One rule: an answer is one sentence, which ends with what to do where something is to be done.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from mpsd.grants.rules.placement import gib
from mpsd.model.cluster_status import ClusterNode
from mpsd.model.grants import Request
from mpsd.model.policy import Policy
from mpsd.platform.rules.kubernetes_node import KubernetesNode
from mpsd.scheduler.rules.node_books import NodeBooks

_MOST_NAMED = 3


class Why(StrEnum):
    """What an answer comes down to, for programs; a value never changes its name."""

    ASKS_FOR_NO_GPU = "asks-for-no-gpu"
    ASKS_UNREADABLY = "asks-unreadably"
    # It is over.
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REFUSED_BY_KUBELET = "refused-by-kubelet"
    # It has a node.
    RUNS = "runs"
    RESTARTS = "restarts"
    NOT_STARTED = "not-started"
    # It has none.
    ENDS = "ends"
    GATED = "gated"
    OTHER_SCHEDULER = "other-scheduler"
    NO_NODE = "no-node"
    TOO_LARGE = "too-large"
    NO_ROOM = "no-room"
    KEPT_AWAY = "kept-away"
    PROMISED = "promised"
    SCHEDULER_SAYS = "scheduler-says"
    NOT_LOOKED_AT = "not-looked-at"


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """told, books: of every MPSNode that was asked for, by name. machines: the Nodes; None where one may not ask.

    One scene is equal to itself alone, so that what follows from it is worked out once for thousands of pods.
    """

    policy: Policy
    now: float
    told: Mapping[str, ClusterNode]
    books: Mapping[str, NodeBooks]
    machines: Mapping[str, KubernetesNode] | None


@dataclass(frozen=True, slots=True)
class Story:
    """The answer about one pod. is_well: it runs, or has finished well. node, gpus: where it is, as far as is known;
    gpus by label. room: where it would fit, `gpu0 of node1`.
    """

    why: Why
    sentence: str
    is_well: bool = False
    node: str = ""
    gpus: tuple[str, ...] = ()
    room: tuple[str, ...] = ()


def counted(names: Sequence[str], what: str) -> str:
    """`node1`, `node1 and node2`, `12 nodes`."""
    return listed(names) if len(names) <= _MOST_NAMED else f"{len(names)} {what}"


def listed(words: Sequence[str], most: int = _MOST_NAMED) -> str:
    """`a`, `a and b`, `a, b, c and 4 more`."""
    shown = list(words[:most])
    shown += [f"{len(words) - most} more"] if len(words) > most else []
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))


def wanted(request: Request) -> str:
    """`7 GiB and 30 % of its threads`, of each GPU."""
    said = [f"{gib(request.memory_mib)} GiB"] if request.memory_mib else []
    return " and ".join([*said, *([f"{request.thread_percent} % of its threads"] if request.thread_percent else [])])
