"""The status of a node, made of its view: model.node_status with its numbers.

A sum with one part that nobody knows is not known; the status of a node with 320 clients is made
without asking each of them for each GPU and each grant.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from mpsd.model import node_status as shape
from mpsd.model.cluster_status import total
from mpsd.model.grants import Gpu, GpuShare, promised_mib
from mpsd.model.identity import PodName, process_of
from mpsd.model.node_view import Client, HeldGrant, NodeView, pod_names
from mpsd.model.violations import most_mib
from mpsd.mps.rules.faults import faults_status

if TYPE_CHECKING:  # as in model.grants
    from mpsd.model.policy import Policy

Key = TypeVar("Key")
Value = TypeVar("Value")


def node_status(
    view: NodeView,
    policy: "Policy",
    violations: shape.ViolationsStatus | None = None,
    version: str = "",
) -> shape.NodeStatus:
    """The view in the words of the interface, with what the watchdog has seen."""
    parts = _by((part.gpu, part) for held in view.grants for part in held.grant.parts)
    on_gpus = None if view.clients is None else _by((client.gpu, client) for client in view.clients)
    of_grants = (
        None if view.clients is None else _by((client.grant, client) for client in view.clients)
    )
    here = {gpu.uuid for gpu in view.gpus}
    clients = [
        shape.ClientStatus(one.pid, one.gpu, one.used_mib, one.on_mps, one.grant, one.command)
        for one in view.clients or ()
    ]
    return shape.NodeStatus(
        now=view.now,
        driver=view.driver,
        gpus=tuple(_gpu(gpu, view, parts.get(gpu.uuid, ()), on_gpus, policy) for gpu in view.gpus),
        domains=tuple(_domains(view)),
        grants=tuple(
            _grant(held, of_grants if here.issuperset(held.grant.gpus) else None, view, policy)
            for held in view.grants
        ),
        clients=None if view.clients is None else tuple(clients),
        waiting=tuple(_waiting(view, policy)) if view.waiting else (),
        unknown=view.unknown,
        violations=violations,
        grants_known=view.grants_known,
        version=version,
    )


def _by(pairs: Iterable[tuple[Key, Value]]) -> Mapping[Key, Sequence[Value]]:
    """The values of each key, in their order."""
    found: dict[Key, list[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def _gpu(
    gpu: Gpu,
    view: NodeView,
    parts: Sequence[GpuShare],
    on_gpus: Mapping[str, Sequence[Client]] | None,
    policy: "Policy",
) -> shape.GpuStatus:
    clients = None if on_gpus is None else on_gpus.get(gpu.uuid, ())
    return shape.GpuStatus(
        uuid=gpu.uuid,
        label=gpu.label,
        name=gpu.name,
        domain=next(
            (domain.name for domain in view.domains if gpu.uuid in domain.record.gpus), None
        ),
        memory_mib=gpu.memory_mib,
        sms=gpu.sms,
        promised_mib=promised_mib(gpu, policy),
        granted_mib=sum(part.memory_mib for part in parts),
        granted_percent=sum(part.reserved_percent for part in parts),
        used_mib=_used_mib(clients, gpu.uuid),
        clients=None if clients is None else len(clients),
        promised_percent=policy.oversubscription.thread_percent,
        promised_clients=gpu.capability.clients,
        unexplained_mib=None if clients is None else view.unexplained_mib.get(gpu.uuid, 0),
        parent=gpu.mig.parent if gpu.mig else None,
        mig_profile=gpu.mig.profile if gpu.mig else None,
    )


def _domains(view: NodeView) -> Iterator[shape.DomainStatus]:
    names = pod_names(view) if any(domain.record.faults for domain in view.domains) else {}
    for domain in view.domains:
        record = domain.record
        yield shape.DomainStatus(
            name=record.domain,
            gpus=record.gpus,
            state=record.state,
            since=record.since,
            reason=record.reason,
            restarts=record.restarts_total,
            daemon_pid=record.daemon.pid if record.daemon else None,
            servers=record.servers,
            faults=faults_status(record, names),
            canary=record.canary,
            version=record.written_by,
            kind=record.kind,
        )


def _grant(
    held: HeldGrant,
    of_grants: Mapping[str | None, Sequence[Client]] | None,
    view: NodeView,
    policy: "Policy",
) -> shape.GrantStatus:
    grant = held.grant
    pod, container = grant.pod, grant.container
    own = None if of_grants is None else of_grants.get(grant.id, ())
    used = [_used_mib(own, part.gpu) for part in grant.parts]
    cards = tuple(
        shape.CardStatus(
            part.gpu,
            part.memory_mib,
            part.reserved_percent,
            mib,
            (mib or 0) > most_mib(part, policy),
        )
        for part, mib in zip(grant.parts, used, strict=True)
    )
    return shape.GrantStatus(
        id=grant.id,
        gpus=grant.gpus,
        memory_mib=grant.memory_mib,
        thread_percent=grant.thread_percent,
        used_mib=None if None in used else max(mib or 0 for mib in used),
        clients=None if own is None else len({client.pid for client in own}),
        holder_pid=None if isinstance(grant.holder, PodName) else process_of(grant.holder).pid,
        holder_alive=held.holder_alive,
        command=grant.command,
        namespace=pod.namespace if pod else None,
        pod=pod.name if pod else None,
        over=any(card.over for card in cards),
        cards=cards,
        container=container.id if container else None,
        container_name=container.name if container else None,
        cgroup=held.cgroup,
        claim=grant.claim,
        shared_with=tuple(map(str, grant.pods[1:])),
        priority=grant.priority,
        memory_cap="cgroup" if grant.id in view.capped else "mps",
        memory_cap_why=view.uncapped.get(grant.id, ""),
    )


def _used_mib(clients: Sequence[Client] | None, gpu: str) -> int | None:
    """What these clients use of one GPU; None as soon as the use of one of them is not known."""
    return (
        None
        if clients is None
        else total([client.used_mib for client in clients if client.gpu == gpu])
    )


def _waiting(view: NodeView, policy: "Policy") -> Iterator[shape.WaitingStatus]:
    # late: who only reads status.rules.use_status does without
    from mpsd.agent.rules.decide import why_waiting

    reasons = why_waiting(view, policy)
    for one in view.waiting:
        yield shape.WaitingStatus(
            id=one.id,
            memory_mib=one.request.memory_mib,
            thread_percent=one.request.thread_percent,
            gpus=one.request.gpus,
            holder_pid=process_of(one.holder).pid,
            command=one.command,
            reason=reasons.get(one.id, ""),
        )
