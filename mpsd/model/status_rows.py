"""What a status shows: a row a GPU, a domain, a grant, whether the node itself tells of them or the cluster.

One rule: what nobody knows is None in a row, and never zero.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # as in model.grants
    from mpsd.model.cluster_status import ClusterNode, PodViolations
    from mpsd.model.node_status import CardStatus, GrantStatus, NodeStatus


@dataclass(frozen=True, slots=True)
class GpuRow:
    """node: empty where it is this machine. domain, state: None where no control daemon holds the GPU.

    cordoned: an operator has asked that it takes no new pods, or that a GPU of its domain does.
    """

    node: str
    uuid: str
    label: str
    name: str
    domain: str | None
    state: str | None
    cordoned: bool
    restarts: int | None
    memory_mib: int | None
    promised_mib: int | None
    granted_mib: int | None
    granted_percent: int | None
    used_mib: int | None
    clients: int | None
    context_mib: int | None = None
    promised_percent: int | None = None
    promised_clients: int | None = None


@dataclass(frozen=True, slots=True)
class DomainRow:
    """since: seconds since 1970. suspects: pods that the last faults hit each time, and how many faults that were.

    context_mib: what a context costs there, as the canary measured it. doubt: what else it found, empty where nothing.
    version: of the `mpsd control` that holds it; empty where it does not say. faults: of this boot; last_fault: seconds
    since 1970; None where there was none, or where that is not told.
    """

    node: str
    name: str
    gpus: tuple[str, ...]
    state: str
    since: float | None
    reason: str
    restarts: int | None
    suspects: tuple[tuple[str, int | None], ...] = ()
    context_mib: int | None = None
    doubt: str = ""
    version: str = ""
    faults: int | None = None
    last_fault: float | None = None


@dataclass(frozen=True, slots=True)
class GrantRow:
    """gpus: their labels. pod: namespace and name; None where a process holds the grant, whose pid is then known.

    id: the pod's uid, empty where that is not known. over: it uses more than it may; False where that is not told.
    memory_mib, used_mib: the most of one GPU. cards: where it has more of one than of another, GPU by GPU as in `gpus`.
    violations: None where nobody tells of them.
    """

    node: str
    id: str
    pod: str | None
    pid: int | None
    gpus: tuple[str, ...]
    memory_mib: int | None
    thread_percent: int | None
    used_mib: int | None
    clients: int | None
    command: str
    ended: bool  # its holder, though not all of its programs
    over: bool = False
    cards: tuple["CardStatus", ...] = ()
    violations: "PodViolations | None" = None


def gpu_rows(node: "NodeStatus") -> tuple[GpuRow, ...]:
    """The GPUs of this machine."""
    domains = {domain.name: domain for domain in node.domains}
    rows = []
    for gpu in node.gpus:
        domain = domains.get(gpu.domain or "")
        rows.append(
            GpuRow(
                node="",
                uuid=gpu.uuid,
                label=gpu.label,
                name=gpu.name,
                domain=gpu.domain,
                state=domain.state.value if domain else None,
                cordoned=False,  # the state says so here
                restarts=domain.restarts if domain else None,
                memory_mib=gpu.memory_mib,
                promised_mib=gpu.promised_mib,
                granted_mib=gpu.granted_mib,
                granted_percent=gpu.granted_percent,
                used_mib=gpu.used_mib,
                clients=gpu.clients,
                context_mib=domain.canary.context_mib if domain and domain.canary else None,
                promised_percent=gpu.promised_percent,
                promised_clients=gpu.promised_clients,
            )
        )
    return tuple(rows)


def domain_rows(node: "NodeStatus") -> tuple[DomainRow, ...]:
    """The domains of this machine."""
    return tuple(
        DomainRow(
            node="",
            name=domain.name,
            gpus=domain.gpus,
            state=domain.state.value,
            since=domain.since,
            reason=domain.reason,
            restarts=domain.restarts,
            suspects=tuple((one.pod, one.faults) for one in domain.faults.suspects),
            context_mib=domain.canary.context_mib if domain.canary else None,
            doubt=(domain.canary.problem or domain.canary.warning) if domain.canary else "",
            version=domain.version,
            faults=domain.faults.count or None,
            last_fault=domain.faults.last,
        )
        for domain in node.domains
    )


def grant_rows(node: "NodeStatus") -> tuple[GrantRow, ...]:
    """The grants of this machine."""
    labels = {gpu.uuid: gpu.label for gpu in node.gpus}
    return tuple(
        GrantRow(
            node="",
            id=grant.id,
            pod=_pod(grant),
            pid=grant.holder_pid,
            gpus=tuple(labels.get(uuid, uuid) for uuid in grant.gpus),
            memory_mib=grant.memory_mib,
            thread_percent=grant.thread_percent,
            used_mib=grant.used_mib,
            clients=grant.clients,
            command=grant.command,
            ended=not grant.holder_alive,
            over=grant.over,
            cards=grant.cards if len({card.memory_mib for card in grant.cards}) > 1 else (),
        )
        for grant in node.grants
    )


def pod_rows(node: "ClusterNode") -> tuple[GrantRow, ...]:
    """The pods of a node of the cluster, as `grant_rows` shows them there."""
    labels = node.labels
    return tuple(
        GrantRow(
            node=pod.node,
            id=pod.uid,
            pod=f"{pod.namespace}/{pod.pod}",
            pid=None,
            gpus=tuple(labels.get(uuid, uuid) for uuid in pod.gpus),
            memory_mib=pod.memory_mib,
            thread_percent=pod.thread_percent,
            used_mib=pod.used_mib,
            clients=pod.clients,
            command="",
            ended=False,
            violations=pod.violations,
        )
        for pod in node.pods or ()
    )


def _pod(grant: "GrantStatus") -> str | None:
    return None if grant.pod is None else f"{grant.namespace}/{grant.pod}"
