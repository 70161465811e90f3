"""The page of a node: its status, its pods that do not run yet, and what happened there lately.

Every sentence is one of the status or of `kubectl mps explain`; here is decided what is shown where, and how bad it is.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from mpsd.agent.rules.node_events import REFUSED, VIOLATION_REASONS
from mpsd.model.cluster_status import GrantRow, domain_rows, gpu_rows, grant_rows
from mpsd.model.events import PastEvent, Reason
from mpsd.model.mpsnode_reading import read_mpsnode
from mpsd.model.node_status import ClientStatus, NodeStatus, WaitingStatus
from mpsd.model.node_view import NodeView
from mpsd.model.policy import Policy
from mpsd.model.problem import shown_name
from mpsd.model.quantity import gib
from mpsd.status.page.rules.view import (
    VERSION,
    EventLine,
    GpuCard,
    Level,
    Note,
    NoteKind,
    PageHead,
    PageScope,
    PageView,
    PodsHeard,
    PodsHere,
    Slice,
    SliceHolder,
    WaitingCard,
    domain_notes,
    gpu_card,
    grant_slices,
    holder_of,
    no_daemon_notes,
    pod_card,
    shown_text,
)
from mpsd.status.rules.explanation import story
from mpsd.status.rules.mpsnode import mpsnode_status
from mpsd.status.rules.pods import ExplanationContext, PodSeen

MOST_WAITING, MOST_ON_NODE, MOST_LATELY, _MOST_STRANGERS = 200, 200, 60, 50


def node_page(
    node: NodeStatus,
    name: str,
    happened: Iterable[PastEvent] = (),
    since: float = 0.0,
    pods: PodsHere | None = None,
) -> PageView:
    """happened: what the agent remembers, from `since` (seconds since 1970) on. pods: None where no kubelet is."""
    more = max(0, len(node.waiting) - MOST_WAITING) + (pods.more if pods else 0)
    grants = grant_rows(node)
    return PageView(
        version=VERSION,
        head=PageHead(
            scope=PageScope.NODE,
            name=shown_name(name),
            version=node.version,
            at=node.now,
            waiting_more=more,
            pods=pods.heard if pods else None,
        ),
        notes=tuple(_notes(node, grants)),
        nodes=(),
        gpus=tuple(_gpus(node, grants)),
        waiting=(
            *(pods.cards if pods else ()),
            *(_waiting(one, place) for place, one in enumerate(node.waiting[:MOST_WAITING], 1)),
        ),
        lately=tuple(_lately(node, happened, since)),
    )


def _gpus(node: NodeStatus, grants: Sequence[GrantRow]) -> Iterator[GpuCard]:
    domains = {row.name: row for row in domain_rows(node)}
    for row in gpu_rows(node):
        slices = (*grant_slices(row.uuid, grants), *_strangers(row.uuid, node.clients or ()))
        card = gpu_card(row, domains.get(row.domain or ""), slices)
        yield card if node.grants_known else replace(card, granted_mib=None, granted_percent=None, slices=None)


def _strangers(gpu: str, clients: Iterable[ClientStatus]) -> Iterator[Slice]:
    """Processes on the GPU that have no grant."""
    found = [one for one in clients if one.grant is None and one.gpu == gpu]
    for one in found[:_MOST_STRANGERS]:
        yield Slice(
            id=f"pid-{one.pid}",
            holder=SliceHolder.STRANGER,
            name=shown_name(one.command),
            memory_mib=None,
            used_mib=one.used_mib,
            thread_percent=None,
            reserved_percent=None,
            clients=1,
            pid=one.pid,
        )


def _waiting(one: WaitingStatus, place: int) -> WaitingCard:
    return WaitingCard(
        id=one.id,
        name=shown_name(f"pid {one.holder_pid}: {one.command}"),
        level=Level.WARN,
        why="",
        text=shown_text(one.reason),
        memory_mib=one.memory_mib,
        thread_percent=one.thread_percent,
        gpus=one.gpus,
        place=place,
    )


# -- what an operator should look at -------------------------------------------------------------------------------


def _notes(node: NodeStatus, grants: Sequence[GrantRow]) -> Iterator[Note]:
    for row, domain in zip(domain_rows(node), node.domains, strict=True):
        yield from domain_notes(row, min((one.since for one in domain.faults.suspects), default=None))
    yield from no_daemon_notes(gpu_rows(node))
    if node.violations and node.violations.unjudged:
        yield Note("unjudged", Level.BAD, NoteKind.UNJUDGED, "", shown_text(node.violations.unjudged))
    for grant in grants:
        if grant.over:
            yield Note(f"over {grant.id}", Level.WARN, NoteKind.OVER, holder_of(grant)[1], _use(grant))
    labels = {gpu.uuid: gpu.label for gpu in node.gpus}
    for one in [one for one in node.clients or () if one.grant is None][:_MOST_STRANGERS]:
        kind = NoteKind.WITHOUT_GRANT if one.on_mps else NoteKind.OUTSIDE_MPS
        where = f"{labels.get(one.gpu, one.gpu)}, pid {one.pid}"
        yield Note(f"stranger {one.gpu} {one.pid}", Level.WARN, kind, where, shown_text(one.command))
    for place, what in enumerate(node.unknown):
        yield Note(f"unknown {place}", Level.BAD, NoteKind.UNKNOWN, "", shown_text(what))


def _use(grant: GrantRow) -> str:
    """`9.1/7 GiB` of each GPU on which it is over; amounts need no translation."""
    over = [card for card in grant.cards if card.over]
    return ", ".join(f"{gib(card.used_mib or 0)}/{gib(card.memory_mib)} GiB" for card in over)


# -- what happened lately ------------------------------------------------------------------------------------------


def last_warnings(happened: Iterable[PastEvent]) -> Mapping[str, str]:
    """By uid, the last warning that each pod got: reason and message, as its event has them."""
    found = sorted((one for one in happened if one.uid and _level(one.what) is Level.WARN), key=lambda one: one.at)
    return {one.uid: f"{one.what}: {one.text}" for one in found}


def _lately(node: NodeStatus, happened: Iterable[PastEvent], since: float) -> Sequence[EventLine]:
    """The newest first. What one thing did is one line, from whoever knows best how it ended."""
    found = [*_remembered(happened), *_violations(node), *_older_faults(node, since)]
    return sorted(found, key=lambda line: (-line.at, line.id))[:MOST_LATELY]


def _remembered(happened: Iterable[PastEvent]) -> Iterator[EventLine]:
    for one in happened:
        if one.what not in VIOLATION_REASONS:
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
            yield EventLine(
                key, at, Level.WARN, Reason.FAULT.value, domain.name, shown_text(", ".join(map(str, domain.faults.hit)))
            )


# -- pods that do not run yet --------------------------------------------------------------------------------------


def own_scene(node: str, view: NodeView, policy: Policy) -> ExplanationContext:
    """What is known around the pods of a node on the node itself: what its MPSNode will tell of this view."""
    status = mpsnode_status(view, policy, {})
    told = read_mpsnode({"metadata": {"name": node}, "status": status}, view.now)
    return ExplanationContext(policy, view.now, {node: told}, {}, None)


def pods_here(
    pods: Sequence[PodSeen], warnings: Mapping[str, str], around: ExplanationContext, heard: PodsHeard
) -> PodsHere:
    """pods: those bound to the node that do not run yet. warnings: by uid, the last event that each was told."""
    listed = pods[:MOST_ON_NODE]
    cards = (pod_card(pod, story(pod, around, warnings.get(pod.name.uid, ""))) for pod in listed)
    return PodsHere(tuple(cards), len(pods) - len(listed), heard)
