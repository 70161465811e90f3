"""What a request that waits holds back: what would delay it on the GPUs that it is about to get."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from mpsd.grants.rules.placement import FREE
from mpsd.model.grants import CardsRequest, GpuCapacity, Grant, Request
from mpsd.model.node_view import WaitingRequest
from mpsd.model.policy import Policy


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """A request that waits, and the GPUs kept for it: UUIDs, empty where none here could be given
    to it. beside: what it needs of each of them; None where nothing may begin there before it."""

    waiting: WaitingRequest
    gpus: frozenset[str]
    beside: Request | None

    def holds_back(self, waiting: WaitingRequest) -> bool:
        """Whether the other one, which came later, may not delay it."""
        return waiting.tenant is not None or self.waiting.tenant is None


def reserve(
    waiting: WaitingRequest,
    rooms: Iterable[GpuCapacity],
    before: Sequence[QueuePlace],
    policy: Policy,
) -> QueuePlace:
    """For a request that goes on waiting: the GPUs that lack least of what it needs, once those
    before it have theirs. It takes others too that have room sooner; this is decided anew each
    time."""
    request = waiting.request
    if isinstance(request, CardsRequest):
        return QueuePlace(waiting, frozenset(part.gpu for part in request.parts), None)
    groups: defaultdict[str, list[GpuCapacity]] = defaultdict(list)
    for room in rooms:
        if request.memory_mib <= room.memory_mib_total:
            can_join = request.gpus == 1 or room.holders is not None
            groups[FREE if can_join else room.domain].append(_without(before, room))

    def lack(room: GpuCapacity) -> tuple[int, int, int, int]:
        free_mib, needed_mib = room.memory_mib, request.memory_mib
        if request.gpus > 1 and room.holders is not None:
            needed_mib = room.memory_mib_total  # GPUs are joined while nobody holds them
        percent = (request.thread_percent or 0) - room.thread_percent
        clients = _clients(request, policy) - room.clients
        return max(0, needed_mib - free_mib), max(0, percent), max(0, clients), room.gpu.ordinal

    enough = [group for group in groups.values() if len(group) >= request.gpus]
    nearest = [sorted(group, key=lack)[: request.gpus] for group in enough]
    chosen = min(nearest, key=lambda group: [lack(room) for room in group], default=[])
    is_joined = request.gpus > 1 and any(room.holders is not None for room in chosen)
    gpus = frozenset(room.gpu.uuid for room in chosen)
    return QueuePlace(waiting, gpus, None if is_joined else request)


def _without(before: Iterable[QueuePlace], room: GpuCapacity) -> GpuCapacity:
    """What is left there once those have what they wait for."""
    for one in before:
        if one.beside and room.gpu.uuid in one.gpus:
            room = replace(
                room,
                memory_mib=room.memory_mib - one.beside.memory_mib,
                thread_percent=room.thread_percent - (one.beside.thread_percent or 0),
            )
        elif room.gpu.uuid in one.gpus:
            room = replace(room, memory_mib=0)
    return room


def _clients(request: Request, policy: Policy) -> int:
    return request.clients or policy.requests.clients_per_grant


def delayed_by(
    new: Grant,
    queue: Iterable[QueuePlace],
    grants: Sequence[Grant],
    rooms: Iterable[GpuCapacity],
    policy: Policy,
) -> QueuePlace | None:
    """The first request that this grant would delay, in whatever order grants end; None: none.
    rooms: with `grants`, and without the new one."""
    room_of = {room.gpu.uuid: room for room in rooms}
    for one in queue:
        for gpu in one.gpus.intersection(new.gpus):
            here = [grant for grant in grants if gpu in grant.gpus]
            if one.beside is None or _delays(new, one.beside, here, room_of[gpu], policy):
                return one
    return None


def _delays(
    new: Grant, request: Request, here: Sequence[Grant], room: GpuCapacity, policy: Policy
) -> bool:
    """here: the grants on this GPU."""
    gpu = room.gpu.uuid
    parts = [grant.part_of(gpu) for grant in here]
    held_mib = [part.memory_mib for part in parts]
    held_percent = [part.reserved_percent for part in parts]
    own, percent = new.part_of(gpu), request.thread_percent or 0
    return (
        is_ever_short(request.memory_mib, room.memory_mib, held_mib, own.memory_mib)
        or is_ever_short(percent, room.thread_percent, held_percent, own.reserved_percent)
        or is_ever_short(
            _clients(request, policy), room.clients, [one.clients for one in here], new.clients
        )
    )


def is_ever_short(need: int, free: int, held: Iterable[int], taken: int) -> bool:
    """Whether some of `held` can end so that `need` is free, but is not once `taken` is gone. All
    of one unit."""
    sums = 1  # bit N: some of them are N together
    for one in held:
        sums |= sums << one
    least = max(0, need - free)
    width = need - free + taken - least
    return width > 0 and bool(sums >> least & ((1 << width) - 1))
