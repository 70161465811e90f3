"""What the page shows: the shape of `GET /v1/page`, the same for a node as its agent tells it and for a whole cluster.

One rule: names and units here are an interface; fields are added, never renamed. What is not known is None, never 0.
Every entry of a list has an `id` that stays the same while it is the same thing, by which changes are told.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from mpsd.model.domain_states import State
from mpsd.model.problem import printable

VERSION = "v1"
_LONGEST_TEXT = 2000


class Level(StrEnum):
    """How much something wants an operator."""

    BAD = "bad"  # programs are stopped, or nobody knows whether limits hold
    WARN = "warn"  # to be looked at, in the morning
    WELL = "well"


class Scope(StrEnum):
    NODE = "node"
    CLUSTER = "cluster"


class NoteKind(StrEnum):
    """What a note is about; the page has a heading for each."""

    STATE = "state"  # of a domain that does not serve
    NO_DAEMON = "no-daemon"
    CANARY = "canary"
    SUSPECTS = "suspects"
    UNJUDGED = "unjudged"
    OVER = "over"
    OUTSIDE_MPS = "outside-mps"
    WITHOUT_GRANT = "without-grant"
    UNKNOWN = "unknown"
    SILENT = "silent"
    NODE = "node"
    NO_MPSNODE = "no-mpsnode"


class Holder(StrEnum):
    """Who has a slice."""

    POD = "pod"
    CONTAINER = "container"
    PROGRAM = "program"
    STRANGER = "stranger"  # a process on the GPU that has no grant


@dataclass(frozen=True, slots=True)
class Slice:
    """What one holder has of one GPU. name: `namespace/pod`, a container's name, or a command.

    memory_mib None: not told, or nothing was granted (STRANGER). used_mib, clients None: not known. ended: its holder
    is gone, though not all of its processes. pid: of a program or a stranger. violations: how often it did what it may
    not, as a cluster is told; None: not told.
    """

    id: str
    holder: Holder
    name: str
    memory_mib: int | None
    used_mib: int | None
    thread_percent: int | None
    reserved_percent: int | None
    clients: int | None
    pid: int | None = None
    over: bool = False
    ended: bool = False
    violations: int | None = None


@dataclass(frozen=True, slots=True)
class GpuCard:
    """node: empty where it is the node that is shown. state None: no control daemon holds it.

    level: of its state, or of what is wrong with who is on it. since: seconds since 1970. slices None: what is granted
    is not known.
    """

    id: str
    node: str
    label: str
    model: str
    uuid: str
    domain: str | None
    state: str | None
    level: Level
    since: float | None
    reason: str
    cordoned: bool
    restarts: int | None
    memory_mib: int | None
    promised_mib: int | None
    granted_mib: int | None
    used_mib: int | None
    granted_percent: int | None
    promised_percent: int | None
    clients: int | None
    promised_clients: int | None
    slices: tuple[Slice, ...] | None


@dataclass(frozen=True, slots=True)
class NodeCard:
    """A node of a cluster. told_at None: it has told nothing yet. cordoned: labels of its GPUs, or `all`."""

    id: str
    level: Level
    stale: bool
    told_at: float | None
    driver: str
    version: str
    cordoned: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something that wants to be looked at. where: a GPU, a pod, a node. since: seconds since 1970; None: not known."""

    id: str
    level: Level
    kind: NoteKind
    where: str
    text: str
    since: float | None = None
    state: str = ""


@dataclass(frozen=True, slots=True)
class WaitingCard:
    """Who waits for a GPU, and why. why: a value of status.rules.pod_scene.Why; empty for a program on this node. place: in the
    queue, 0 where there is none. since: seconds since 1970 when a pod was bound to its node, or made where it has none;
    None: not told.
    """

    id: str
    name: str
    level: Level
    why: str
    text: str
    memory_mib: int | None
    thread_percent: int | None
    gpus: int | None
    place: int = 0
    since: float | None = None


@dataclass(frozen=True, slots=True)
class LatelyLine:
    """Something that happened. at: seconds since 1970. what: a value of model.events.Reason or of model.violations.Kind,
    `Refused` for a program that was told no, or a domain's state.
    """

    id: str
    at: float
    level: Level
    what: str
    where: str
    text: str


@dataclass(frozen=True, slots=True)
class PodsHeard:
    """How far it is known which pods of a node do not run yet. away: why nothing is heard of them; empty while it is.

    since: seconds since 1970 since when; None where they were never heard of, so that none listed means nothing.
    """

    away: str = ""
    since: float | None = None


@dataclass(frozen=True, slots=True)
class PodsHere:
    """The pods of a node that do not run yet. more: how many there are beside those of `cards`."""

    cards: tuple[WaitingCard, ...]
    more: int
    heard: PodsHeard


@dataclass(frozen=True, slots=True)
class Head:
    """at: when what is shown was seen, seconds since 1970. away: why nothing is heard since `away_since`; empty while
    it is. waiting_more: how many wait beside those that are listed. pods: of a node beside a kubelet, whose pods are
    listed once they are bound to it; None: pods do not come here, or of a cluster, which lists all of them.
    """

    scope: Scope
    name: str
    version: str
    at: float
    away: str = ""
    away_since: float | None = None
    waiting_more: int = 0
    pods: PodsHeard | None = None


@dataclass(frozen=True, slots=True)
class PageView:
    """All of it. version: of this shape."""

    version: str
    head: Head
    notes: tuple[Note, ...]
    nodes: tuple[NodeCard, ...]
    gpus: tuple[GpuCard, ...]
    waiting: tuple[WaitingCard, ...]
    lately: tuple[LatelyLine, ...]


LISTS = ("notes", "nodes", "gpus", "waiting", "lately")  # the fields of a view whose entries have ids

_SOON_WELL = frozenset({State.STARTING, State.DRAINING, State.DRAINED})


def level_of(state: str | None) -> Level:
    """Of a domain in this state; None where there is no domain."""
    if state == State.READY:
        return Level.WELL
    return Level.WARN if state in _SOON_WELL else Level.BAD


def shown_text(text: str) -> str:
    """What somebody else wrote, for one line: without control characters, and not too long."""
    return printable(text, _LONGEST_TEXT)


def who_gives_way(there: Sequence[str], newcomer: str) -> int | None:
    """Which reader of the page goes where there is no place left: the last one of whoever has the most, so that nobody
    keeps all others out.

    None: the newcomer goes, for nobody would then have more than it has. there: whose each place is (an address, a
    user), the first who came first.
    """
    count = Counter(there)
    if not there or count[(most := max(count, key=lambda one: count[one]))] < count[newcomer] + 2:
        return None
    return max(place for place, address in enumerate(there) if address == most)
