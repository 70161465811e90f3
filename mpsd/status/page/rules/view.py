"""The shape of `GET /v1/page`, the same for one node and for a cluster, and its entries.

Names and units are those of model.node_report. What is not known is None, never 0. An entry's `id`
stays the same while it is the same thing, by which the page finds changes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import structs
from msgspec.structs import asdict

from mpsd.model.cluster_status import ServedGpu
from mpsd.model.domain import DRAINS, State, remedy
from mpsd.model.node_report import CardReport, ClientReport, DomainReport, GrantReport, total
from mpsd.model.problem import printable, shown_name
from mpsd.model.times import epoch, seconds

if TYPE_CHECKING:  # as in page.rules.pages
    from mpsd.status.rules.pods import Explanation, PodSeen

MOST_FOREIGN = 50
_LONGEST_TEXT = 2000
_NO_DOMAIN = DomainReport()


class Level(StrEnum):
    """How much something wants an operator, the worst first."""

    BAD = "bad"  # programs are stopped, or nobody knows whether limits hold
    WARN = "warn"  # to be looked at, in the morning
    WELL = "well"


class PageScope(StrEnum):
    NODE = "node"
    CLUSTER = "cluster"


class NoteKind(StrEnum):
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
    POD = "pod"
    CONTAINER = "container"
    PROGRAM = "program"
    FOREIGN = "foreign"  # a process on the GPU that has no grant


class Slice(CardReport, frozen=True, omit_defaults=False, kw_only=True):
    """What one holder has of one GPU; memory_mib None: not reported, or FOREIGN."""

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
    """Of a cluster. reported_at None: it has told nothing yet. cordoned: labels, or `all`."""

    id: str
    level: Level
    stale: bool
    reported_at: float | None
    driver: str
    version: str
    cordoned: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something that wants to be looked at, of a GPU, a pod or a node. Times are seconds since
    1970, None where they are not known. remedy: for a domain that does not serve. restart_at: of a
    wedged domain."""

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
    """Who waits for a GPU. why: a value of status.rules.pods.Why; empty for a program on this node.
    place: in the queue, 0 where there is none. since: seconds since 1970 when a pod was bound to
    its node, or made where it has none; None: not reported."""

    id: str
    name: str
    level: Level
    why: str
    text: str
    memory_mib: int | None = None
    thread_percent: int | None = None
    gpus: int | None = None
    place: int = 0
    since: float | None = None


@dataclass(frozen=True, slots=True)
class EventLine:
    """at: seconds since 1970. what: a value of model.events.Reason or of
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
    """Of the pods of a node that do not run yet. away: why nothing is heard of them since `since`;
    None where they were never heard of, so that none listed means nothing."""

    away: str = ""
    since: float | None = None


@dataclass(frozen=True, slots=True)
class PodsHere:
    cards: tuple[WaitingCard, ...]
    more: int
    heard: PodsHeard


@dataclass(frozen=True, slots=True)
class PageHead:
    """at: when what is shown was seen, seconds since 1970. away: why nothing is heard since
    `away_since`; empty while it is. waiting_more: how many wait beside those that are listed. pods:
    of a node beside a kubelet; None: pods do not come here, or a cluster lists all of them.
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
    head: PageHead
    notes: tuple[Note, ...]
    nodes: tuple[NodeCard, ...]
    gpus: tuple[GpuCard, ...]
    waiting: tuple[WaitingCard, ...]
    recent: tuple[EventLine, ...]


def level_of(state: str | None) -> Level:
    """Of a domain in this state; None where there is no domain."""
    if state == State.READY:
        return Level.WELL
    return Level.WARN if state in {State.STARTING, *DRAINS} else Level.BAD


def shown_text(text: str) -> str:
    return printable(text, _LONGEST_TEXT)


def note(kind: NoteKind, level: Level, where: str = "", text: str = "", key: str = "") -> Note:
    """key: what tells it from others of its kind, where `where` does not."""
    return Note(
        shown_name(f"{kind} {key or where}"), level, kind, shown_name(where), shown_text(text)
    )


def event_line(
    what: str, at: float, where: str, text: str, level: Level = Level.WARN, key: object = ""
) -> EventLine:
    """key: what tells it from others of its kind, place and time."""
    own = shown_name(f"{what} {at:.6f} {key} {where}")
    return EventLine(own, at, level, shown_name(what), shown_name(where), shown_text(text))


def newest(lines: Iterable[EventLine]) -> tuple[EventLine, ...]:
    return tuple(sorted(lines, key=lambda line: (-line.at, line.id)))


# -- GPUs, and who has slices of them


def gpu_cards(
    gpus: Iterable[ServedGpu],
    domains: Iterable[DomainReport],
    grants: Iterable[GrantReport] | None,
    foreign: Iterable[ClientReport] = (),
) -> tuple[GpuCard, ...]:
    """grants: None where they are not known. foreign: processes without a grant."""
    of_name = {domain.name: domain for domain in domains}
    found = []
    for gpu in gpus:
        slices = (*grant_slices(gpu.uuid, grants or ()), *_foreign_slices(gpu.uuid, foreign))
        card = _gpu_card(gpu, of_name.get(gpu.domain, _NO_DOMAIN), slices)
        if grants is None:
            card = structs.replace(card, slices=None)
        found.append(card)
    return tuple(found)


def _gpu_card(gpu: ServedGpu, domain: DomainReport, slices: tuple[Slice, ...]) -> GpuCard:
    level = level_of(gpu.state)
    amiss = [one for one in slices if one.over or one.holder is SliceHolder.FOREIGN]
    if level is Level.WELL and amiss:
        level = Level.WARN
    reported = asdict(gpu)
    for field, value in reported.items():
        if isinstance(value, str):
            reported[field] = shown_name(value)
    return GpuCard(
        **reported,
        id=f"{reported['node']}/{reported['uuid']}".removeprefix("/"),
        level=level,
        since=epoch(domain.since),
        reason=shown_text(domain.reason),
        slices=slices,
    )


def holder_of(grant: GrantReport) -> tuple[SliceHolder, str]:
    if grant.pod:
        return SliceHolder.POD, shown_name(grant.pod)
    if container := grant.container_in_words:
        return SliceHolder.CONTAINER, shown_name(container)
    return SliceHolder.PROGRAM, shown_name(grant.command)


def grant_slices(gpu: str, grants: Iterable[GrantReport]) -> Iterator[Slice]:
    """A grant whose GPUs are not reported one by one has as much of each, and is shown with what it
    uses of the one where it uses most."""
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


def _foreign_slices(gpu: str, foreign: Iterable[ClientReport]) -> Iterator[Slice]:
    for one in [one for one in foreign if one.gpu == gpu][:MOST_FOREIGN]:
        yield Slice(
            gpu=gpu,
            id=f"pid-{one.pid}",
            holder=SliceHolder.FOREIGN,
            name=shown_name(one.command),
            used_mib=one.used_mib,
            clients=1,
            pid=one.pid,
        )


# -- notes, and who waits


def gpu_notes(
    gpus: Iterable[ServedGpu],
    domains: Iterable[DomainReport],
    wedged_limit_s: float | None,
    node: str = "",
) -> Iterator[Note]:
    for domain in domains:
        yield from _domain_notes(domain, f"{node} {domain.name}".strip(), wedged_limit_s)
    for gpu in gpus:
        if gpu.state is None:
            where = f"{node} {gpu.label}".strip()
            yield note(NoteKind.NO_DAEMON, Level.BAD, where, key=f"{gpu.uuid} {node}")


def _domain_notes(domain: DomainReport, where: str, wedged_limit_s: float | None) -> Iterator[Note]:
    level = level_of(domain.state)
    if level is not Level.WELL:
        since = epoch(domain.since)
        restart_at = None
        if domain.state == State.WEDGED and since is not None and wedged_limit_s is not None:
            restart_at = since + wedged_limit_s
        yield replace(
            note(NoteKind.STATE, level, where, domain.reason),
            since=since,
            state=shown_name(domain.state),
            remedy=remedy(domain.state, domain.reason),
            restart_at=restart_at,
        )
    elif domain.doubt:
        yield note(NoteKind.CANARY, Level.WARN, where, domain.doubt)
    if suspects := domain.faults.suspects:
        each = [f"{one.pod} ({'?' if one.faults is None else one.faults})" for one in suspects]
        first = min([one.since for one in suspects if one.since], default=None)
        found = note(NoteKind.SUSPECTS, Level.WARN, where, ", ".join(each))
        yield replace(found, since=epoch(first))


def pod_card(pod: "PodSeen", answer: "Explanation") -> WaitingCard:
    """A pod that waits, with the sentence of `kubectl mps explain`."""
    name = str(pod.name)
    level = Level.BAD if answer.why.is_permanent else Level.WARN
    card = WaitingCard(
        pod.name.uid or name,
        shown_name(name),
        level,
        answer.why.value,
        shown_text(answer.sentence),
        since=seconds(pod.bound),
    )
    if pod.shared is None:
        return card
    if not pod.node:
        card = replace(card, since=seconds(pod.shared.created))
    request = pod.shared.request
    percent = request.thread_percent
    return replace(card, memory_mib=request.memory_mib, thread_percent=percent, gpus=request.gpus)
