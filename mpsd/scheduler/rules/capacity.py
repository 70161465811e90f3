"""The capacity of one node as a scheduler counts it: what each GPU has left, and which pods hold or reserve the rest.

A pod counts once, and for no less than it requests. What the node reports that kubelet gave it takes precedence over
the annotation on the pod, that over a reservation, and that over a guess. A node that reports nothing takes no pods.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from mpsd.grants.rules.placement import InsufficientResources, Placed, place
from mpsd.kubelet.rules.gpu_choice import SharedPod, chosen_gpus
from mpsd.model.cluster_status import ClusterNode, GpuRow
from mpsd.model.domain import State, after_is
from mpsd.model.grants import GpuCapacity, GpuName, Request
from mpsd.model.identity import PodName
from mpsd.model.policy import Placement, Policy
from mpsd.scheduler.rules.reservations import Reservation

PLACEMENT_LABEL = "ack.node.gpu.placement"  # of a Node: binpack or spread; anything else means the policy's


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
    """A GPU that takes no new pods. reason: reads after its label and `is`. domain None: none is known."""

    gpu: GpuName
    reason: str
    domain: str | None


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """What one node has left. policy: with the placement of this node. rooms: of the GPUs that take pods, by ordinal.

    shut: why the whole node takes no pods, a sentence; then there are no rooms. totals: MiB that each of its GPUs may
    give away in all, also of those that take no pods.
    """

    node: str
    policy: Policy
    rooms: tuple[GpuCapacity, ...]
    closed: tuple[ClosedGpu, ...]
    taken: tuple[Taken, ...]
    shut: str
    totals: tuple[tuple[GpuName, int], ...]


@dataclass(frozen=True, slots=True)
class Terms:
    """What the capacity of every node is counted by.

    policies: the policy in force, by placement, since a node may have its own. clients: of a GPU whose node does not
    say how many it serves, as with older agents.
    """

    policies: Mapping[Placement, Policy]
    default: Placement
    clients: int

    @classmethod
    def of(cls, policy: Policy, clients: int) -> "Terms":
        return cls({each: replace(policy, placement=each) for each in Placement}, policy.placement, clients)

    def policy(self, placement_label: str) -> Policy:
        """For a node with this value of PLACEMENT_LABEL; empty where it has none."""
        known = {each.value: each for each in Placement}
        return self.policies[known.get(placement_label, self.default)]


def node_capacity(
    node: ClusterNode,
    placement_label: str,
    pods: Iterable[SharedPod],
    reservations: Iterable[Reservation],
    terms: Terms,
) -> NodeCapacity:
    """pods: those bound to the node. reservations: for pods that may not be bound yet."""
    policy = terms.policy(placement_label)
    taken, unplaced = _taken(node, pods, reservations)
    closed = tuple(_closed(node))
    shut = _shut(node)
    names = {one.gpu.uuid for one in closed}
    on = _by_gpu(taken)
    free = {row.uuid: _room(row, on.get(row.uuid, ()), terms) for row in node.gpus if row.uuid not in names}
    everything = tuple(room for room in free.values() if room)
    guesses = []
    for pod in unplaced:
        everything, guess = _guessed(pod, everything, policy)
        guesses.append(guess)
    return NodeCapacity(
        node=node.name,
        policy=policy,
        rooms=() if shut else everything,
        closed=closed,
        taken=(*taken, *guesses),
        shut=shut,
        totals=tuple((_name(row), _whole_units(row.promised_mib or 0, policy)) for row in node.gpus),
    )


def _shut(node: ClusterNode) -> str:
    if node.told_at is None:
        return "its agent has reported nothing yet"
    if node.stale:
        return "its agent has reported nothing for a long time"
    if node.pods is None:
        return "kubelet has not listed who holds which device"
    if not node.gpus:
        return "it has no GPU shared by mpsd"
    return ""


def _closed(node: ClusterNode) -> Iterator[ClosedGpu]:
    for row in node.gpus:
        if why := _why_closed(row):
            yield ClosedGpu(_name(row), why, row.domain)


def _why_closed(row: GpuRow) -> str:
    if row.cordoned:
        return "cordoned"
    if row.state is None:
        return "without a control daemon"
    if row.state != State.READY:
        return after_is(row.state)
    return "of unknown size" if row.promised_mib is None else ""


def _name(row: GpuRow) -> GpuName:
    ordinal = row.label.removeprefix("gpu")
    return GpuName(row.uuid, int(ordinal) if ordinal.isdigit() else -1)


def _taken(
    node: ClusterNode, pods: Iterable[SharedPod], reservations: Iterable[Reservation]
) -> tuple[tuple[Taken, ...], tuple[SharedPod, ...]]:
    """What is taken of known GPUs, and the pods whose GPUs are not known, the oldest first."""
    gpus = [_name(row) for row in node.gpus]
    taken: dict[str, Taken] = {}
    unknown: list[SharedPod] = []
    for held in node.pods or ():
        name = PodName(held.namespace, held.pod, held.uid)
        amount = (held.memory_mib or 0, held.reserved_percent or 0)
        taken[held.uid or str(name)] = Taken(name, held.gpus, *amount, AssignmentSource.GRANTED)
    by_uid = {one.pod.uid: one for one in reservations}
    for pod in pods:
        if pod.finished:
            continue
        amount = (pod.request.memory_mib, pod.request.thread_percent or 0)
        if given := next((key for key in (pod.name.uid, str(pod.name)) if key in taken), ""):
            taken[given] = _at_least(taken[given], *amount)
        elif chosen := chosen_gpus(pod.choice, gpus):
            taken[pod.name.uid] = Taken(pod.name, chosen, *amount, AssignmentSource.BOUND)
        elif pod.name.uid not in by_uid:
            unknown.append(pod)
    for uid, one in by_uid.items():
        if uid not in taken:
            taken[uid] = Taken(one.pod, one.gpus, one.memory_mib, one.percent, AssignmentSource.RESERVED)
    return tuple(taken.values()), tuple(sorted(unknown, key=lambda pod: (pod.created, pod.name.uid)))


def _at_least(given: Taken, memory_mib: int, percent: int) -> Taken:
    """What a pod requests where less is reported: kubelet gives it container by container, and it will get it all."""
    if given.memory_mib >= memory_mib and given.percent >= percent:
        return given
    return replace(given, memory_mib=max(given.memory_mib, memory_mib), percent=max(given.percent, percent))


def _by_gpu(taken: Iterable[Taken]) -> Mapping[str, Sequence[Taken]]:
    found: dict[str, list[Taken]] = {}
    for one in taken:
        for uuid in dict.fromkeys(one.gpus):
            found.setdefault(uuid, []).append(one)
    return found


def _room(row: GpuRow, here: Sequence[Taken], terms: Terms) -> GpuCapacity | None:
    """here: what is taken of this GPU."""
    if row.promised_mib is None or row.domain is None:
        return None
    policy = terms.policies[terms.default]
    clients = terms.clients if row.promised_clients is None else row.promised_clients
    threads = policy.oversubscription.thread_percent if row.promised_percent is None else row.promised_percent
    total_mib = _whole_units(row.promised_mib, policy)
    return GpuCapacity(
        gpu=_name(row),
        domain=row.domain,
        memory_mib_total=total_mib,
        memory_mib=total_mib - sum(one.memory_mib for one in here),
        thread_percent=threads - sum(one.percent for one in here),
        clients=clients - len(here) * policy.requests.clients_per_grant,
    )


def _whole_units(mib: int, policy: Policy) -> int:
    """Kubelet gives whole units, so the rest of a card cannot be requested."""
    unit_mib = policy.resources.memory_unit_mib
    return mib // unit_mib * unit_mib


def _guessed(pod: SharedPod, rooms: tuple[GpuCapacity, ...], policy: Policy) -> tuple[tuple[GpuCapacity, ...], Taken]:
    """The rooms after the device plugin has placed a pod for which no scheduler of ours chose, and what the pod takes.

    Where it fits nowhere, kubelet will refuse it, and it takes nothing.
    """
    percent = pod.request.thread_percent or 0
    # Thousands of pods may be bound to a node whose kubelet is down, and `place` builds a reason for each.
    found = place(pod.request, rooms, policy) if any(room.holds(pod.request, policy) for room in rooms) else None
    gpus = found.gpus if isinstance(found, Placed) else ()
    if not gpus:
        return rooms, Taken(pod.name, (), pod.request.memory_mib, percent, AssignmentSource.GUESSED)
    clients = policy.requests.clients_per_grant
    left = tuple(
        replace(
            room,
            memory_mib=room.memory_mib - pod.request.memory_mib,
            thread_percent=room.thread_percent - percent,
            clients=room.clients - clients,
        )
        if room.gpu.uuid in gpus
        else room
        for room in rooms
    )
    return left, Taken(pod.name, gpus, pod.request.memory_mib, percent, AssignmentSource.GUESSED)


def choose(request: Request, ledger: NodeCapacity, earlier: tuple[str, ...]) -> Placed | InsufficientResources:
    """The GPUs for a pod, by a capacity without its own reservation. earlier: the GPUs reserved for it before, which it
    keeps if they still have room."""
    kept = place(request, [room for room in ledger.rooms if room.gpu.uuid in earlier], ledger.policy)
    return kept if isinstance(kept, Placed) else place(request, ledger.rooms, ledger.policy)


def can_ever(request: Request, ledger: NodeCapacity) -> bool:
    """Whether it would fit if no pod held anything and every GPU served."""
    return sum(mib >= request.memory_mib for _gpu, mib in ledger.totals) >= request.gpus


def has_domain(request: Request, ledger: NodeCapacity) -> bool:
    """Whether a domain has as many GPUs, whatever they hold and whether they serve; True where it is not known."""
    known = [*(room.domain for room in ledger.rooms), *(one.domain for one in ledger.closed)]
    return None in known or max(Counter(known).values(), default=0) >= request.gpus
