"""What the page shows: the shape of `GET /v1/page`, the same for one node and for a whole cluster;
and what both pages make of rows.

What is reported has its name and unit from model.node_report. What is not known is None, never 0.
Every entry of a list has an `id` that stays the same while it is the same thing, by which changes
are found.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from mpsd.model.cluster_status import ServedGpu
from mpsd.model.domain import DRAINS, State, remedy
from mpsd.model.node_report import CardReport, DomainReport, GrantReport, total
from mpsd.model.problem import printable, shown_name
from mpsd.model.times import epoch, seconds

if TYPE_CHECKING:  # as in page.rules.pages
    from mpsd.status.rules.pods import Explanation, PodSeen

_LONGEST_TEXT = 2000


class Level(StrEnum):
    """How much something wants an operator, the worst first."""

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
    FOREIGN = "foreign"  # a process on the GPU that has no grant


class Slice(CardReport, frozen=True, omit_defaults=False, kw_only=True):
    """What one holder has of one GPU; memory_mib None: not reported, or nothing was granted
    (FOREIGN)."""

    id: str
    holder: SliceHolder
    #: `namespace/pod`, a container's name, or a command.
    name: str
    thread_percent: int | None = None
    clients: int | None = None
    #: Of a program or a foreign process.
    pid: int | None = None
    #: Its holder is gone, though not all of its processes.
    ended: bool = False
    #: How often it did what it may not; None: not reported.
    violations: int | None = None
    #: Namespace and name.
    claim: str = ""
    #: The pods that share the claim with it.
    others: tuple[str, ...] = ()


class GpuCard(ServedGpu, frozen=True, kw_only=True):
    id: str
    #: Of its state, or of what is wrong with who is on it.
    level: Level
    #: Of its state: seconds since 1970.
    since: float | None
    reason: str
    #: None: what is granted is not known.
    slices: tuple[Slice, ...] | None


@dataclass(frozen=True, slots=True)
class NodeCard:
    """A node of a cluster. reported_at None: it has told nothing yet. cordoned: labels of its GPUs,
    or `all`."""

    id: str
    level: Level
    stale: bool
    reported_at: float | None
    driver: str
    version: str
    cordoned: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something that wants to be looked at. where: a GPU, a pod, a node. since: seconds since 1970;
    None: not known. remedy: what to do about a domain that does not serve; empty where there is
    nothing to do. restart_at: seconds since 1970 when a wedged domain is restarted; None: it is
    not, or it is not known when."""

    id: str
    level: Level
    kind: NoteKind
    where: str
    text: str
    since: float | None = None
    state: str = ""
    remedy: str = ""
    restart_at: float | None = None


@dataclass(frozen=True, slots=True)
class WaitingCard:
    """Who waits for a GPU, and why. why: a value of status.rules.pods.Why; empty for a program on
    this node. place: in the queue, 0 where there is none. since: seconds since 1970 when a pod was
    bound to its node, or made where it has none; None: not reported."""

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
    model.violations.ViolationKind, `Refused` for a program that was told no, or a domain's state.
    """

    id: str
    at: float
    level: Level
    what: str
    where: str
    text: str


@dataclass(frozen=True, slots=True)
class PodsHeard:
    """How far it is known which pods of a node do not run yet. away: why nothing is heard of them;
    empty while it is. since: seconds since 1970 since when; None where they were never heard of, so
    that none listed means nothing."""

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
    """at: when what is shown was seen, seconds since 1970. away: why nothing is heard since
    `away_since`; empty while it is. waiting_more: how many wait beside those that are listed. pods:
    of a node beside a kubelet, whose pods are listed once they are bound to it; None: pods do not
    come here, or of a cluster, which lists all of them.
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
    """All of it."""

    head: PageHead
    notes: tuple[Note, ...]
    nodes: tuple[NodeCard, ...]
    gpus: tuple[GpuCard, ...]
    waiting: tuple[WaitingCard, ...]
    recent: tuple[EventLine, ...]


def level_of(state: str | None) -> Level:
    """Of a domain in this state; None where there is no domain."""
    passing = state in {State.STARTING, *DRAINS}
    return Level.WELL if state == State.READY else Level.WARN if passing else Level.BAD


def shown_text(text: str) -> str:
    """What somebody else wrote, for one line: without control characters, and not too long."""
    return printable(text, _LONGEST_TEXT)


def gpu_card(
    gpu: ServedGpu, domain: DomainReport | None, slices: Iterable[Slice] | None
) -> GpuCard:
    """slices: None where it is not known what is granted."""
    known = None if slices is None else tuple(slices)
    level = level_of(gpu.state)
    if level is Level.WELL and any(
        one.over or one.holder is SliceHolder.FOREIGN for one in known or ()
    ):
        level = Level.WARN
    reported = asdict(gpu)
    for field, value in reported.items():
        if isinstance(value, str):
            reported[field] = shown_name(value)
    return GpuCard(
        **reported,
        id=f"{reported['node']}/{reported['uuid']}".removeprefix("/"),
        level=level,
        since=epoch(domain.since) if domain else None,
        reason=shown_text(domain.reason) if domain else "",
        slices=known,
    )


def holder_of(grant: GrantReport) -> tuple[SliceHolder, str]:
    if grant.pod:
        return SliceHolder.POD, shown_name(grant.pod)
    if container := grant.container_in_words:
        return SliceHolder.CONTAINER, shown_name(container)
    return SliceHolder.PROGRAM, shown_name(grant.command)


def grant_slices(gpu: str, grants: Iterable[GrantReport]) -> Iterator[Slice]:
    """Of one GPU (its UUID). A grant whose GPUs are not reported one by one has as much of each,
    and is shown with what it uses of the one where it uses most.
    """
    for grant in grants:
        if gpu in grant.gpus:
            holder, name = holder_of(grant)
            part = next((card for card in grant.cards if card.gpu == gpu), grant)
            seen = grant.violations
            yield Slice(
                gpu=gpu,
                id=grant.id or grant.uid or name,
                holder=holder,
                name=name,
                memory_mib=part.memory_mib,
                used_mib=part.used_mib,
                thread_percent=grant.thread_percent,
                reserved_percent=part.reserved_percent,
                clients=grant.clients,
                pid=grant.holder_pid if holder is SliceHolder.PROGRAM else None,
                over=part.over,
                ended=grant.ended,
                violations=total(one.count for one in seen.counts) if seen else None,
                claim=shown_name(grant.claim),
                others=tuple(map(shown_name, grant.names[1:])),
            )


def domain_notes(
    domain: DomainReport, wedged_limit_s: float | None, node: str = ""
) -> Iterator[Note]:
    """node: of a cluster."""
    where = shown_name(f"{node} {domain.name}".strip())
    level = level_of(domain.state)
    if level is not Level.WELL:
        reason = shown_text(domain.reason)
        state = shown_name(domain.state)
        since = epoch(domain.since)
        restart_at = None
        if domain.state == State.WEDGED and since is not None and wedged_limit_s is not None:
            restart_at = since + wedged_limit_s
        key = f"state {where}"
        what_to_do = remedy(domain.state, domain.reason)
        yield Note(key, level, NoteKind.STATE, where, reason, since, state, what_to_do, restart_at)
    elif domain.doubt:
        yield Note(f"canary {where}", Level.WARN, NoteKind.CANARY, where, shown_text(domain.doubt))
    if suspects := domain.faults.suspects:
        each = ", ".join(
            [f"{one.pod} ({'?' if one.faults is None else one.faults})" for one in suspects]
        )
        first = epoch(min([one.since for one in suspects if one.since], default=None))
        yield Note(
            f"suspects {where}", Level.WARN, NoteKind.SUSPECTS, where, shown_text(each), first
        )


def no_daemon_notes(gpus: Iterable[ServedGpu]) -> Iterator[Note]:
    for gpu in gpus:
        if gpu.state is None:
            where, key = (
                shown_name(f"{gpu.node} {name}".strip()) for name in (gpu.label, gpu.uuid)
            )
            yield Note(f"no-daemon {key}", Level.BAD, NoteKind.NO_DAEMON, where, "")


def newest(lines: Iterable[EventLine]) -> tuple[EventLine, ...]:
    return tuple(sorted(lines, key=lambda line: (-line.at, line.id)))


def pod_card(pod: "PodSeen", answer: "Explanation") -> WaitingCard:
    """A pod that waits, with the sentence of `kubectl mps explain`."""
    request = pod.shared.request if pod.shared else None
    began = pod.bound if pod.node else pod.shared.created if pod.shared else ""
    mib, percent, gpus = (
        (request.memory_mib, request.thread_percent, request.gpus)
        if request
        else (None, None, None)
    )
    level = Level.BAD if answer.why.is_permanent else Level.WARN
    name = str(pod.name)
    words = answer.why.value, shown_text(answer.sentence)
    return WaitingCard(
        pod.name.uid or name,
        shown_name(name),
        level,
        *words,
        mib,
        percent,
        gpus,
        since=seconds(began),
    )
