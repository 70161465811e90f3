"""The report of a node, made of its view.

A sum with one part that nobody knows is not known; the report of a node with 320 clients is made
without asking each of them for each GPU and each grant.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from mpsd.model import node_report as shape
from mpsd.model.grants import Gpu, GpuShare, promised_mib
from mpsd.model.identity import PodName, process_of
from mpsd.model.node_report import total
from mpsd.model.node_view import Canary, Client, HeldGrant, NodeView, pod_names
from mpsd.model.times import utc
from mpsd.model.violations import most_mib
from mpsd.mps.rules.faults import faults_report

if TYPE_CHECKING:  # as in model.grants
    from mpsd.model.policy import Policy

Clients = defaultdict[str | None, list[Client]]
_NO_POD = shape.PodReport()


def node_report(
    view: NodeView,
    policy: "Policy",
    violations: shape.SeenViolations | None = None,
    version: str = "",
) -> shape.NodeReport:
    """violations: what the watchdog has seen. version: of this mpsd."""
    parts: defaultdict[str, list[GpuShare]] = defaultdict(list)
    for held in view.grants:
        for part in held.grant.parts:
            parts[part.gpu].append(part)
    on_gpus: Clients = defaultdict(list)
    of_grants: Clients = defaultdict(list)
    for client in view.clients:
        on_gpus[client.gpu].append(client)
        of_grants[client.grant].append(client)
    grants = []
    for held in view.grants:
        grant = _grant(held, of_grants[held.grant.id], view, policy)
        if violations and (own := violations.grants.get(grant.id)):
            grant = replace(grant, violations=own)
        grants.append(grant)
    report = shape.NodeReport(
        reported_at=utc(view.now),
        driver=view.driver,
        version=version,
        gpus=tuple(
            [_gpu(gpu, view, parts[gpu.uuid], on_gpus[gpu.uuid], policy) for gpu in view.gpus]
        ),
        domains=tuple(_domains(view)),
        grants=tuple(grants),
        grants_known=view.grants_known,
        clients=tuple(map(_client, view.clients)),
        unknown=(*view.unknown, *view.unseen_in_words),
    )
    if violations:
        report = replace(report, violations=violations.node)
    if view.waiting:
        report = replace(report, waiting=tuple(_waiting(view, policy)))
    return report


def _client(one: Client) -> shape.ClientReport:
    return shape.ClientReport(one.pid, one.gpu, one.used_mib, one.on_mps, one.grant, one.command)


def _gpu(
    gpu: Gpu,
    view: NodeView,
    parts: Sequence[GpuShare],
    clients: Sequence[Client],
    policy: "Policy",
) -> shape.GpuReport:
    report = shape.GpuReport(
        uuid=gpu.uuid,
        label=gpu.label,
        model=gpu.name,
        domain=next((domain.name for domain in view.domains if gpu.uuid in domain.record.gpus), ""),
        memory_mib=gpu.memory_mib,
        sms=gpu.sms,
        promised_mib=promised_mib(gpu, policy),
        promised_percent=policy.oversubscription.thread_percent,
        promised_clients=gpu.capability.clients,
    )
    if condition := view.condition(gpu.uuid):
        xids = [shape.XidCount(int(xid), count) for xid, count in condition.xids.items()]
        report = replace(
            report, sick=condition.reason, sick_cause=condition.cause or "", xids=tuple(xids)
        )
    if gpu.mig:
        report = replace(report, parent=gpu.mig.parent, mig_profile=gpu.mig.profile)
    if view.grants_known:
        report = replace(
            report,
            granted_mib=sum([part.memory_mib for part in parts]),
            granted_percent=sum([part.reserved_percent for part in parts]),
        )
    if why := view.unseen.get(gpu.uuid):
        return replace(report, unseen=why)
    return replace(
        report,
        used_mib=_used_mib(clients, gpu.uuid),
        clients=len(clients),
        unexplained_mib=view.unexplained_mib.get(gpu.uuid, 0),
    )


def _domains(view: NodeView) -> Iterator[shape.DomainReport]:
    names = pod_names(view) if any(domain.record.faults for domain in view.domains) else {}
    for domain in view.domains:
        record = domain.record
        yield shape.DomainReport(
            name=record.domain,
            gpus=record.gpus,
            state=record.state.value,
            since=utc(record.since),
            reason=record.reason or record.unwatched,
            unwatched=record.unwatched != "",
            restarts=record.restarts_total,
            daemon_pid=record.daemon.pid if record.daemon else None,
            servers=record.servers,
            faults=faults_report(record, names, view.reasons),
            canary=_canary(record.canary) if record.canary else None,
            version=record.written_by,
            kind=record.kind,
        )


def _canary(canary: Canary) -> shape.CanaryReport:
    return shape.CanaryReport(
        at=utc(canary.at),
        driver=canary.driver,
        context_mib=canary.context_mib,
        sms=canary.sms,
        problem=canary.problem,
        warning=canary.warning,
    )


def _grant(
    held: HeldGrant, clients: Sequence[Client], view: NodeView, policy: "Policy"
) -> shape.GrantReport:
    grant = held.grant
    # what uses a GPU that this node does not have is not known
    seen = {gpu.uuid for gpu in view.gpus} - view.unseen.keys()
    cards = tuple(
        [_card(part, clients if part.gpu in seen else None, policy) for part in grant.parts]
    )
    first, *others = [shape.PodReport(str(pod), pod.uid) for pod in grant.pods] or [_NO_POD]
    report = shape.GrantReport(
        pod=first.pod,
        uid=first.uid,
        id=grant.id,
        gpus=grant.gpus,
        memory_mib=grant.memory_mib,
        thread_percent=grant.thread_percent,
        reserved_percent=max([part.reserved_percent for part in grant.parts], default=None),
        cards=cards,
        over=any(card.over for card in cards),
        ended=not held.holder_alive,
        command=grant.command,
        cgroup=held.cgroup,
        claim=grant.claim or "",
        shared_with=tuple(others),
        priority=grant.priority,
        memory_cap="cgroup" if grant.id in view.capped else "mps",
        memory_cap_why=view.uncapped.get(grant.id, ""),
    )
    if not isinstance(grant.holder, PodName):
        report = replace(report, holder_pid=process_of(grant.holder).pid)
    if container := grant.container:
        report = replace(report, container=container.id, container_name=container.name)
    if not seen.issuperset(grant.gpus):
        return report
    used = [card.used_mib for card in cards]
    most = None if None in used else max(filter(None, used), default=0)
    return replace(report, clients=len({client.pid for client in clients}), used_mib=most)


def _card(part: GpuShare, clients: Sequence[Client] | None, policy: "Policy") -> shape.CardReport:
    """clients: of its grant; None where those on this GPU are not known."""
    used_mib = None if clients is None else _used_mib(clients, part.gpu)
    over = used_mib is not None and used_mib > most_mib(part, policy)
    return shape.CardReport(
        part.gpu, part.memory_mib, part.reserved_percent, used_mib, over, weight=part.weight
    )


def _used_mib(clients: Iterable[Client], gpu: str) -> int | None:
    """What these clients use of one GPU; None as soon as the use of one of them is not known."""
    return total([client.used_mib for client in clients if client.gpu == gpu])


def _waiting(view: NodeView, policy: "Policy") -> Iterator[shape.WaitingReport]:
    from mpsd.agent.rules.decide import why_waiting  # late: only a queue needs it

    reasons = why_waiting(view, policy)
    for one in view.waiting:
        yield shape.WaitingReport(
            id=one.id,
            memory_mib=one.request.memory_mib,
            gpus=one.request.gpus,
            holder_pid=process_of(one.holder).pid,
            thread_percent=one.request.thread_percent,
            command=one.command,
            reason=reasons.get(one.id, ""),
        )
