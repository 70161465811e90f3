"""The report of a node, made of its view: model.node_report with its numbers.

A sum with one part that nobody knows is not known; the report of a node with 320 clients is made
without asking each of them for each GPU and each grant.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

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

Key = TypeVar("Key")
Value = TypeVar("Value")


def node_report(
    view: NodeView,
    policy: "Policy",
    violations: shape.SeenViolations | None = None,
    version: str = "",
) -> shape.NodeReport:
    """The view in the words of the interface, with what the watchdog has seen. version: of this
    mpsd."""
    parts = _by((part.gpu, part) for held in view.grants for part in held.grant.parts)
    on_gpus = None if view.clients is None else _by((client.gpu, client) for client in view.clients)
    of_grants = (
        None if view.clients is None else _by((client.grant, client) for client in view.clients)
    )
    here = {gpu.uuid for gpu in view.gpus}
    grants = []
    for held in view.grants:
        known = of_grants if here.issuperset(held.grant.gpus) else None
        grant = _grant(held, known, view, policy)
        own = violations.grants.get(grant.id) if violations else None
        grants.append(replace(grant, violations=own) if own else grant)
    return shape.NodeReport(
        reported_at=utc(view.now),
        driver=view.driver,
        version=version,
        gpus=tuple(
            [_gpu(gpu, view, parts.get(gpu.uuid, ()), on_gpus, policy) for gpu in view.gpus]
        ),
        domains=tuple(_domains(view)),
        grants=tuple(grants),
        grants_known=view.grants_known,
        clients=None if view.clients is None else tuple([_client(one) for one in view.clients]),
        waiting=tuple(_waiting(view, policy)) if view.waiting else (),
        unknown=view.unknown,
        violations=violations.node if violations else None,
    )


def _by(pairs: Iterable[tuple[Key, Value]]) -> Mapping[Key, Sequence[Value]]:
    """The values of each key, in their order."""
    found: dict[Key, list[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def _client(one: Client) -> shape.ClientReport:
    return shape.ClientReport(one.pid, one.gpu, one.used_mib, one.on_mps, one.grant, one.command)


def _gpu(
    gpu: Gpu,
    view: NodeView,
    parts: Sequence[GpuShare],
    on_gpus: Mapping[str, Sequence[Client]] | None,
    policy: "Policy",
) -> shape.GpuReport:
    clients = None if on_gpus is None else on_gpus.get(gpu.uuid, ())
    known = view.grants_known
    return shape.GpuReport(
        uuid=gpu.uuid,
        label=gpu.label,
        model=gpu.name,
        domain=next((domain.name for domain in view.domains if gpu.uuid in domain.record.gpus), ""),
        memory_mib=gpu.memory_mib,
        sms=gpu.sms,
        promised_mib=promised_mib(gpu, policy),
        promised_percent=policy.oversubscription.thread_percent,
        promised_clients=gpu.capability.clients,
        granted_mib=sum([part.memory_mib for part in parts]) if known else None,
        granted_percent=sum([part.reserved_percent for part in parts]) if known else None,
        used_mib=_used_mib(clients, gpu.uuid),
        clients=None if clients is None else len(clients),
        unexplained_mib=None if clients is None else view.unexplained_mib.get(gpu.uuid, 0),
        parent=gpu.mig.parent if gpu.mig else "",
        mig_profile=gpu.mig.profile if gpu.mig else "",
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
            reason=record.reason,
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
    held: HeldGrant,
    of_grants: Mapping[str | None, Sequence[Client]] | None,
    view: NodeView,
    policy: "Policy",
) -> shape.GrantReport:
    grant = held.grant
    container = grant.container
    own = None if of_grants is None else of_grants.get(grant.id, ())
    cards = tuple([_card(part, _used_mib(own, part.gpu), policy) for part in grant.parts])
    used = [card.used_mib for card in cards]
    pods = [shape.PodReport(str(pod), pod.uid) for pod in grant.pods]
    first = pods[0] if pods else shape.PodReport()
    return shape.GrantReport(
        pod=first.pod,
        uid=first.uid,
        id=grant.id,
        gpus=grant.gpus,
        memory_mib=grant.memory_mib,
        thread_percent=grant.thread_percent,
        reserved_percent=max([part.reserved_percent for part in grant.parts], default=None),
        used_mib=None if None in used else max([mib or 0 for mib in used]),
        clients=None if own is None else len({client.pid for client in own}),
        cards=cards,
        over=any(card.over for card in cards),
        holder_pid=None if isinstance(grant.holder, PodName) else process_of(grant.holder).pid,
        ended=not held.holder_alive,
        command=grant.command,
        container=container.id if container else "",
        container_name=container.name if container else "",
        cgroup=held.cgroup,
        claim=grant.claim or "",
        shared_with=tuple(pods[1:]),
        priority=grant.priority,
        memory_cap="cgroup" if grant.id in view.capped else "mps",
        memory_cap_why=view.uncapped.get(grant.id, ""),
    )


def _card(part: GpuShare, used_mib: int | None, policy: "Policy") -> shape.CardReport:
    over = used_mib is not None and used_mib > most_mib(part, policy)
    return shape.CardReport(
        part.gpu, part.memory_mib, part.reserved_percent, used_mib, over, weight=part.weight
    )


def _used_mib(clients: Sequence[Client] | None, gpu: str) -> int | None:
    """What these clients use of one GPU; None as soon as the use of one of them is not known."""
    return (
        None
        if clients is None
        else total([client.used_mib for client in clients if client.gpu == gpu])
    )


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
