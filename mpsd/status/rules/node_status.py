"""The status of a node, made of its view: model.node_status with its numbers.

A sum with one part that nobody knows is not known; the status of a node with 320 clients is made without asking each of
them for each GPU and each grant.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from mpsd.model.grants import Gpu, GpuShare, promised_mib
from mpsd.model.identity import PodName, process_of
from mpsd.model.node_status import (
    CardStatus,
    ClientStatus,
    DomainStatus,
    GpuStatus,
    GrantStatus,
    NodeStatus,
    ViolationsStatus,
    WaitingStatus,
)
from mpsd.model.node_view import Client, HeldGrant, NodeView, WaitingRequest, pod_names
from mpsd.model.violations import most_mib
from mpsd.mps.rules.faults import faults_status

if TYPE_CHECKING:  # as in model.grants
    from mpsd.model.policy import Policy

Key = TypeVar("Key")
Value = TypeVar("Value")


def node_status(
    view: NodeView, policy: "Policy", violations: ViolationsStatus | None = None, version: str = ""
) -> NodeStatus:
    """The view in the words of the interface, with what the watchdog has seen."""
    parts = _by((part.gpu, part) for held in view.grants for part in held.grant.parts)
    on_gpus = None if view.clients is None else _by((client.gpu, client) for client in view.clients)
    of_grants = None if view.clients is None else _by((client.grant, client) for client in view.clients)
    reasons = _why_waiting(view, policy) if view.waiting else {}
    return NodeStatus(
        now=view.now,
        driver=view.driver,
        gpus=tuple(_gpu(gpu, view, parts, on_gpus, policy) for gpu in view.gpus),
        domains=tuple(_domain_statuses(view)),
        grants=tuple(_grant(held, of_grants, policy) for held in view.grants),
        clients=None if view.clients is None else tuple(map(_client, view.clients)),
        waiting=tuple(_waiting(one, reasons) for one in view.waiting),
        unknown=view.unknown,
        violations=violations,
        grants_known=view.grants_known,
        version=version,
    )


def _why_waiting(view: NodeView, policy: "Policy") -> Mapping[str, str]:
    from mpsd.agent.rules.decide import why_waiting  # late: who only reads status.rules.use_status does without

    return why_waiting(view, policy)


def _by(pairs: Iterable[tuple[Key, Value]]) -> Mapping[Key, Sequence[Value]]:
    """The values of each key, in their order."""
    found: dict[Key, list[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def _gpu(
    gpu: Gpu,
    view: NodeView,
    parts: Mapping[str, Sequence[GpuShare]],
    on_gpus: Mapping[str, Sequence[Client]] | None,
    policy: "Policy",
) -> GpuStatus:
    here = parts.get(gpu.uuid, ())
    clients = None if on_gpus is None else on_gpus.get(gpu.uuid, ())
    return GpuStatus(
        uuid=gpu.uuid,
        label=gpu.label,
        name=gpu.name,
        domain=next((domain.name for domain in view.domains if gpu.uuid in domain.record.gpus), None),
        memory_mib=gpu.memory_mib,
        sms=gpu.sms,
        promised_mib=promised_mib(gpu, policy),
        granted_mib=sum(part.memory_mib for part in here),
        granted_percent=sum(part.reserved_percent for part in here),
        used_mib=_used_mib(clients, gpu.uuid),
        clients=None if clients is None else len(clients),
        promised_percent=policy.oversubscription.thread_percent,
        promised_clients=gpu.capability.clients,
    )


def _domain_statuses(view: NodeView) -> list[DomainStatus]:
    names = pod_names(view)
    return [
        DomainStatus(
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
        )
        for record in (domain.record for domain in view.domains)
    ]


def _grant(held: HeldGrant, of_grants: Mapping[str | None, Sequence[Client]] | None, policy: "Policy") -> GrantStatus:
    grant = held.grant
    pod, container = grant.pod, grant.container
    own = None if of_grants is None else of_grants.get(grant.id, ())
    cards = tuple(_card(part, own, policy) for part in grant.parts)
    return GrantStatus(
        id=grant.id,
        gpus=grant.gpus,
        memory_mib=grant.memory_mib,
        thread_percent=grant.thread_percent,
        used_mib=_most(card.used_mib for card in cards),
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
    )


def _card(part: GpuShare, own: Sequence[Client] | None, policy: "Policy") -> CardStatus:
    used_mib = _used_mib(own, part.gpu)
    over = used_mib is not None and used_mib > most_mib(part, policy)
    return CardStatus(part.gpu, part.memory_mib, part.reserved_percent, used_mib, over)


def _used_mib(clients: Sequence[Client] | None, gpu: str) -> int | None:
    """What these clients use of one GPU; None as soon as the use of one of them is not known."""
    if clients is None:
        return None
    used_mib = 0
    for client in clients:
        if client.gpu == gpu:
            if client.used_mib is None:
                return None
            used_mib += client.used_mib
    return used_mib


def _most(amounts: Iterable[int | None]) -> int | None:
    known = list(amounts)
    return None if None in known else max(amount for amount in known if amount is not None)


def _client(client: Client) -> ClientStatus:
    return ClientStatus(client.pid, client.gpu, client.used_mib, client.on_mps, client.grant, client.command)


def _waiting(waiting: WaitingRequest, reasons: Mapping[str, str]) -> WaitingStatus:
    return WaitingStatus(
        id=waiting.id,
        memory_mib=waiting.request.memory_mib,
        thread_percent=waiting.request.thread_percent,
        gpus=waiting.request.gpus,
        holder_pid=process_of(waiting.holder).pid,
        command=waiting.command,
        reason=reasons.get(waiting.id, ""),
    )
