"""Whether the GPUs that a container names have room for what it asks of each.

One rule: all of them or none; a refusal says of every one that lacks something what that is, in MiB and percent.
"""

from collections.abc import Iterator, Mapping, Sequence

from mpsd.grants.rules.placement import NoRoom, Placed
from mpsd.model.grants import CardsRequest, Part, Room
from mpsd.model.policy import Policy


def place_there(
    request: CardsRequest, rooms: Sequence[Room], policy: Policy, closed: Mapping[str, str]
) -> Placed | NoRoom:
    """The GPUs, which are one domain's, or the reason why they cannot be had.

    closed: in plain words, by UUID, why a GPU that is not among `rooms` takes no programs.
    """
    by_gpu = {room.gpu.uuid: room for room in rooms}
    named = [by_gpu[part.gpu] for part in request.parts if part.gpu in by_gpu]
    away = [closed.get(one.gpu, f"{one.gpu} is not seen here now") for one in request.parts if one.gpu not in by_gpu]
    short = [lack for part in request.parts if part.gpu in by_gpu for lack in _lacks(part, by_gpu[part.gpu], policy)]
    domains = dict.fromkeys(room.domain for room in named)
    apart = [_apart(named)] if len(domains) > 1 else []
    if not (apart or away or short):
        return Placed(next(iter(domains)), tuple(part.gpu for part in request.parts))
    fits_when_empty = _fits_when_empty(request, by_gpu, policy)
    said = [*apart, *away, *short]
    if short:
        said.append("ask for less" + (", or again when others have ended" if fits_when_empty else ""))
    if len(request.parts) > 1:
        said.append(f"nothing is reserved on any of the {len(request.parts)} GPUs")
    return NoRoom("; ".join(said), not apart and fits_when_empty)


def _lacks(part: Part, room: Room, policy: Policy) -> Iterator[str]:
    label = room.gpu.label
    if part.memory_mib > room.memory_mib:
        free_mib = max(0, room.memory_mib)
        yield f"{label} has {free_mib} of {room.memory_mib_total} MiB free, and {part.memory_mib} MiB are asked for"
    if part.reserved_percent > room.thread_percent:
        free = max(0, room.thread_percent)
        yield f"{label} has {free} % of its threads free, and {part.reserved_percent} % are asked for"
    if room.weight is not None and (part.weight or 0) > room.weight:
        max_inst = policy.compute.of(room.gpu.ordinal).max_inst
        yield f"{label} has a weight of {max(0, room.weight)} of {max_inst} free, and {part.weight} is asked for"
    if policy.requests.clients_per_grant > room.clients:
        needed = policy.requests.clients_per_grant
        yield f"{label} has room for {max(0, room.clients)} more clients, and a grant may have {needed}"


def with_room(request: CardsRequest, rooms: Sequence[Room], policy: Policy) -> tuple[str, ...]:
    """The labels of the GPUs that have what is asked of them."""
    by_gpu = {room.gpu.uuid: room for room in rooms}
    named = [(part, by_gpu[part.gpu]) for part in request.parts if part.gpu in by_gpu]
    return tuple(room.gpu.label for part, room in named if not tuple(_lacks(part, room, policy)))


def _apart(rooms: Sequence[Room]) -> str:
    labels = [room.gpu.label for room in rooms]
    ordinals = ", ".join(str(room.gpu.ordinal) for room in rooms)
    return (
        f"{' and '.join(labels)} have control daemons of their own, and a program can be a client of one alone; "
        f"put [{ordinals}] into `domains` of the policy"
    )


def _fits_when_empty(request: CardsRequest, rooms: dict[str, Room], policy: Policy) -> bool:
    """A GPU that is not here now may come back."""
    return all(
        part.memory_mib <= rooms[part.gpu].memory_mib_total
        and part.reserved_percent <= policy.oversubscription.thread_percent
        and (part.weight or 0) <= (policy.compute.of(rooms[part.gpu].gpu.ordinal).max_inst or part.weight or 0)
        for part in request.parts
        if part.gpu in rooms
    )
