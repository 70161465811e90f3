"""What the page shows: the shape of `GET /v1/page`, the same for a node as its agent tells it and for a whole cluster.

One rule: names and units here are an interface; fields are added, never renamed. What is not known is None, never 0.
Every entry of a list has an `id` that stays the same while it is the same thing, by which changes are told.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from mpsd.agent.rules.node_events import OF_VIOLATIONS, REFUSED, PastEvent
from mpsd.model.domain import State
from mpsd.model.events import Reason
from mpsd.model.fields import Seconds
from mpsd.model.mpsnode_reading import read_mpsnode
from mpsd.model.node_status import FaultsStatus, NodeStatus
from mpsd.model.node_view import NodeView
from mpsd.model.policy import Policy
from mpsd.model.problem import printable, shown_name
from mpsd.status.rules.explanation import story
from mpsd.status.rules.mpsnode import Stamp, mpsnode_status
from mpsd.status.rules.pods import Explanation, ExplanationContext, PodSeen, Why

VERSION = "v1"
_LONGEST_TEXT = 2000


class Level(StrEnum):
    """How much something wants an operator."""

    BAD = "bad"  # programs are stopped, or nobody knows whether limits hold
    WARN = "warn"  # to be looked at, in the morning
    WELL = "well"


class PageScope(StrEnum):
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


class SliceHolder(StrEnum):
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
    holder: SliceHolder
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
    """Who waits for a GPU, and why. why: a value of status.rules.pod_scene.Why; empty for a program on this node.
    place: in the
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
class EventLine:
    """Something that happened. at: seconds since 1970. what: a value of model.events.Reason or of
    model.violations.Kind, `Refused` for a program that was told no, or a domain's state.
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
class PageHead:
    """at: when what is shown was seen, seconds since 1970. away: why nothing is heard since `away_since`; empty while
    it is. waiting_more: how many wait beside those that are listed. pods: of a node beside a kubelet, whose pods are
    listed once they are bound to it; None: pods do not come here, or of a cluster, which lists all of them.
    """

    scope: PageScope
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
    head: PageHead
    notes: tuple[Note, ...]
    nodes: tuple[NodeCard, ...]
    gpus: tuple[GpuCard, ...]
    waiting: tuple[WaitingCard, ...]
    lately: tuple[EventLine, ...]


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


# What happened lately on a node: the lines of its page, and what each of its pods was told last.
#
# One rule: what one thing did is one line, told by whoever knows best how it ended.

MOST_LATELY = 60


def last_warnings(happened: Iterable[PastEvent]) -> Mapping[str, str]:
    """By uid, what each pod was told last of what keeps or ends it: reason and message, as its event has them."""
    found = sorted((one for one in happened if one.uid and _level(one.what) is Level.WARN), key=lambda one: one.at)
    return {one.uid: f"{one.what}: {one.text}" for one in found}


def lately(node: NodeStatus, happened: Iterable[PastEvent], since: float) -> Sequence[EventLine]:
    """The newest first."""
    found = [*_remembered(happened), *_violations(node), *_older_faults(node, since)]
    return sorted(found, key=lambda line: (-line.at, line.id))[:MOST_LATELY]


def _remembered(happened: Iterable[PastEvent]) -> Iterator[EventLine]:
    for one in happened:
        if one.what not in OF_VIOLATIONS:
            key = f"{one.what} {one.at:.6f} {one.where}"
            yield EventLine(
                shown_name(key), one.at, _level(one.what), one.what, shown_name(one.where), shown_text(one.text)
            )


def _level(what: str) -> Level:
    return Level.WARN if what == REFUSED or Reason(what).is_warning else Level.WELL


def _violations(node: NodeStatus) -> Iterator[EventLine]:
    for one in node.violations.last if node.violations else ():
        where = f"{one.namespace}/{one.pod}" if one.pod else f"pid {one.pid}"
        text = f"{one.message}; {one.outcome}" if one.outcome else one.message
        key = f"violation {one.at:.3f} {one.pid} {one.kind}"
        yield EventLine(key, one.at, Level.WARN, one.kind.value, shown_name(where), shown_text(text))


def _older_faults(node: NodeStatus, since: float) -> Iterator[EventLine]:
    """Those of which this agent knows from the domain's record alone."""
    for domain in node.domains:
        at = domain.faults.last
        if at is not None and at < since:
            key = f"fault {domain.name} {at:.3f}"
            yield EventLine(key, at, Level.WARN, Reason.FAULT.value, domain.name, shown_text(_hit(domain.faults)))


def _hit(faults: FaultsStatus) -> str:
    return ", ".join(f"{one.pod or 'processes of no known pod'} ({one.processes})" for one in faults.hit)


# Pods that wait for a GPU, as the page of a node and that of a cluster show them.
#
# One rule: every sentence is the one that `kubectl mps explain` has, whoever shows it.

MOST_ON_NODE = 200
# Nothing that happens in the cluster by itself ends these.
_FOR_EVER = frozenset({Why.ASKS_UNREADABLY, Why.OTHER_SCHEDULER, Why.NO_NODE, Why.TOO_LARGE})


@dataclass(frozen=True, slots=True)
class Times:
    """How times are written in the API, and read."""

    stamp: Stamp
    seconds: Seconds


def pod_card(pod: PodSeen, told: Explanation, seconds: Seconds) -> WaitingCard:
    request = pod.shared.request if pod.shared else None
    began = pod.bound if pod.node else pod.shared.created if pod.shared else ""
    return WaitingCard(
        id=pod.name.uid or str(pod.name),
        name=shown_name(str(pod.name)),
        level=Level.BAD if told.why in _FOR_EVER else Level.WARN,
        why=told.why.value,
        text=shown_text(told.sentence),
        memory_mib=request.memory_mib if request else None,
        thread_percent=request.thread_percent if request else None,
        gpus=request.gpus if request else None,
        since=seconds(began),
    )


def own_scene(node: str, view: NodeView, policy: Policy, times: Times) -> ExplanationContext:
    """What is known around the pods of a node on the node itself: what its MPSNode will tell of this view."""
    status = mpsnode_status(view, policy, {}, times.stamp)
    told = read_mpsnode({"metadata": {"name": node}, "status": status}, view.now, times.seconds)
    return ExplanationContext(policy, view.now, {node: told}, {}, None)


def pods_here(
    pods: Sequence[PodSeen], warnings: Mapping[str, str], around: ExplanationContext, heard: PodsHeard, times: Times
) -> PodsHere:
    """pods: those bound to the node that do not run yet. warnings: by uid, the last event that each was told."""
    listed = pods[:MOST_ON_NODE]
    cards = (pod_card(pod, story(pod, around, warnings.get(pod.name.uid, "")), times.seconds) for pod in listed)
    return PodsHere(tuple(cards), len(pods) - len(listed), heard)
