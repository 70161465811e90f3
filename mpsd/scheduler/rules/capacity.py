"""The capacity of one node as a scheduler counts it: what each GPU has left, and who has the rest.

A pod counts once, and for no less than it requests, by the surest `AssignmentSource`. A node that
reports nothing takes no pods.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from mpsd.grants.rules.placement import FREE, find_gpus
from mpsd.kubelet.rules.gpu_choice import SharedPod, chosen_gpus
from mpsd.model.cluster_status import ClusterNode, ServedGpu
from mpsd.model.domain import ON_DEMAND, State, after_is
from mpsd.model.grants import GpuCapacity, GpuName, Request, gpu_named
from mpsd.model.identity import PodName
from mpsd.model.policy import Placement, Policy
from mpsd.scheduler.rules.reservations import Reservation

# of a Node: binpack or spread; anything else means the policy's
PLACEMENT_LABEL = "ack.node.gpu.placement"


class AssignmentSource(StrEnum):
    """How it is known which GPUs a pod has, the surest first."""

    GRANTED = "given by kubelet"
    BOUND = "written on the pod"
    RESERVED = "reserved by a scheduler"
    GUESSED = "expected from the device plugin"


@dataclass(frozen=True, slots=True)
class Taken:
    """What a pod takes of each of `gpus` (UUIDs of this node)."""

    pod: PodName
    gpus: tuple[str, ...]
    memory_mib: int
    percent: int
    source: AssignmentSource


@dataclass(frozen=True, slots=True)
class ClosedGpu:
    """A GPU that takes no new pods. reason: reads after its label and `is`. domain None: none is
    known. on_demand: it may be joined with others."""

    gpu: GpuName
    reason: str
    domain: str | None
    on_demand: bool = False


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """What one node has left. policy: with the placement of this node. shut: why the whole node
    takes no pods, a sentence; then there are no rooms. totals: MiB that each of its GPUs may give
    away in all, also of those that take no pods."""

    node: str
    policy: Policy
    rooms: tuple[GpuCapacity, ...]
    closed: tuple[ClosedGpu, ...]
    taken: tuple[Taken, ...]
    shut: str
    totals: tuple[tuple[GpuName, int], ...]


def node_capacity(
    node: ClusterNode,
    placement: str,
    pods: Iterable[SharedPod],
    reservations: Iterable[Reservation],
    policy: Policy,
) -> NodeCapacity:
    """placement: the Node's label, which goes before the policy's where it names one. pods: those
    bound to the node. reservations: for pods that may not be bound yet."""
    if placement != policy.placement and placement in list(Placement):
        policy = replace(policy, placement=Placement(placement))
    names = {row.uuid: gpu_name(row) for row in node.gpus}
    taken, unplaced = _taken(node, [*names.values()], pods, reservations)
    on_demand = {gpu for domain in node.domains if domain.kind in ON_DEMAND for gpu in domain.gpus}
    joining = _joining(node, taken)
    on: dict[str, list[Taken]] = {}
    for one in taken:
        for uuid in dict.fromkeys(one.gpus):
            on.setdefault(uuid, []).append(one)
    # Kubelet gives whole units, so the rest of a card cannot be requested.
    unit_mib = policy.resources.memory_unit_mib
    totals: list[tuple[GpuName, int]] = []
    closed: list[ClosedGpu] = []
    open_rooms: list[GpuCapacity] = []
    for row in node.gpus:
        gpu = names[row.uuid]
        total_mib = (row.promised_mib or 0) // unit_mib * unit_mib
        totals.append((gpu, total_mib))
        here = on.get(row.uuid, ())
        if why := _why_closed(row) or joining.get(row.uuid, ""):
            closed.append(ClosedGpu(gpu, why, row.domain or None, row.uuid in on_demand))
        elif room := _room(row, gpu, total_mib, here, policy):
            if row.uuid in on_demand:
                room = replace(room, holders=len(here))
            open_rooms.append(room)
    rooms = tuple(open_rooms)
    shut = _shut(node)
    guesses: list[Taken] = []
    for pod in unplaced:
        guesses.append(_guessed(pod, rooms, policy))
        rooms = after(rooms, guesses[-1:], policy)
    return NodeCapacity(
        node=node.name,
        policy=policy,
        rooms=() if shut else rooms,
        closed=tuple(closed),
        taken=(*taken, *guesses),
        shut=shut,
        totals=tuple(totals),
    )


def _shut(node: ClusterNode) -> str:
    if node.reported_at is None:
        return "its agent has reported nothing yet"
    if node.stale:
        return "its agent has reported nothing for a long time"
    if node.pods is None:
        return "kubelet has not reported its allocations"
    return "" if node.gpus else "it has no GPU shared by mpsd"


def _why_closed(row: ServedGpu) -> str:
    if row.cordoned:
        return "cordoned"
    if row.state is None:
        return "without a control daemon"
    if row.state != State.READY:
        return after_is(row.state)
    sizes = (row.promised_mib, row.promised_percent, row.promised_clients)
    return "of unknown size" if None in sizes else ""


def gpu_name(row: ServedGpu) -> GpuName:
    return gpu_named(row.uuid, row.label)


def _taken(
    node: ClusterNode,
    gpus: Sequence[GpuName],
    pods: Iterable[SharedPod],
    reservations: Iterable[Reservation],
) -> tuple[tuple[Taken, ...], Sequence[SharedPod]]:
    """What is taken of known GPUs, and the pods whose GPUs are not known, the oldest first."""
    taken: dict[str, Taken] = {}
    unknown: list[SharedPod] = []
    for held in node.pods or ():
        name = PodName(held.namespace, held.name, held.uid)
        amount = (held.memory_mib or 0, held.reserved_percent or 0)
        taken[held.uid or str(name)] = Taken(name, held.gpus, *amount, AssignmentSource.GRANTED)
    by_uid = {one.pod.uid: one for one in reservations}
    for pod in pods:
        if pod.finished:
            continue
        memory_mib = pod.request.memory_mib
        percent = pod.request.thread_percent or 0
        if key := next((key for key in (pod.name.uid, str(pod.name)) if key in taken), ""):
            # kubelet gives devices container by container, and it will get all that it requests
            one = taken[key]
            if one.memory_mib < memory_mib or one.percent < percent:
                most = max(one.memory_mib, memory_mib), max(one.percent, percent)
                taken[key] = Taken(one.pod, one.gpus, *most, one.source)
        elif chosen := chosen_gpus(pod.choice, gpus):
            amount = (memory_mib, percent)
            taken[pod.name.uid] = Taken(pod.name, chosen, *amount, AssignmentSource.BOUND)
        elif pod.name.uid not in by_uid:
            unknown.append(pod)
    for uid, reserved in by_uid.items():
        if uid not in taken:
            amount = (reserved.memory_mib, reserved.percent)
            taken[uid] = Taken(reserved.pod, reserved.gpus, *amount, AssignmentSource.RESERVED)
    return tuple(taken.values()), sorted(unknown, key=lambda pod: (pod.created, pod.name.uid))


def _room(
    row: ServedGpu, gpu: GpuName, total_mib: int, here: Sequence[Taken], policy: Policy
) -> GpuCapacity | None:
    threads = row.promised_percent
    clients = row.promised_clients
    if threads is None or clients is None or not row.domain:
        return None
    return GpuCapacity(
        gpu=gpu,
        domain=row.domain,
        memory_mib_total=total_mib,
        memory_mib=total_mib - sum(one.memory_mib for one in here),
        thread_percent=threads - sum(one.percent for one in here),
        clients=clients - len(here) * policy.requests.clients_per_grant,
    )


def _joining(node: ClusterNode, taken: Iterable[Taken]) -> Mapping[str, str]:
    """Why GPUs take no other pods while they are about to be joined for one that is bound to them:
    who came first would prevent it."""
    domain_of = {row.uuid: row.domain for row in node.gpus}
    label_of = {row.uuid: row.label for row in node.gpus}
    found: dict[str, str] = {}
    for one in taken:
        if one.source is AssignmentSource.GRANTED:
            continue
        if len({domain_of.get(uuid) for uuid in one.gpus}) > 1:
            labels = " and ".join(label_of.get(uuid, uuid) for uuid in one.gpus)
            why = f"kept for pod {one.pod}, for which {labels} are joined"
            found |= dict.fromkeys(one.gpus, why)
    return found


def _guessed(pod: SharedPod, rooms: tuple[GpuCapacity, ...], policy: Policy) -> Taken:
    """As the device plugin will place it. Where it fits nowhere, kubelet will refuse it, and it
    takes nothing."""
    gpus: tuple[str, ...] = ()
    if found := find_gpus(pod.request, rooms, policy):
        gpus = found.gpus
    amount = (pod.request.memory_mib, pod.request.thread_percent or 0)
    return Taken(pod.name, gpus, *amount, AssignmentSource.GUESSED)


def after(
    rooms: tuple[GpuCapacity, ...], changed: Iterable[Taken], policy: Policy, *, gone: bool = False
) -> tuple[GpuCapacity, ...]:
    """The rooms once these pods have come, or have gone."""
    sign = 1 if gone else -1
    by_gpu = {room.gpu.uuid: room for room in rooms}
    for one in changed:
        for uuid in one.gpus:
            if room := by_gpu.get(uuid):
                room = replace(
                    room,
                    memory_mib=room.memory_mib + sign * one.memory_mib,
                    thread_percent=room.thread_percent + sign * one.percent,
                    clients=room.clients + sign * policy.requests.clients_per_grant,
                )
                if room.holders is not None:
                    room = replace(room, holders=room.holders - sign)
                by_gpu[uuid] = room
    return tuple(by_gpu.values())


def can_ever(request: Request, ledger: NodeCapacity) -> bool:
    """Whether it would fit if no pod held anything and every GPU served."""
    return sum(mib >= request.memory_mib for _gpu, mib in ledger.totals) >= request.gpus


def has_domain(request: Request, ledger: NodeCapacity) -> bool:
    """Whether a domain has as many GPUs, or as many may be joined, whatever they hold and whether
    they serve; True where it is not known."""
    known = [FREE if room.holders is not None else room.domain for room in ledger.rooms]
    closed = [FREE if one.on_demand else one.domain for one in ledger.closed]
    return None in closed or max(Counter([*known, *closed]).values(), default=0) >= request.gpus
