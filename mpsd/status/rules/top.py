"""What `top` shows: GPUs, and who uses them, in the order that somebody in a hurry reads them in.

What is not known is None and comes after what is known; who uses more than was granted comes first,
whatever the order. Names and units are an interface, that of `top -o json`: fields are added, never
renamed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

import msgspec

from mpsd.model.cluster_status import PlacedGrant, ServedGpu, placed, served_gpus
from mpsd.model.names import STALE_S
from mpsd.model.node_report import GrantReport
from mpsd.model.problem import shortened
from mpsd.model.times import lasting

if TYPE_CHECKING:  # as in model.grants
    from mpsd.model.cluster_status import ClusterStatus
    from mpsd.model.node_report import ClientReport, NodeReport

NO_SM_USE = "SM use is not reported to the cluster; run `mpsd top` on a node to see it"
NO_DAEMON = "no daemon"
SILENT = "silent"
_MOST_NAMED = 4  # nodes in a sentence


class Sort(StrEnum):
    """What the rows are sorted by."""

    MEMORY = "memory"
    SM = "sm"
    NAME = "name"


class TopGpu(msgspec.Struct, frozen=True, gc=False):
    """A GPU. node: empty where it is this machine. memory_mib: what may be granted in all. state:
    of its domain."""

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
        return _exceeds(self.used_mib, self.memory_mib)


class TopUser(msgspec.Struct, frozen=True, gc=False):
    """A pod, a container or a program on one GPU (gpu: its UUID; of pods of a cluster, several with
    commas). granted_mib None: it was granted nothing. thread_percent: what MPS holds each of its
    processes to. over: it uses more than it may, or uses a GPU without a grant. grant: None where
    it has none."""

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
    grant: GrantReport | None = None


@dataclass(frozen=True, slots=True)
class Top:
    """One look. notes: what else is to be known, a sentence each. away: why nothing newer is known,
    empty while it is. away_since: seconds since 1970."""

    now: float
    gpus: tuple[TopGpu, ...]
    users: tuple[TopUser, ...]
    notes: tuple[str, ...]
    away: str = ""
    away_since: float | None = None

    def ordered(self, by: Sort) -> "Top":
        return replace(self, gpus=ordered(self.gpus, by), users=ordered(self.users, by))


class NoLook(Exception):
    """Nothing can be seen now; why, in a sentence."""


def _exceeds(used_mib: int | None, most_mib: int | None) -> bool:
    return used_mib is not None and most_mib is not None and used_mib > most_mib


Row = TypeVar("Row", TopGpu, TopUser)


def ordered(rows: Iterable[Row], by: Sort) -> tuple[Row, ...]:
    def key(row: Row) -> tuple[bool, bool, int, str, str]:
        amount = {Sort.MEMORY: row.used_mib, Sort.SM: row.sm_percent, Sort.NAME: 0}[by]
        return (not row.over, amount is None, -(amount or 0), row.node, row.name)

    return tuple(sorted(rows, key=key))


def _gpu(row: ServedGpu, state: str | None, sm_percent: int | None = None) -> TopGpu:
    share = row.promised_mib, row.granted_mib, row.used_mib, row.clients
    return TopGpu(row.node, row.uuid, row.label, row.model, state or NO_DAEMON, *share, sm_percent)


def _user(row: PlacedGrant, name: str, *, over: bool) -> TopUser:
    """On all GPUs of the grant."""
    grant = row.grant
    return TopUser(
        node=row.node,
        name=name,
        gpu=",".join(grant.gpus),
        label=",".join(row.labels),
        granted_mib=grant.memory_mib,
        used_mib=grant.used_mib,
        thread_percent=grant.thread_percent,
        sm_percent=None,
        clients=grant.clients,
        over=over,
        grant=grant,
    )


# -- one machine ---------------------------------------------------------------------------------


def node_top(node: "NodeReport") -> Top:
    """node: as `GET /v1/use` reports it."""
    busy = {gpu.uuid: gpu.sm_percent for gpu in node.gpus}
    gpus = tuple([_gpu(row, row.state, busy.get(row.uuid)) for row in served_gpus(node)])
    notes = tuple([f"unknown: {what}" for what in node.unknown])
    return Top(node.now, gpus, tuple(_users(node)), notes)


def _users(node: "NodeReport") -> Iterator[TopUser]:
    labels = node.labels
    for row in placed(node.grants or (), node):
        yield from _of_grant(row, node.clients, labels)
    for one in node.clients or ():
        if one.grant is None:
            how = "without a grant" if one.on_mps else "beside MPS"
            name = f"pid {one.pid}, {how}: {one.command or 'a process'}"
            label = labels.get(one.gpu, one.gpu)
            yield TopUser(
                "", name, one.gpu, label, None, one.used_mib, None, None, clients=1, over=True
            )


def _of_grant(
    row: PlacedGrant, clients: "tuple[ClientReport, ...] | None", labels: Mapping[str, str]
) -> Iterator[TopUser]:
    """A row a GPU."""
    grant = row.grant
    program = f"pid {grant.holder_pid}: {grant.command or grant.id}"
    whole = _user(row, grant.pod or grant.container_in_words or program, over=grant.over)
    for card in grant.cards:
        here = {one.pid for one in clients or () if (one.grant, one.gpu) == (grant.id, card.gpu)}
        yield msgspec.structs.replace(
            whole,
            gpu=card.gpu,
            label=labels.get(card.gpu, card.gpu),
            granted_mib=card.memory_mib,
            used_mib=card.used_mib,
            sm_percent=card.sm_percent,
            clients=None if clients is None else len(here),
            over=card.over,
        )


# -- a cluster -----------------------------------------------------------------------------------


def cluster_top(status: "ClusterStatus", namespace: str | None) -> Top:
    """namespace: None for all."""
    prefix = "" if namespace is None else f"{namespace}/"
    gpus = [
        _gpu(row, SILENT if node.stale else row.state) for node in status.nodes for row in node.gpus
    ]
    users = []
    for node in status.nodes:
        pods = [one for one in node.pods or () if one.pod and one.pod.startswith(prefix)]
        for row in placed(pods, node, node.name):
            over = _exceeds(row.grant.used_mib, row.grant.memory_mib)
            users.append(_user(row, row.grant.pod, over=over))
    return Top(status.now, tuple(gpus), tuple(users), tuple(_notes(status)))


def _notes(status: "ClusterStatus") -> Iterator[str]:
    yield NO_SM_USE
    nodes = status.nodes
    silent = f"silent for {lasting(STALE_S)} or longer; their last report is shown"
    for found, what in (
        ([node for node in nodes if node.stale], silent),
        ([node for node in nodes if node.reported_at is None], "nothing reported yet"),
        (
            [node for node in nodes if node.reported_at is not None and node.pods is None],
            "not known which pods are there",
        ),
        (
            [node for node in nodes if node.unreadable],
            "their MPSNodes cannot be read in full; `kubectl mps` says why",
        ),
    ):
        if found:
            yield f"{shortened([node.name for node in found], _MOST_NAMED)}: {what}"
