"""Chooses the GPUs of a request: any that fit by the policy's preference (`place`), or those it names (`place_there`).

The same capacities and the same request always give the same GPUs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mpsd.model import policy as policies
from mpsd.model.grants import CardsRequest, GpuCapacity, GpuShare, Request
from mpsd.model.policy import Policy
from mpsd.model.quantity import gib

# Of the GPUs that have room, the one with the smallest key is taken.
_PREFERENCE: Mapping[policies.Placement, Callable[[GpuCapacity], tuple[int, ...]]] = {
    policies.Placement.BINPACK: lambda room: (room.memory_mib, room.thread_percent, room.gpu.ordinal),
    policies.Placement.SPREAD: lambda room: (-room.memory_mib, -room.thread_percent, room.gpu.ordinal),
}


@dataclass(frozen=True, slots=True)
class Placed:
    """The GPUs chosen, all of one domain."""

    domain: str
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InsufficientResources:
    """Why nothing fits now; `ever` is False where it would not fit on empty GPUs either."""

    reason: str
    ever: bool


def by_preference(rooms: Iterable[GpuCapacity], policy: Policy) -> list[GpuCapacity]:
    return sorted(rooms, key=_PREFERENCE[policy.placement])


def find_gpus(request: Request, rooms: Iterable[GpuCapacity], policy: Policy) -> Placed | None:
    """The GPUs for this request; None where nothing fits."""
    fitting = by_preference((room for room in rooms if room.holds(request, policy)), policy)
    for room in fitting:
        beside = [other for other in fitting if other.domain == room.domain]
        if len(beside) >= request.gpus:
            return Placed(room.domain, tuple(other.gpu.uuid for other in beside[: request.gpus]))
    return None


def place(request: Request, rooms: Sequence[GpuCapacity], policy: Policy) -> Placed | InsufficientResources:
    """As `find_gpus`, with the reason in plain words where nothing fits."""
    if found := find_gpus(request, rooms, policy):
        return found
    large = [room for room in rooms if request.memory_mib <= room.memory_mib_total]
    fits_when_empty = (request.thread_percent or 0) <= policy.oversubscription.thread_percent and any(
        sum(other.domain == room.domain for other in large) >= request.gpus for room in large
    )
    return InsufficientResources(_reason(request, rooms, policy), fits_when_empty)


def _reason(request: Request, rooms: Sequence[GpuCapacity], policy: Policy) -> str:
    if not rooms:
        return "no GPU here accepts programs now"
    if request.gpus > 1 and not any(sum(o.domain == r.domain for o in rooms) >= request.gpus for r in rooms):
        return f"no domain here has {request.gpus} GPUs; `domains` in the policy defines which GPUs belong together"
    each = ", ".join(f"{room.gpu.label} {_left(request, room, policy)}" for room in rooms)
    wanted = f"{gib(request.memory_mib)} GiB"
    if request.thread_percent:
        wanted += f" and {request.thread_percent} % of the threads"
    if request.gpus == 1:
        only_memory = all(room.holds(replace(request, memory_mib=0), policy) for room in rooms)
        suffices = only_memory and len(rooms) > 1 and sum(room.memory_mib for room in rooms) >= request.memory_mib
        remark = "; together they have enough, but a grant cannot span GPUs" if suffices else ""
        return f"no single GPU has {wanted}: {each}{remark}"
    return f"no domain has {wanted} on each of {request.gpus} GPUs: {each}"


def _left(request: Request, room: GpuCapacity, policy: Policy) -> str:
    left = [f"has {gib(max(0, room.memory_mib))} of {gib(room.memory_mib_total)} GiB free"]
    if (request.thread_percent or 0) > room.thread_percent:
        left.append(f"{room.thread_percent} % of its threads")
    if policy.requests.clients_per_grant > room.clients:
        left.append(f"room for {max(0, room.clients)} more clients")
    return " and ".join(left)


# -- a container that names its GPUs: all of them or none ------------------------------------------------------------


def place_there(
    request: CardsRequest, rooms: Sequence[GpuCapacity], policy: Policy, closed: Mapping[str, str]
) -> Placed | InsufficientResources:
    """The GPUs, which are one domain's, or the reason why they cannot be had. closed: in plain words, by UUID, why a
    GPU that is not among `rooms` takes no programs."""
    by_gpu = {room.gpu.uuid: room for room in rooms}
    named = [by_gpu[part.gpu] for part in request.parts if part.gpu in by_gpu]
    away = [closed.get(one.gpu, f"{one.gpu} is not on this node now") for one in request.parts if one.gpu not in by_gpu]
    short = [lack for part in request.parts if part.gpu in by_gpu for lack in lacks(part, by_gpu[part.gpu], policy)]
    domains = dict.fromkeys(room.domain for room in named)
    apart = [_apart(named)] if len(domains) > 1 else []
    if not (apart or away or short):
        return Placed(next(iter(domains)), tuple(part.gpu for part in request.parts))
    fit_when_empty = _named_fit_when_empty(request, by_gpu, policy)
    reasons = [*apart, *away, *short]
    if short:
        reasons.append("request less" + (", or try again when others have ended" if fit_when_empty else ""))
    if len(request.parts) > 1:
        reasons.append(f"nothing is reserved on any of the {len(request.parts)} GPUs")
    return InsufficientResources("; ".join(reasons), not apart and fit_when_empty)


def lacks(part: GpuShare, room: GpuCapacity, policy: Policy) -> Iterator[str]:
    """What a GPU lacks of what is asked of it, in plain words."""
    label = room.gpu.label
    if part.memory_mib > room.memory_mib:
        free_mib = max(0, room.memory_mib)
        yield f"{label} has {free_mib} of {room.memory_mib_total} MiB free, and {part.memory_mib} MiB are requested"
    if part.reserved_percent > room.thread_percent:
        free = max(0, room.thread_percent)
        yield f"{label} has {free} % of its threads free, and {part.reserved_percent} % are requested"
    if room.weight is not None and (part.weight or 0) > room.weight:
        max_inst = policy.compute.of(room.gpu.ordinal).max_inst
        yield f"{label} has a weight of {max(0, room.weight)} of {max_inst} free, and {part.weight} is requested"
    if policy.requests.clients_per_grant > room.clients:
        needed = policy.requests.clients_per_grant
        yield f"{label} has room for {max(0, room.clients)} more clients, and a grant may have {needed}"


def _apart(rooms: Sequence[GpuCapacity]) -> str:
    labels, ordinals = " and ".join(room.gpu.label for room in rooms), [room.gpu.ordinal for room in rooms]
    why = "have separate control daemons, and a program can be a client of only one"
    return f"{labels} {why}; put {ordinals} into `domains` of the policy"


def _named_fit_when_empty(request: CardsRequest, rooms: dict[str, GpuCapacity], policy: Policy) -> bool:
    """A GPU that is not here now may come back."""
    return all(
        part.memory_mib <= rooms[part.gpu].memory_mib_total
        and part.reserved_percent <= policy.oversubscription.thread_percent
        and (part.weight or 0) <= (policy.compute.of(rooms[part.gpu].gpu.ordinal).max_inst or part.weight or 0)
        for part in request.parts
        if part.gpu in rooms
    )
