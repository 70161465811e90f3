"""What `top` shows: GPUs, and who uses them, in the order that somebody in a hurry reads them in.

One rule: what is not known is None here and comes after what is known, never as nothing before it; who uses more than
was granted comes first, whatever the order.

Names and units are an interface, that of `top -o json`: fields are added, never renamed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from mpsd.model.names import STALE_S
from mpsd.model.quantity import lasting

if TYPE_CHECKING:  # as in model.grants
    from mpsd.model.cluster_status import ClusterNode, ClusterStatus
    from mpsd.model.node_status import ClientStatus, GrantStatus, NodeStatus
    from mpsd.status.rules.use import GrantUse, UseStatus

NO_SM_USE = "how busy the SMs are is not told to the cluster: on a node, `mpsd top` shows it"
NO_DAEMON, SILENT = "no daemon", "silent"
_MOST_NAMED = 4  # nodes in a sentence


class Sort(StrEnum):
    """What the rows are sorted by."""

    MEMORY = "memory"
    SM = "sm"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class TopGpu:
    """node: empty where it is this machine. memory_mib: what may be granted in all. state: of its domain."""

    node: str
    gpu: str
    label: str
    model: str
    state: str
    memory_mib: int | None
    granted_mib: int | None
    used_mib: int | None
    clients: int | None
    sm_percent: int | None

    @property
    def name(self) -> str:
        return f"{self.node}/{self.label}"

    @property
    def over(self) -> bool:
        return None not in (self.used_mib, self.memory_mib) and (self.used_mib or 0) > (self.memory_mib or 0)


@dataclass(frozen=True, slots=True)
class TopUser:
    """A pod, a container or a program on one GPU (gpu: its UUID; of pods of a cluster, several with commas).

    granted_mib None: it was granted nothing. thread_percent: what MPS holds each of its processes to. over: it uses
    more than it may, or uses a GPU without a grant.
    """

    node: str
    name: str
    gpu: str
    label: str
    granted_mib: int | None
    used_mib: int | None
    thread_percent: int | None
    sm_percent: int | None
    clients: int | None
    over: bool


@dataclass(frozen=True, slots=True)
class Top:
    """One look. notes: what else is to be known, a sentence each. away: why nothing newer is known, empty while it is.

    away_since: seconds since 1970.
    """

    now: float
    gpus: tuple[TopGpu, ...]
    users: tuple[TopUser, ...]
    notes: tuple[str, ...]
    away: str = ""
    away_since: float | None = None

    def ordered(self, by: Sort) -> "Top":
        return replace(self, gpus=ordered(self.gpus, by), users=ordered(self.users, by))


Row = TypeVar("Row", TopGpu, TopUser)


def ordered(rows: Iterable[Row], by: Sort) -> tuple[Row, ...]:
    amount = _AMOUNTS[by]

    def key(row: Row) -> tuple[bool, bool, int, str, str]:
        found = amount(row)
        return (not row.over, found is None, -(found or 0), row.node, row.name)

    return tuple(sorted(rows, key=key))


_AMOUNTS: Mapping[Sort, Callable[[TopGpu | TopUser], int | None]] = {
    Sort.MEMORY: lambda row: row.used_mib,
    Sort.SM: lambda row: row.sm_percent,
    Sort.NAME: lambda _row: 0,
}


# -- one machine -----------------------------------------------------------------------------------------------------


def node_top(node: "NodeStatus", use: "UseStatus | None") -> Top:
    """use: None where this agent does not tell it; then nobody's SM use is known."""
    states = {domain.name: domain.state.value for domain in node.domains}
    busy = {one.gpu: one.sm_percent for one in use.gpus} if use else {}
    gpus = tuple(
        TopGpu(
            node="",
            gpu=gpu.uuid,
            label=gpu.label,
            model=gpu.name,
            state=states.get(gpu.domain or "", NO_DAEMON),
            memory_mib=gpu.promised_mib,
            granted_mib=gpu.granted_mib,
            used_mib=gpu.used_mib,
            clients=gpu.clients,
            sm_percent=busy.get(gpu.uuid),
        )
        for gpu in node.gpus
    )
    unknown = dict.fromkeys((*node.unknown, *(use.unknown if use else ())))
    return Top(node.now, gpus, tuple(_users(node, use)), tuple(f"unknown: {what}" for what in unknown))


def _users(node: "NodeStatus", use: "UseStatus | None") -> Iterator[TopUser]:
    labels = {gpu.uuid: gpu.label for gpu in node.gpus}
    told = {one.id: one for one in use.grants} if use else {}
    for grant in node.grants:
        yield from _of_grant(grant, told.get(grant.id), labels, node.clients)
    for client in node.clients or ():
        if client.grant is None:
            yield _stranger(client, labels)


def _of_grant(
    grant: "GrantStatus",
    use: "GrantUse | None",
    labels: Mapping[str, str],
    clients: "tuple[ClientStatus, ...] | None",
) -> Iterator[TopUser]:
    """A row a GPU; one in all where an agent older than this does not say what it has of each."""
    busy = {card.gpu: card.sm_percent for card in use.cards} if use else {}
    whole = TopUser(
        node="",
        name=_name(grant, use),
        gpu=",".join(grant.gpus),
        label=",".join(labels.get(one, one) for one in grant.gpus),
        granted_mib=grant.memory_mib,
        used_mib=grant.used_mib,
        thread_percent=grant.thread_percent,
        sm_percent=busy.get(grant.gpus[0]) if len(grant.gpus) == 1 else None,
        clients=grant.clients,
        over=grant.over,
    )
    if not grant.cards:
        yield whole
    for card in grant.cards:
        here = [one.pid for one in clients or () if (one.grant, one.gpu) == (grant.id, card.gpu)]
        yield replace(
            whole,
            gpu=card.gpu,
            label=labels.get(card.gpu, card.gpu),
            granted_mib=card.memory_mib,
            used_mib=card.used_mib,
            sm_percent=busy.get(card.gpu),
            clients=None if clients is None else len(set(here)),
            over=card.over,
        )


def _name(grant: "GrantStatus", use: "GrantUse | None") -> str:
    """A pod with its namespace, a container as its engine calls it, or what a program was started with."""
    if grant.pod:
        return f"{grant.namespace}/{grant.pod}"
    if grant.container:
        return grant.container_name or (use.container_name if use else None) or grant.container[:12]
    return f"pid {grant.holder_pid}: {grant.command or grant.id}"


def _stranger(client: "ClientStatus", labels: Mapping[str, str]) -> TopUser:
    """A process that the ledger do not know."""
    how = "without a grant" if client.on_mps else "beside MPS"
    return TopUser(
        node="",
        name=f"pid {client.pid}, {how}: {client.command or 'a process'}",
        gpu=client.gpu,
        label=labels.get(client.gpu, client.gpu),
        granted_mib=None,
        used_mib=client.used_mib,
        thread_percent=None,
        sm_percent=None,
        clients=1,
        over=True,
    )


# -- a cluster -------------------------------------------------------------------------------------------------------


def cluster_top(status: "ClusterStatus", namespace: str | None) -> Top:
    """namespace: of whose pods; None for all."""
    users = [user for node in status.nodes for user in _pods(node) if _is_of(user, namespace)]
    gpus = [gpu for node in status.nodes for gpu in gpus_of(node)]
    return Top(status.now, tuple(gpus), tuple(users), tuple(_notes(status)))


def _is_of(user: TopUser, namespace: str | None) -> bool:
    return namespace is None or user.name.startswith(f"{namespace}/")


def gpus_of(node: "ClusterNode") -> Iterator[TopGpu]:
    for gpu in node.gpus:
        yield TopGpu(
            node=node.name,
            gpu=gpu.uuid,
            label=gpu.label,
            model=gpu.name,
            state=SILENT if node.stale else gpu.state or NO_DAEMON,
            memory_mib=gpu.promised_mib,
            granted_mib=gpu.granted_mib,
            used_mib=gpu.used_mib,
            clients=gpu.clients,
            sm_percent=None,
        )


def _pods(node: "ClusterNode") -> Iterator[TopUser]:
    labels = node.labels
    for pod in node.pods or ():
        yield TopUser(
            node=node.name,
            name=f"{pod.namespace}/{pod.pod}",
            gpu=",".join(pod.gpus),
            label=",".join([labels.get(uuid, uuid) for uuid in pod.gpus]),
            granted_mib=pod.memory_mib,
            used_mib=pod.used_mib,
            thread_percent=pod.thread_percent,
            sm_percent=None,
            clients=pod.clients,
            over=None not in (pod.used_mib, pod.memory_mib) and (pod.used_mib or 0) > (pod.memory_mib or 0),
        )


def _notes(status: "ClusterStatus") -> Iterator[str]:
    yield NO_SM_USE
    nodes = status.nodes
    silent = f"silent for {lasting(STALE_S)} or longer; shown is what was told last"
    for found, what in (
        ([node for node in nodes if node.stale], silent),
        ([node for node in nodes if node.told_at is None], "nothing told yet"),
        ([node for node in nodes if node.told_at is not None and node.pods is None], "not known which pods are there"),
        ([node for node in nodes if node.unreadable], "what they told cannot all be read; `kubectl mps` says why"),
    ):
        if found:
            more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
            yield f"{', '.join(node.name for node in found[:_MOST_NAMED])}{more}: {what}"
