"""Who uses what of the GPUs now, and what is left: the shape of `GET /v1/use` and of `mpsd smi -o json`.

One rule: names and units here are an interface; fields are added, never renamed. What is not known is None, never 0.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mpsd.core.dialect_policies import POLICIES
from mpsd.core.grants import Gpu, Grant, Room, rooms
from mpsd.core.node_status import CardStatus, GrantStatus, node_status
from mpsd.core.node_view import NodeView
from mpsd.core.policy import Policy

SmPercents = Mapping[str, Mapping[int, int | None]]  # by the UUID of a GPU and the pid of a process: Nvml.sm_percents


@dataclass(frozen=True, slots=True)
class CardUse:
    """A grant's part of one GPU (a UUID). sm_percent: how busy its processes keep the SMs; None: NVML knows none of
    them, or could not say. used_mib None: NVML could not say. weight None: it was not asked for in cGPU's words.
    """

    gpu: str
    label: str
    sm_percent: int | None
    used_mib: int | None
    memory_mib: int
    reserved_percent: int
    weight: int | None


@dataclass(frozen=True, slots=True)
class GrantUse:
    """Holder and cards as in GrantStatus. thread_percent: what MPS holds each of its processes to, 100 for no limit."""

    id: str
    container: str | None
    container_name: str | None
    namespace: str | None
    pod: str | None
    holder_pid: int | None
    command: str
    thread_percent: int
    cards: tuple[CardUse, ...]


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What may still be granted of a GPU, and cGPU's compute policy for it. free_weight None: there is no max_inst.

    free_mib, free_percent None: the grants are not all known now.
    """

    gpu: str
    label: str
    policy: int
    policy_name: str
    max_inst: int | None
    free_weight: int | None
    free_mib: int | None
    free_percent: int | None


@dataclass(frozen=True, slots=True)
class UseStatus:
    """unknown: in plain words, what could not be seen, and why."""

    now: float
    grants: tuple[GrantUse, ...]
    gpus: tuple[GpuUse, ...]
    unknown: tuple[str, ...]


def use_status(view: NodeView, policy: Policy, busy: SmPercents, unsaid: Iterable[str] = ()) -> UseStatus:
    """busy: without the GPUs of which NVML did not say it. unsaid: why, of those."""
    told = node_status(view, policy).grants
    held = [held.grant for held in view.grants]
    labels = {gpu.uuid: gpu.label for gpu in view.gpus}
    return UseStatus(
        now=view.now,
        grants=tuple(_grant(grant, status, labels, view, busy) for grant, status in zip(held, told, strict=True)),
        gpus=tuple(_gpu(gpu, held, view, policy) for gpu in view.gpus),
        unknown=(*view.unknown, *unsaid),
    )


def _grant(grant: Grant, status: GrantStatus, labels: Mapping[str, str], view: NodeView, busy: SmPercents) -> GrantUse:
    def card(one: CardStatus) -> CardUse:
        return CardUse(
            gpu=one.gpu,
            label=labels.get(one.gpu, one.gpu),
            sm_percent=sm_percent(_pids(grant, one.gpu, view), busy.get(one.gpu)),
            used_mib=one.used_mib,
            memory_mib=one.memory_mib,
            reserved_percent=one.reserved_percent,
            weight=grant.part_of(one.gpu).weight,
        )

    return GrantUse(
        id=grant.id,
        container=status.container,
        container_name=status.container_name,
        namespace=status.namespace,
        pod=status.pod,
        holder_pid=status.holder_pid,
        command=status.command,
        thread_percent=grant.thread_percent,
        cards=tuple(map(card, status.cards)),
    )


def _pids(grant: Grant, gpu: str, view: NodeView) -> frozenset[int]:
    """Of its processes that NVML knows on this GPU; none where it could not say."""
    return frozenset(one.pid for one in view.clients or () if (one.grant, one.gpu) == (grant.id, gpu))


def sm_percent(pids: Iterable[int], busy: Mapping[int, int | None] | None) -> int | None:
    """The sum over processes that NVML knows; who has no sample is idle. None where nothing can be said of one of them,
    or where there is none: what NVML does not know may do anything.
    """
    if busy is None:
        return None
    found = [busy.get(pid, 0) for pid in pids]
    known = [percent for percent in found if percent is not None]
    return sum(known) if found and len(known) == len(found) else None


def _gpu(gpu: Gpu, held: Iterable[Grant], view: NodeView, policy: Policy) -> GpuUse:
    compute = policy.compute.of(gpu.ordinal)
    room = _room(gpu, held, policy)
    return GpuUse(
        gpu=gpu.uuid,
        label=gpu.label,
        policy=compute.policy,
        policy_name=POLICIES[compute.policy].name,
        max_inst=compute.max_inst,
        free_weight=room.weight if view.grants_known else None,
        free_mib=room.memory_mib if view.grants_known else None,
        free_percent=room.thread_percent if view.grants_known else None,
    )


def _room(gpu: Gpu, held: Iterable[Grant], policy: Policy) -> Room:
    (room,) = rooms([gpu], {gpu.uuid: ""}, held, policy)
    return room
