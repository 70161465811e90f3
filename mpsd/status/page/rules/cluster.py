"""The page of a cluster: its nodes, and the pods that wait for them.

Every sentence is one of `kubectl mps` or `kubectl mps explain`; here is decided what is shown where, and how bad it is.
What is shown of a node follows from its MPSNode alone, and is made anew only with that.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from mpsd.model.cluster_status import (
    ClusterNode,
    is_stale,
    pod_rows,
    silence,
    troubles,
)
from mpsd.model.domain import State
from mpsd.model.events import Reason
from mpsd.model.problem import shown_name
from mpsd.model.times import DAY_S
from mpsd.model.violations import DONE
from mpsd.status.page.rules.view import (
    VERSION,
    EventLine,
    GpuCard,
    Level,
    NodeCard,
    Note,
    NoteKind,
    PageHead,
    PageView,
    WaitingCard,
    domain_notes,
    gpu_card,
    grant_slices,
    level_of,
    no_daemon_notes,
    shown_text,
)

MOST_WAITING, MOST_LATELY = 1000, 60
MOST_VIOLATIONS = 30  # of those, so that no tenant pushes all else out
LATELY_S = DAY_S


@dataclass(frozen=True, slots=True)
class NodeParts:
    """What is shown of one node. violations: what of that happened lately was done by programs."""

    card: NodeCard
    notes: tuple[Note, ...]
    gpus: tuple[GpuCard, ...]
    lately: tuple[EventLine, ...]
    violations: tuple[EventLine, ...]


def aged(node: ClusterNode, now: float) -> ClusterNode:
    """The node as it is to be shown now, which was read when it was reported; the very same while it is not stale."""
    return replace(node, stale=True, ready=False) if is_stale(node.told_at, now) else node


def node_parts(node: ClusterNode, now: float) -> NodeParts:
    """now: seconds since 1970."""
    domains = {domain.name: domain for domain in node.domains}
    pods = None if node.pods is None else pod_rows(node)
    gpus = tuple(
        gpu_card(gpu, domains.get(gpu.domain or ""), None if pods is None else grant_slices(gpu.uuid, pods))
        for gpu in node.gpus
    )
    notes = tuple(_notes(node, now))
    worst = _worst([note.level for note in notes] + [gpu.level for gpu in gpus])
    card = NodeCard(
        id=shown_name(node.name),
        level=worst if worst is not Level.WELL or node.ready else Level.WARN,
        stale=node.stale,
        told_at=node.told_at,
        driver=shown_name(node.driver),
        version=shown_name(node.version),
        cordoned=shown_name(node.cordoned_labels),
    )
    violations = {line.id: line for line in _violations(node, now)}
    return NodeParts(card, notes, gpus, tuple(_lately(node, now)), tuple(violations.values()))


def cluster_page(
    head: PageHead, nodes: Iterable[NodeParts], waiting: Iterable[WaitingCard], notes: Sequence[Note] = ()
) -> PageView:
    """waiting: of pods, as `pod_card` makes them; the head says how many there are beside these."""
    parts = list(nodes)
    violations = _newest(line for node in parts for line in node.violations)[:MOST_VIOLATIONS]
    lately = _newest([*violations, *(line for node in parts for line in node.lately)])
    return PageView(
        version=VERSION,
        head=head,
        notes=(*notes, *(note for node in parts for note in node.notes)),
        nodes=tuple(node.card for node in parts),
        gpus=tuple(gpu for node in parts for gpu in node.gpus),
        waiting=tuple(waiting),
        lately=tuple(lately[:MOST_LATELY]),
    )


def _newest(lines: Iterable[EventLine]) -> Sequence[EventLine]:
    """The newest first."""
    return sorted(lines, key=lambda line: (-line.at, line.id))


def no_mpsnode(node: str) -> Note:
    """Of a node that is labelled and has no MPSNode."""
    return Note(f"no-mpsnode {node}", Level.BAD, NoteKind.NO_MPSNODE, shown_name(node), "")


def _worst(levels: Iterable[Level]) -> Level:
    found = set(levels)
    return next((level for level in (Level.BAD, Level.WARN) if level in found), Level.WELL)


def _notes(node: ClusterNode, now: float) -> Iterator[Note]:
    where = shown_name(node.name)
    silent = silence(node, now)
    if silent:
        yield Note(f"silent {where}", Level.BAD, NoteKind.SILENT, where, shown_text(silent), node.told_at)
    for place, trouble in enumerate(one for one in troubles(node, now) if one != silent):
        yield Note(f"node {where} {place}", Level.WARN, NoteKind.NODE, where, shown_text(trouble))
    for domain in node.domains:
        yield from domain_notes(domain)
    yield from no_daemon_notes(node.gpus)


def _lately(node: ClusterNode, now: float) -> Iterator[EventLine]:
    """What an MPSNode still reports of a day: faults, and domains whose state has changed after they first served."""
    for domain in node.domains:
        where = f"{shown_name(node.name)} {shown_name(domain.name)}"
        if domain.last_fault is not None and now - domain.last_fault < LATELY_S:
            key = f"fault {where} {domain.last_fault:.0f}"
            yield EventLine(key, domain.last_fault, Level.WARN, Reason.FAULT.value, where, "")
        changed = domain.state != State.READY or domain.restarts
        if domain.since is not None and now - domain.since < LATELY_S and changed:
            key = f"state {where} {domain.since:.0f}"
            level = level_of(domain.state)
            yield EventLine(key, domain.since, level, shown_name(domain.state), where, shown_text(domain.reason))


def _violations(node: ClusterNode, now: float) -> Iterator[EventLine]:
    """The last of each pod, and of all; one that is reported as both has the same id."""
    of_pods = [pod.violations.last for pod in node.pods or () if pod.violations and pod.violations.last]
    for one in (*of_pods, *(node.violations.last if node.violations else ())):
        if one.at is not None and now - one.at < LATELY_S:
            where = shown_name(f"{node.name} {one.namespace}/{one.pod}" if one.pod else node.name)
            key = f"violation {one.kind} {one.action} {one.at} {where}"
            yield EventLine(shown_name(key), one.at, Level.WARN, shown_name(one.kind), where, DONE.get(one.action, ""))
