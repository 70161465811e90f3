"""The pages of a node (its status, its pods that do not run yet, recent events) and of
a cluster.

Every sentence is one of the status or of `kubectl mps explain`; here is decided what is shown
where, and how bad it is.
"""

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
from mpsd.model.node_report import NodeReport, WaitingReport
from mpsd.model.node_view import NodeView
from mpsd.model.policy import Policy
from mpsd.model.problem import shortened, shown_name
from mpsd.model.quantity import gib
from mpsd.model.times import DAY_S, epoch
from mpsd.model.violations import DONE
from mpsd.status.page.rules import view
from mpsd.status.page.rules.view import EventLine, Level, Note, NoteKind, PageView, Slice

if TYPE_CHECKING:
    from mpsd.status.rules.pods import ExplanationContext, PodSeen

MOST_WAITING = 200
MOST_ON_NODE = 200
MOST_RECENT = 60
_MOST_FOREIGN = 50
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
    kubelet is. wedged_limit_s: of the policy; None where it is not known."""
    more = max(0, len(node.waiting) - MOST_WAITING) + (pods.more if pods else 0)
    heard, cards = (pods.heard, pods.cards) if pods else (None, ())
    head = view.PageHead(
        view.PageScope.NODE, shown_name(name), node.version, node.now, waiting_more=more, pods=heard
    )
    notes = tuple(_notes(node, wedged_limit_s))
    gpus = tuple(_gpus(node))
    waiting = (*cards, *_waiting(node.waiting[:MOST_WAITING]))
    recent = view.newest(_recent(node, happened, since))[:MOST_RECENT]
    return PageView(head, notes, (), gpus, waiting, recent)


def _gpus(node: NodeReport) -> Iterator[view.GpuCard]:
    domains = {domain.name: domain for domain in node.domains}
    holder = view.SliceHolder.FOREIGN
    for row in served_gpus(node):
        foreign = [one for one in node.clients or () if one.grant is None and one.gpu == row.uuid]
        theirs = (
            Slice(
                gpu=one.gpu,
                id=f"pid-{one.pid}",
                holder=holder,
                name=shown_name(one.command),
                used_mib=one.used_mib,
                clients=1,
                pid=one.pid,
            )
            for one in foreign[:_MOST_FOREIGN]
        )
        card = view.gpu_card(
            row,
            domains.get(row.domain),
            (*view.grant_slices(row.uuid, node.grants or ()), *theirs),
        )
        yield card if node.grants_known else structs.replace(card, slices=None)


def _waiting(queue: Iterable[WaitingReport]) -> Iterator[view.WaitingCard]:
    for place, one in enumerate(queue, 1):
        name = shown_name(f"pid {one.holder_pid}: {one.command}")
        why = view.shown_text(one.reason)
        share = one.memory_mib, one.thread_percent, one.gpus
        yield view.WaitingCard(one.id, name, Level.WARN, "", why, *share, place=place)


# -- what an operator should look at -------------------------------------------------------------


def _notes(node: NodeReport, wedged_limit_s: float | None) -> Iterator[Note]:
    for domain in node.domains:
        yield from view.domain_notes(domain, wedged_limit_s)
    yield from view.no_daemon_notes(served_gpus(node))
    if node.violations and node.violations.unjudged:
        yield Note(
            "unjudged", Level.BAD, NoteKind.UNJUDGED, "", view.shown_text(node.violations.unjudged)
        )
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
            yield Note(f"over {grant.id}", Level.WARN, NoteKind.OVER, who, ", ".join(over))
    labels = {gpu.uuid: gpu.label for gpu in node.gpus}
    for one in [one for one in node.clients or () if one.grant is None][:_MOST_FOREIGN]:
        kind = NoteKind.WITHOUT_GRANT if one.on_mps else NoteKind.OUTSIDE_MPS
        where = f"{labels.get(one.gpu, one.gpu)}, pid {one.pid}"
        yield Note(
            f"foreign {one.gpu} {one.pid}", Level.WARN, kind, where, view.shown_text(one.command)
        )
    for place, what in enumerate(node.unknown):
        yield Note(f"unknown {place}", Level.BAD, NoteKind.UNKNOWN, "", view.shown_text(what))


# -- what happened recently ------------------------------------------------------------------------


def last_warnings(happened: Iterable[PastEvent]) -> Mapping[str, str]:
    """By uid, the last warning that each pod got: reason and message, as its event has them."""
    found = sorted(
        (one for one in happened if one.uid and _level(one.what) is Level.WARN),
        key=lambda one: one.at,
    )
    return {one.uid: f"{one.what}: {one.text}" for one in found}


def _level(what: str) -> Level:
    return Level.WARN if what == REFUSED or Reason(what).is_warning else Level.WELL


def _recent(node: NodeReport, happened: Iterable[PastEvent], since: float) -> Iterator[EventLine]:
    """What one thing did is one line, from whoever knows best how it ended."""
    for one in happened:
        if one.what not in VIOLATION_REASONS:
            key = shown_name(f"{one.what} {one.at:.6f} {one.where}")
            yield EventLine(
                key,
                one.at,
                _level(one.what),
                one.what,
                shown_name(one.where),
                view.shown_text(one.text),
            )
    for seen in node.violations.last if node.violations else ():
        where = shown_name(seen.pod or f"pid {seen.pid}")
        seen_at = epoch(seen.at) or 0.0
        text = view.shown_text(f"{seen.message}; {seen.outcome}" if seen.outcome else seen.message)
        key = f"violation {seen_at:.3f} {seen.pid} {seen.kind}"
        yield EventLine(key, seen_at, Level.WARN, seen.kind, where, text)
    for domain in node.domains:
        at = epoch(domain.faults.last)
        # of which this agent knows from the domain's record alone
        if at is not None and at < since:
            hit = ", ".join(map(str, domain.faults.hit))
            causes = ended_before(map(str, domain.faults.causes))
            text = view.shown_text(f"{hit}; {causes}")
            key = f"fault {domain.name} {at:.3f}"
            yield EventLine(key, at, Level.WARN, Reason.FAULT.value, domain.name, text)


# -- pods that do not run yet --------------------------------------------------------------------


def own_scene(node: str, view: NodeView, policy: Policy) -> "ExplanationContext":
    """What is known around the pods of a node on the node itself: what its MPSNode will tell of
    this view."""
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
    """pods: those bound to the node that do not run yet. warnings: by uid, the last event that each
    was told."""
    from mpsd.status.rules.explanation import explanation_of

    listed = pods[:MOST_ON_NODE]
    cards = (
        view.pod_card(pod, explanation_of(pod, around, warnings.get(pod.name.uid, "")))
        for pod in listed
    )
    return view.PodsHere(tuple(cards), len(pods) - len(listed), heard)


# -- a cluster, of which each node is made once and again only when it has reported --------------


@dataclass(frozen=True, slots=True)
class NodeParts:
    """What is shown of one node. violations: what of the recent events programs did."""

    card: view.NodeCard
    notes: tuple[Note, ...]
    gpus: tuple[view.GpuCard, ...]
    recent: tuple[EventLine, ...]
    violations: tuple[EventLine, ...]


def aged(node: ClusterNode, now: float) -> ClusterNode:
    """The node as it is to be shown now, which was read when it was reported; the very same while
    it is not stale."""
    if not is_stale(node.reported_at, now):
        return node
    return structs.replace(node, stale=True, ready=False)


def node_parts(node: ClusterNode, now: float, wedged_limit_s: float | None = None) -> NodeParts:
    """now: seconds since 1970. wedged_limit_s: of the policy; None where it is not known."""
    domains = {domain.name: domain for domain in node.domains}
    gpus = tuple(
        view.gpu_card(
            gpu,
            domains.get(gpu.domain),
            None if node.pods is None else view.grant_slices(gpu.uuid, node.pods),
        )
        for gpu in node.gpus
    )
    notes = tuple(_node_notes(node, now, wedged_limit_s))
    levels = {
        Level.WELL if node.ready else Level.WARN,
        *(note.level for note in notes),
        *(gpu.level for gpu in gpus),
    }
    worst = next(level for level in Level if level in levels)  # the worst is the first
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
    nodes: Iterable[NodeParts],
    waiting: Iterable[view.WaitingCard],
    notes: Sequence[Note] = (),
) -> view.PageView:
    """waiting: of pods, as `pod_card` makes them; the head says how many there are beside these."""
    parts = list(nodes)
    violations = view.newest(line for node in parts for line in node.violations)[:MOST_VIOLATIONS]
    recent = view.newest([*violations, *(line for node in parts for line in node.recent)])[
        :MOST_RECENT
    ]
    every_note = (*notes, *(note for node in parts for note in node.notes))
    cards = tuple(node.card for node in parts)
    gpus = tuple(gpu for node in parts for gpu in node.gpus)
    return view.PageView(head, every_note, cards, gpus, tuple(waiting), recent)


def no_mpsnode(node: str) -> Note:
    """Of a node that is labelled."""
    return Note(f"no-mpsnode {node}", Level.BAD, NoteKind.NO_MPSNODE, shown_name(node), "")


def _node_notes(node: ClusterNode, now: float, wedged_limit_s: float | None) -> Iterator[Note]:
    where = shown_name(node.name)
    if silent := silence(node, now):
        yield Note(
            f"silent {where}",
            Level.BAD,
            NoteKind.SILENT,
            where,
            view.shown_text(silent),
            node.reported_at,
        )
    for place, trouble in enumerate(one for one in troubles(node, now) if one != silent):
        yield Note(
            f"node {where} {place}", Level.WARN, NoteKind.NODE, where, view.shown_text(trouble)
        )
    for domain in node.domains:
        yield from view.domain_notes(domain, wedged_limit_s, node.name)
    yield from view.no_daemon_notes(node.gpus)


def _reported_events(node: ClusterNode, now: float) -> Iterator[EventLine]:
    """What an MPSNode still reports of a day: faults, and domains whose state has changed after
    they first served."""
    for domain in node.domains:
        where = f"{shown_name(node.name)} {shown_name(domain.name)}"
        last = epoch(domain.faults.last)
        since = epoch(domain.since)
        if last is not None and now - last < DAY_S:
            key = f"fault {where} {last:.0f}"
            text = view.shown_text(ended_before(map(str, domain.faults.causes)))
            yield EventLine(key, last, Level.WARN, Reason.FAULT.value, where, text)
        changed = domain.state != State.READY or domain.restarts
        if since is not None and now - since < DAY_S and changed:
            key = f"state {where} {since:.0f}"
            level = view.level_of(domain.state)
            yield EventLine(
                key, since, level, shown_name(domain.state), where, view.shown_text(domain.reason)
            )


def _reported_violations(node: ClusterNode, now: float) -> Iterator[EventLine]:
    """The last of each pod, and of all; one that is reported as both has the same id."""
    found = []
    for grant in node.pods or ():
        if grant.violations and grant.violations.last:
            last = grant.violations.last
            found.append((last, last.pod or grant.pod))
    if node.violations:
        found += [(one, one.pod) for one in node.violations.last]
    for one, pod in found:
        at = epoch(one.at)
        if at is not None and now - at < DAY_S:
            where = shown_name(f"{node.name} {pod}" if pod else node.name)
            key = f"violation {one.kind} {one.action} {at} {where}"
            yield EventLine(
                shown_name(key),
                at,
                Level.WARN,
                shown_name(one.kind),
                where,
                DONE.get(one.action, ""),
            )
