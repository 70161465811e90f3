"""What `top` shows: GPUs, and who uses them; who uses more than was granted comes first, and what
is not known after what is known. In `top -o json` names and units are those of model.node_report.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec.structs import asdict, replace

from mpsd.model.cluster_status import PlacedGrant, ServedGpu, placed, served_gpus
from mpsd.model.names import STALE_S
from mpsd.model.node_report import CardReport, GrantReport
from mpsd.model.problem import shortened
from mpsd.model.times import lasting

if TYPE_CHECKING:  # as in model.grants
    from mpsd.model.cluster_status import ClusterStatus
    from mpsd.model.node_report import NodeReport

NO_SM_USE = "SM use is not reported to the cluster; run `mpsd top` on a node to see it"
SILENT = "silent"
_MOST_NAMED = 4  # nodes in a sentence
_Rank = tuple[bool, bool, int, str, str]


class Sort(StrEnum):
    MEMORY = "memory"
    SM = "sm"
    NAME = "name"


class TopUser(CardReport, frozen=True, omit_defaults=False):
    """Who uses one GPU, or a pod of a cluster on all of its GPUs, whose UUIDs have commas in
    between. over: also where it uses a GPU without a grant."""

    #: Empty where it is this machine.
    node: str = ""
    name: str = ""
    #: Of the GPU.
    label: str = ""
    clients: int | None = None
    #: None where it has none.
    grant: GrantReport | None = None


@dataclass(frozen=True, slots=True)
class Top:
    """notes: a sentence each. away: why nothing newer is known, empty while it is. away_since:
    seconds since 1970."""

    now: float
    gpus: tuple[ServedGpu, ...]
    users: tuple[TopUser, ...]
    notes: tuple[str, ...]
    away: str = ""
    away_since: float | None = None

    def ordered(self, by: Sort) -> "Top":
        def of_gpu(gpu: ServedGpu) -> _Rank:
            over = _exceeds(gpu.used_mib, gpu.promised_mib)
            return _rank(by, gpu, gpu.label, over=over)

        def of_user(user: TopUser) -> _Rank:
            return _rank(by, user, user.name, over=user.over)

        gpus = tuple(sorted(self.gpus, key=of_gpu))
        return dataclasses.replace(self, gpus=gpus, users=tuple(sorted(self.users, key=of_user)))


class NoLook(Exception):
    """Nothing can be seen now; why, in a sentence."""


def _exceeds(used_mib: int | None, most_mib: int | None) -> bool:
    return used_mib is not None and most_mib is not None and used_mib > most_mib


def _rank(by: Sort, row: ServedGpu | TopUser, name: str, *, over: bool) -> _Rank:
    amount = {Sort.MEMORY: row.used_mib, Sort.SM: row.sm_percent, Sort.NAME: 0}[by]
    return (not over, amount is None, -(amount or 0), row.node, name)


# -- one machine


def node_top(node: "NodeReport") -> Top:
    notes = tuple([f"unknown: {what}" for what in node.unknown])
    return Top(node.now, served_gpus(node), tuple(_users(node)), notes)


def _users(node: "NodeReport") -> Iterator[TopUser]:
    labels = node.labels
    clients = {(one.grant, one.gpu, one.pid) for one in node.clients or ()}
    number = Counter([client[:2] for client in clients])
    unseen = {gpu.uuid for gpu in node.gpus if gpu.clients is None}
    for grant in node.grants or ():
        program = f"pid {grant.holder_pid}: {grant.command or grant.id}"
        name = grant.pod or grant.container_in_words or program
        for card in grant.cards:
            yield TopUser(
                **asdict(card),
                name=name,
                label=labels.get(card.gpu, card.gpu),
                clients=None if card.gpu in unseen else number[grant.id, card.gpu],
                grant=grant,
            )
    for one in node.clients or ():
        if one.grant is None:
            how = "without a grant" if one.on_mps else "beside MPS"
            yield TopUser(
                gpu=one.gpu,
                used_mib=one.used_mib,
                over=True,
                name=f"pid {one.pid}, {how}: {one.command or 'a process'}",
                label=labels.get(one.gpu, one.gpu),
                clients=1,
            )


# -- a cluster


def cluster_top(status: "ClusterStatus", namespace: str | None) -> Top:
    gpus: list[ServedGpu] = []
    users: list[TopUser] = []
    for node in status.nodes:
        shown = node.gpus
        if node.stale:
            shown = tuple([replace(gpu, state=SILENT) for gpu in shown])
        gpus += shown
        pods = [one for one in node.pods or () if one.pod and namespace in (None, one.namespace)]
        users += map(_pod, placed(pods, node, node.name))
    return Top(status.now, tuple(gpus), tuple(users), tuple(_notes(status)))


def _pod(row: PlacedGrant) -> TopUser:
    grant = row.grant
    return TopUser(
        gpu=",".join(grant.gpus),
        memory_mib=grant.memory_mib,
        used_mib=grant.used_mib,
        over=_exceeds(grant.used_mib, grant.memory_mib),
        node=row.node,
        name=grant.pod,
        label=",".join(row.labels),
        clients=grant.clients,
        grant=grant,
    )


def _notes(status: "ClusterStatus") -> Iterator[str]:
    yield NO_SM_USE
    found: defaultdict[str, list[str]] = defaultdict(list)
    for node in status.nodes:
        if node.stale:
            silent = f"silent for {lasting(STALE_S)} or longer; their last report is shown"
            found[silent].append(node.name)
        if node.reported_at is None:
            found["nothing reported yet"].append(node.name)
        elif node.pods is None:
            found["not known which pods are there"].append(node.name)
        if node.unreadable:
            why = "their MPSNodes cannot be read in full; `kubectl mps` says why"
            found[why].append(node.name)
    for what, names in found.items():
        yield f"{shortened(names, _MOST_NAMED)}: {what}"
