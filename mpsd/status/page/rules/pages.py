"""The page of a node and that of a cluster: what is shown where, and how bad it is.

Every sentence is one of the status or of `kubectl mps explain`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec import structs

from mpsd.agent.rules.node_events import REFUSED, VIOLATION_REASONS
from mpsd.model.cluster_status import (
    ClusterNode,
    ended_before,
    is_stale,
    served_gpus,
    silence,
    troubles,
)
from mpsd.model.domain import State
from mpsd.model.events import PastEvent, Reason
from mpsd.model.mpsnode import read_mpsnode
from mpsd.model.node_report import (
    ClientReport,
    DomainReport,
    NodeReport,
    NodeStatus,
    ViolationReport,
    WaitingReport,
)
from mpsd.model.node_view import NodeView
from mpsd.model.policy import Policy
from mpsd.model.problem import shortened, shown_name
from mpsd.model.quantity import gib
from mpsd.model.times import DAY_S, epoch
from mpsd.model.violations import DONE
from mpsd.status.page.rules import view
from mpsd.status.page.rules.view import (
    EventLine,
    Level,
    Note,
    NoteKind,
    PageView,
    event_line,
    note,
)

if TYPE_CHECKING:
    from mpsd.status.rules.pods import ExplanationContext, PodSeen

MOST_WAITING = 200
MOST_ON_NODE = 200
MOST_RECENT = 60
MOST_VIOLATIONS = 30  # of what happened recently, so that no tenant pushes all else out


def node_page(
    node: NodeReport,
    name: str,
    happened: Iterable[PastEvent] = (),
    since: float = 0.0,
    pods: view.PodsHere | None = None,
    wedged_limit_s: float | None = None,
) -> PageView:
    """happened: what the agent remembers, from `since` (seconds since 1970) on. pods: None where no
    kubelet is. wedged_limit_s: None where it is not known."""
    more = max(0, len(node.waiting) - MOST_WAITING)
    head = view.PageHead(
        view.PageScope.NODE, shown_name(name), node.version, node.now, waiting_more=more
    )
    waiting = tuple(_waiting(node.waiting[:MOST_WAITING]))
    if pods:
        head = replace(head, waiting_more=more + pods.more, pods=pods.heard)
        waiting = (*pods.cards, *waiting)
    served = served_gpus(node)
    foreign = [one for one in node.clients or () if one.grant is None]
    grants = node.grants or () if node.grants_known else None
    notes = (
        *view.gpu_notes(served, node.domains, wedged_limit_s),
        *_notes(node, foreign[: view.MOST_FOREIGN]),
    )
    gpus = view.gpu_cards(served, node.domains, grants, foreign)
    recent = view.newest(_recent(node, happened, since))[:MOST_RECENT]
    return PageView(head, notes, (), gpus, waiting, recent)


def _waiting(queue: Iterable[WaitingReport]) -> Iterator[view.WaitingCard]:
    for place, one in enumerate(queue, 1):
        name = shown_name(f"pid {one.holder_pid}: {one.command}")
        why = view.shown_text(one.reason)
        share = one.memory_mib, one.thread_percent, one.gpus
        yield view.WaitingCard(one.id, name, Level.WARN, "", why, *share, place=place)


def _notes(node: NodeReport, foreign: Iterable[ClientReport]) -> Iterator[Note]:
    if node.violations and node.violations.unjudged:
        yield note(NoteKind.UNJUDGED, Level.BAD, text=node.violations.unjudged)
    for grant in node.grants or ():
        if grant.over:
            # Amounts need no translation: `9.1/7 GiB` of each GPU on which it is over.
            over = [
                f"{gib(card.used_mib or 0)}/{gib(card.memory_mib or 0)} GiB"
                for card in grant.cards
                if card.over
            ]
            _holder, name = view.holder_of(grant)
            who = shortened((name, *grant.names[1:]), 1)
            found = note(NoteKind.OVER, Level.WARN, who, ", ".join(over), grant.id)
            yield replace(found, where=who)  # how many more are said, however long the name
    labels = node.labels
    for one in foreign:
        kind = NoteKind.WITHOUT_GRANT if one.on_mps else NoteKind.OUTSIDE_MPS
        where = f"{labels.get(one.gpu, one.gpu)}, pid {one.pid}"
        yield note(kind, Level.WARN, where, one.command)
    for place, what in enumerate(node.unknown):
        yield note(NoteKind.UNKNOWN, Level.BAD, text=what, key=str(place))


# -- what happened recently


def last_warnings(happened: Iterable[PastEvent]) -> Mapping[str, str]:
    """By uid, the last warning that each pod got: reason and message, as its event has them."""
    found = [one for one in happened if one.uid and _level(one.what) is Level.WARN]
    found.sort(key=lambda one: one.at)
    return {one.uid: f"{one.what}: {one.text}" for one in found}


def _level(what: str) -> Level:
    return Level.WARN if what == REFUSED or Reason(what).is_warning else Level.WELL


def _recent(node: NodeReport, happened: Iterable[PastEvent], since: float) -> Iterator[EventLine]:
    """What one thing did is one line, from whoever knows best how it ended."""
    for one in happened:
        if one.what not in VIOLATION_REASONS:
            yield event_line(one.what, one.at, one.where, one.text, _level(one.what))
    for seen in _last_violations(node):
        text = "; ".join(filter(None, [seen.message, seen.outcome]))
        where = seen.pod or f"pid {seen.pid}"
        yield event_line(seen.kind, epoch(seen.at) or 0.0, where, text, key=seen.pid)
    for domain in node.domains:
        at = epoch(domain.faults.last)
        # of which this agent knows from the domain's record alone
        if at is not None and at < since:
            yield _fault(domain, at, domain.name)


def _last_violations(node: NodeStatus) -> Iterable[ViolationReport]:
    return node.violations.last if node.violations else ()


def _fault(domain: DomainReport, at: float, where: str) -> EventLine:
    """The last one of a domain: whom it hit, as far as that is reported, and its causes."""
    hit = ", ".join(map(str, domain.faults.hit))
    causes = ended_before(map(str, domain.faults.causes))
    return event_line(Reason.FAULT, at, where, "; ".join(filter(None, [hit, causes])))


# -- pods that do not run yet


def own_scene(node: str, view: NodeView, policy: Policy) -> "ExplanationContext":
    """What is known around the pods of a node on the node itself: what its MPSNode will report."""
    # late, as in pods_here: a node without pods does without
    from mpsd.status.rules.mpsnode import mpsnode_status
    from mpsd.status.rules.node_report import node_report
    from mpsd.status.rules.pods import ExplanationContext

    status = mpsnode_status(node_report(replace(view, waiting=()), policy), {})
    reported = read_mpsnode({"metadata": {"name": node}, "status": status}, view.now)
    return ExplanationContext(policy, view.now, {node: reported}, {}, None)


def pods_here(
    pods: "Sequence[PodSeen]",
    warnings: Mapping[str, str],
    around: "ExplanationContext",
    heard: view.PodsHeard,
) -> view.PodsHere:
    from mpsd.status.rules.explanation import explanation_of

    cards = []
    for pod in pods[:MOST_ON_NODE]:
        answer = explanation_of(pod, around, warnings.get(pod.name.uid, ""))
        cards.append(view.pod_card(pod, answer))
    return view.PodsHere(tuple(cards), len(pods) - len(cards), heard)


# -- a cluster


@dataclass(frozen=True, slots=True)
class NodeParts:
    card: view.NodeCard
    notes: tuple[Note, ...]
    gpus: tuple[view.GpuCard, ...]
    recent: tuple[EventLine, ...]
    violations: tuple[EventLine, ...]


def aged(node: ClusterNode, now: float) -> ClusterNode:
    """The node, which was read when it was reported, as it is now; the very same until it is
    stale."""
    if not is_stale(node.reported_at, now):
        return node
    return structs.replace(node, stale=True, ready=False)


def node_parts(node: ClusterNode, now: float, wedged_limit_s: float | None = None) -> NodeParts:
    gpus = view.gpu_cards(node.gpus, node.domains, node.pods)
    notes = tuple(_node_notes(node, now, wedged_limit_s))
    levels = {note.level for note in notes}.union([gpu.level for gpu in gpus])
    if not node.ready:
        levels.add(Level.WARN)
    worst = next((level for level in Level if level in levels), Level.WELL)
    name, driver, version, cordoned = map(
        shown_name, (node.name, node.driver, node.version, node.cordoned_labels)
    )
    card = view.NodeCard(name, worst, node.stale, node.reported_at, driver, version, cordoned)
    violations = {line.id: line for line in _reported_violations(node, now)}
    return NodeParts(
        card, notes, gpus, tuple(_reported_events(node, now)), tuple(violations.values())
    )


def cluster_page(
    head: view.PageHead,
    nodes: Sequence[NodeParts],
    waiting: Iterable[view.WaitingCard],
    notes: Iterable[Note] = (),
) -> PageView:
    """waiting: of pods, as `pod_card` makes them; the head says how many there are beside these."""
    all_notes = [*notes]
    gpus: list[view.GpuCard] = []
    recent: list[EventLine] = []
    violations: list[EventLine] = []
    for node in nodes:
        all_notes += node.notes
        gpus += node.gpus
        recent += node.recent
        violations += node.violations
    recent += view.newest(violations)[:MOST_VIOLATIONS]
    return PageView(
        head,
        tuple(all_notes),
        tuple([node.card for node in nodes]),
        tuple(gpus),
        tuple(waiting),
        view.newest(recent)[:MOST_RECENT],
    )


def no_mpsnode(node: str) -> Note:
    return note(NoteKind.NO_MPSNODE, Level.BAD, node)


def _node_notes(node: ClusterNode, now: float, wedged_limit_s: float | None) -> Iterator[Note]:
    silent = silence(node, now)
    if silent:
        found = note(NoteKind.SILENT, Level.BAD, node.name, silent)
        yield replace(found, since=node.reported_at)
    for place, trouble in enumerate(troubles(node, now)):
        if trouble != silent:
            yield note(NoteKind.NODE, Level.WARN, node.name, trouble, f"{place} {node.name}")
    yield from view.gpu_notes(node.gpus, node.domains, wedged_limit_s, node.name)


def _reported_events(node: ClusterNode, now: float) -> Iterator[EventLine]:
    """What an MPSNode still reports of a day: faults, and domains whose state has changed after
    they first served."""
    for domain in node.domains:
        where = f"{node.name} {domain.name}"
        last = epoch(domain.faults.last)
        since = epoch(domain.since)
        if last is not None and now - last < DAY_S:
            yield _fault(domain, last, where)
        changed = domain.state != State.READY or domain.restarts
        if since is not None and now - since < DAY_S and changed:
            level = view.level_of(domain.state)
            yield event_line(domain.state, since, where, domain.reason, level)


def _reported_violations(node: ClusterNode, now: float) -> Iterator[EventLine]:
    """The last of each pod, and of all; one that is reported as both has the same id."""
    lasts = [(grant.pod, grant.violations and grant.violations.last) for grant in node.pods or ()]
    lasts += [("", one) for one in _last_violations(node)]
    for pod, one in lasts:
        if one and (at := epoch(one.at)) is not None and now - at < DAY_S:
            where = f"{node.name} {one.pod or pod}".strip()
            yield event_line(one.kind, at, where, DONE.get(one.action, ""), key=one.action)
