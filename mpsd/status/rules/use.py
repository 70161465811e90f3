"""Who uses what of the GPUs now, and what is left: the shape of `GET /v1/use` and of `mpsd smi -o json`.

Names and units here are an interface; fields are added, never renamed. What is not known is None, never 0.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mpsd.model.cgpu_policies import POLICIES
from mpsd.model.grants import Gpu, GpuCapacity, Grant, rooms
from mpsd.model.node_status import CardStatus, GrantStatus
from mpsd.model.node_view import NodeView
from mpsd.model.policy import Policy
from mpsd.status.rules.node_status import node_status

Samples = Mapping[int, int | None]  # by pid, in percent; None: NVML gave a number that cannot be
_WHOLE = 100


def sm_percent(grant: str, gpu: str, view: NodeView, samples: Samples | None) -> int | None:
    """How busy a grant keeps the SMs of a GPU, in percent of the time; who has no sample is idle.

    NVML counts what a client of MPS computes as its server's (docs/mps-observed.md, section 7), so it is the grant's
    only where it can be nobody else's: all of the server's clients on that GPU are the grant's, or none computes. None:
    NVML could not say, knows no process of the grant, or counts several grants as one.
    """
    if samples is None or view.clients is None:
        return None
    here = [client for client in view.clients if client.gpu == gpu]
    own = [client for client in here if client.grant == grant]
    if not own:
        return None
    servers = _servers(gpu, view)
    counted = {client.pid for client in own}
    if any(client.on_mps for client in own) and not servers.isdisjoint(samples):
        known = servers | {client.pid for client in here}
        if not known.issuperset(samples) or any(client.on_mps and client.grant != grant for client in here):
            return None
        counted |= servers
    return _sum(samples.get(pid, 0) for pid in counted)


def _servers(gpu: str, view: NodeView) -> frozenset[int]:
    return frozenset(pid for domain in view.domains if gpu in domain.record.gpus for pid in domain.record.servers)


def _sum(percents: Iterable[int | None]) -> int | None:
    """Of times in which a kernel ran, which overlap."""
    found = list(percents)
    known = [percent for percent in found if percent is not None]
    return min(_WHOLE, sum(known)) if len(known) == len(found) else None


@dataclass(frozen=True, slots=True)
class Busy:
    """What NVML says of one GPU: how much of the time a kernel runs there, in percent, and whose."""

    percent: int
    samples: Samples


@dataclass(frozen=True, slots=True)
class CardUse:
    """A grant's part of one GPU (a UUID). sm_percent: how much of the time its kernels run; None: it cannot be told, as
    where several grants have clients of MPS there and one of them computes. used_mib None: NVML could not say. weight
    None: it was not asked for in cGPU's words.
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

    free_mib, free_percent None: the grants are not all known now. sm_percent: how much of the time a kernel runs there,
    whosever; None where NVML could not say, or an mpsd older than this does not.
    """

    gpu: str
    label: str
    policy: int
    policy_name: str
    max_inst: int | None
    free_weight: int | None
    free_mib: int | None
    free_percent: int | None
    sm_percent: int | None = None


@dataclass(frozen=True, slots=True)
class UseStatus:
    """unknown: in plain words, what could not be seen, and why."""

    now: float
    grants: tuple[GrantUse, ...]
    gpus: tuple[GpuUse, ...]
    unknown: tuple[str, ...]


def use_status(view: NodeView, policy: Policy, busy: Mapping[str, Busy], unsaid: Iterable[str] = ()) -> UseStatus:
    """busy: by UUID, without the GPUs of which NVML did not say it. unsaid: why, of those."""
    told = node_status(view, policy).grants
    held = [held.grant for held in view.grants]
    labels = {gpu.uuid: gpu.label for gpu in view.gpus}
    return UseStatus(
        now=view.now,
        grants=tuple(_grant(grant, status, labels, view, busy) for grant, status in zip(held, told, strict=True)),
        gpus=tuple(_gpu(gpu, held, view, policy, busy.get(gpu.uuid)) for gpu in view.gpus),
        unknown=(*view.unknown, *unsaid),
    )


def _grant(
    grant: Grant, status: GrantStatus, labels: Mapping[str, str], view: NodeView, busy: Mapping[str, Busy]
) -> GrantUse:
    def card(one: CardStatus) -> CardUse:
        said = busy.get(one.gpu)
        return CardUse(
            gpu=one.gpu,
            label=labels.get(one.gpu, one.gpu),
            sm_percent=sm_percent(grant.id, one.gpu, view, said.samples if said else None),
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


def _gpu(gpu: Gpu, held: Iterable[Grant], view: NodeView, policy: Policy, busy: Busy | None) -> GpuUse:
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
        sm_percent=busy.percent if busy else None,
    )


def _room(gpu: Gpu, held: Iterable[Grant], policy: Policy) -> GpuCapacity:
    (room,) = rooms([gpu], {gpu.uuid: ""}, held, policy)
    return room
