"""Who uses what of the GPUs now, and what is left: the shape of `GET /v1/use` and of `mpsd smi -o
json`.

Names and units here are an interface; fields are added, never renamed. What is not known is None,
never 0.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mpsd.model.cgpu_policies import POLICIES
from mpsd.model.cluster_status import total
from mpsd.model.grants import GpuCapacity, Grant, rooms
from mpsd.model.node_status import GrantStatus
from mpsd.model.node_view import NodeView
from mpsd.model.policy import Policy
from mpsd.status.rules.node_status import node_status

Samples = Mapping[int, int | None]  # by pid, in percent; None: NVML gave a number that cannot be


def sm_percent(grant: str, gpu: str, view: NodeView, samples: Samples | None) -> int | None:
    """How busy a grant keeps the SMs of a GPU, in percent of the time; who has no sample is idle.
    NVML counts what a client of MPS computes as its server's (docs/mps-observed.md, section 7), so
    it is the grant's only where it can be nobody else's: all of the server's clients on that GPU
    are the grant's, or none computes. None: NVML could not say, knows no process of the grant, or
    counts several grants as one.
    """
    here = [client for client in view.clients or () if client.gpu == gpu]
    own = [client for client in here if client.grant == grant]
    if samples is None or not own:
        return None
    servers = {
        pid for domain in view.domains if gpu in domain.record.gpus for pid in domain.record.servers
    }
    counted = {client.pid for client in own}
    if any(client.on_mps for client in own) and not servers.isdisjoint(samples):
        known = servers | {client.pid for client in here}
        if not known.issuperset(samples) or any(
            client.on_mps and client.grant != grant for client in here
        ):
            return None
        counted |= servers
    percent = total(samples.get(pid, 0) for pid in counted)
    # of times in which a kernel ran, which overlap
    return None if percent is None else min(100, percent)


@dataclass(frozen=True, slots=True)
class Busy:
    """What NVML reports of one GPU: how much of the time a kernel runs there, in percent, and
    whose."""

    percent: int
    samples: Samples


@dataclass(frozen=True, slots=True)
class CardUse:
    """A grant's part of one GPU (a UUID). sm_percent: how much of the time its kernels run; None:
    not known, as where several grants have clients of MPS there and one of them computes. used_mib
    None: NVML could not say. weight None: it was not asked for in cGPU's words.
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
    """Holder, claim and cards as in GrantStatus. thread_percent: what MPS holds each of its
    processes to, 100 for no limit."""

    id: str
    container: str | None
    container_name: str | None
    namespace: str | None
    pod: str | None
    holder_pid: int | None
    command: str
    thread_percent: int
    cards: tuple[CardUse, ...]
    claim: str | None = None
    shared_with: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What may still be granted of a GPU, and cGPU's compute policy for it. free_weight None: there
    is no max_inst. free_mib, free_percent None: the grants are not all known now. sm_percent: how
    much of the time a kernel runs there, whosever; None where NVML could not say, or an mpsd older
    than this does not.
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


def use_status(
    view: NodeView, policy: Policy, busy: Mapping[str, Busy], unknown: Iterable[str] = ()
) -> UseStatus:
    """busy: by UUID, without the GPUs of which NVML did not report it. unknown: why, of those."""
    held = [held.grant for held in view.grants]
    left = rooms(view.gpus, dict.fromkeys((gpu.uuid for gpu in view.gpus), ""), held, policy)
    statuses = node_status(view, policy).grants
    known = {gpu.uuid for gpu in view.gpus} - view.withheld.keys() if view.grants_known else set()
    return UseStatus(
        now=view.now,
        grants=tuple(
            _grant(grant, status, view, busy) for grant, status in zip(held, statuses, strict=True)
        ),
        gpus=tuple(
            _gpu(room, policy, busy.get(room.gpu.uuid), grants_known=room.gpu.uuid in known)
            for room in left
        ),
        unknown=(*view.unknown, *unknown),
    )


def _grant(grant: Grant, status: GrantStatus, view: NodeView, busy: Mapping[str, Busy]) -> GrantUse:
    labels = {gpu.uuid: gpu.label for gpu in view.gpus}
    return GrantUse(
        id=grant.id,
        container=status.container,
        container_name=status.container_name,
        namespace=status.namespace,
        pod=status.pod,
        holder_pid=status.holder_pid,
        command=status.command,
        thread_percent=grant.thread_percent,
        cards=tuple(
            CardUse(
                gpu=card.gpu,
                label=labels.get(card.gpu, card.gpu),
                sm_percent=sm_percent(
                    grant.id, card.gpu, view, busy[card.gpu].samples if card.gpu in busy else None
                ),
                used_mib=card.used_mib,
                memory_mib=card.memory_mib,
                reserved_percent=card.reserved_percent,
                weight=grant.part_of(card.gpu).weight,
            )
            for card in status.cards
        ),
        claim=status.claim,
        shared_with=status.shared_with,
    )


def _gpu(room: GpuCapacity, policy: Policy, busy: Busy | None, *, grants_known: bool) -> GpuUse:
    compute = policy.compute.of(room.gpu.ordinal)
    return GpuUse(
        gpu=room.gpu.uuid,
        label=room.gpu.label,
        policy=compute.policy,
        policy_name=POLICIES[compute.policy].name,
        max_inst=compute.max_inst,
        free_weight=room.weight if grants_known else None,
        free_mib=room.memory_mib if grants_known else None,
        free_percent=room.thread_percent if grants_known else None,
        sm_percent=busy.percent if busy else None,
    )
