"""A node's status as its page shows it.

One rule: every sentence is the one that the status has; here is only chosen what is shown where, and how bad it is.
"""

from collections.abc import Iterable, Iterator

from mpsd.agent.rules.node_events import PastEvent
from mpsd.model.node_status import ClientStatus, DomainStatus, GpuStatus, GrantStatus, NodeStatus, WaitingStatus
from mpsd.model.problem import shown_name
from mpsd.model.quantity import gib
from mpsd.status.page.rules.view import (
    VERSION,
    GpuCard,
    Level,
    Note,
    NoteKind,
    PageHead,
    PageScope,
    PageView,
    PodsHere,
    Slice,
    SliceHolder,
    WaitingCard,
    lately,
    level_of,
    shown_text,
)

MOST_WAITING, _MOST_STRANGERS = 200, 50


def node_page(
    node: NodeStatus,
    name: str,
    happened: Iterable[PastEvent] = (),
    since: float = 0.0,
    pods: PodsHere | None = None,
) -> PageView:
    """happened: what the agent remembers, from `since` (seconds since 1970) on. pods: None where no kubelet is."""
    domains = {domain.name: domain for domain in node.domains}
    more = max(0, len(node.waiting) - MOST_WAITING) + (pods.more if pods else 0)
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
        notes=tuple(_notes(node)),
        nodes=(),
        gpus=tuple(_gpu(gpu, domains.get(gpu.domain or ""), node) for gpu in node.gpus),
        waiting=(
            *(pods.cards if pods else ()),
            *(_waiting(one, place) for place, one in enumerate(node.waiting[:MOST_WAITING], 1)),
        ),
        lately=tuple(lately(node, happened, since)),
    )


# -- GPUs ----------------------------------------------------------------------------------------------------------


def _gpu(gpu: GpuStatus, domain: DomainStatus | None, node: NodeStatus) -> GpuCard:
    known = node.grants_known
    state = domain.state.value if domain else None
    slices = (*_slices(gpu.uuid, node.grants), *_strangers(gpu.uuid, node.clients or ()))
    doubtful = any(one.over or one.holder is SliceHolder.STRANGER for one in slices)
    return GpuCard(
        id=gpu.uuid,
        node="",
        label=gpu.label,
        model=gpu.name,
        uuid=gpu.uuid,
        domain=gpu.domain,
        state=state,
        level=Level.WARN if doubtful and level_of(state) is Level.WELL else level_of(state),
        since=domain.since if domain else None,
        reason=shown_text(domain.reason) if domain else "",
        cordoned=False,  # the state says so here
        restarts=domain.restarts if domain else None,
        memory_mib=gpu.memory_mib,
        promised_mib=gpu.promised_mib,
        granted_mib=gpu.granted_mib if known else None,
        used_mib=gpu.used_mib,
        granted_percent=gpu.granted_percent if known else None,
        promised_percent=gpu.promised_percent,
        clients=gpu.clients,
        promised_clients=gpu.promised_clients,
        slices=slices if known else None,
    )


def _slices(gpu: str, grants: Iterable[GrantStatus]) -> Iterator[Slice]:
    for grant in grants:
        card = next((one for one in grant.cards if one.gpu == gpu), None)
        if card is None:
            continue
        holder, name = _holder(grant)
        yield Slice(
            id=grant.id,
            holder=holder,
            name=shown_name(name),
            memory_mib=card.memory_mib,
            used_mib=card.used_mib,
            thread_percent=grant.thread_percent,
            reserved_percent=card.reserved_percent,
            clients=grant.clients,
            pid=grant.holder_pid if holder is SliceHolder.PROGRAM else None,
            over=card.over,
            ended=not grant.holder_alive,
        )


def _holder(grant: GrantStatus) -> tuple[SliceHolder, str]:
    if grant.pod is not None:
        return SliceHolder.POD, f"{grant.namespace}/{grant.pod}"
    if grant.container is not None:
        return SliceHolder.CONTAINER, grant.container_name or grant.container[:12]
    return SliceHolder.PROGRAM, grant.command


def _strangers(gpu: str, clients: Iterable[ClientStatus]) -> Iterator[Slice]:
    """Processes on the GPU that the ledger do not know."""
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


# -- what wants to be looked at ------------------------------------------------------------------------------------


def _notes(node: NodeStatus) -> Iterator[Note]:
    for domain in node.domains:
        yield from _of_domain(domain)
    for gpu in node.gpus:
        if gpu.domain is None:
            yield Note(f"no-daemon {gpu.uuid}", Level.BAD, NoteKind.NO_DAEMON, gpu.label, "")
    if node.violations and node.violations.unjudged:
        yield Note("unjudged", Level.BAD, NoteKind.UNJUDGED, "", shown_text(node.violations.unjudged))
    for grant in node.grants:
        if grant.over:
            yield Note(f"over {grant.id}", Level.WARN, NoteKind.OVER, shown_name(_holder(grant)[1]), _use(grant))
    yield from _of_strangers(node)
    for place, what in enumerate(node.unknown):
        yield Note(f"unknown {place}", Level.BAD, NoteKind.UNKNOWN, "", shown_text(what))


def _of_domain(domain: DomainStatus) -> Iterator[Note]:
    level = level_of(domain.state)
    if level is not Level.WELL:
        about = (domain.name, shown_text(domain.reason), domain.since, domain.state.value)
        yield Note(f"state {domain.name}", level, NoteKind.STATE, *about)
    elif domain.canary and (doubt := domain.canary.problem or domain.canary.warning):
        yield Note(f"canary {domain.name}", Level.WARN, NoteKind.CANARY, domain.name, shown_text(doubt))
    if suspects := domain.faults.suspects:
        each = ", ".join(f"{one.pod} ({one.faults})" for one in suspects)
        first = min(one.since for one in suspects)
        yield Note(f"suspects {domain.name}", Level.WARN, NoteKind.SUSPECTS, domain.name, shown_text(each), first)


def _use(grant: GrantStatus) -> str:
    """`gpu memory 9.1/7 GiB` of each card on which it is over; amounts need no translation."""
    over = [card for card in grant.cards if card.over]
    return ", ".join(f"{gib(card.used_mib or 0)}/{gib(card.memory_mib)} GiB" for card in over)


def _of_strangers(node: NodeStatus) -> Iterator[Note]:
    labels = {gpu.uuid: gpu.label for gpu in node.gpus}
    found = [one for one in node.clients or () if one.grant is None]
    for one in found[:_MOST_STRANGERS]:
        kind = NoteKind.WITHOUT_GRANT if one.on_mps else NoteKind.OUTSIDE_MPS
        where = f"{labels.get(one.gpu, one.gpu)}, pid {one.pid}"
        yield Note(f"stranger {one.gpu} {one.pid}", Level.WARN, kind, where, shown_text(one.command))


# -- who waits -----------------------------------------------------------------------------------------------------


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
