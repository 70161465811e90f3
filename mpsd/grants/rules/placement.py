"""Which GPU a request gets.

One rule: the same rooms and the same request always give the same GPUs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mpsd.model import policy as policies
from mpsd.model.grants import GpuCapacity, Request
from mpsd.model.policy import Policy
from mpsd.model.quantity import gib as gib

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
    """The rooms in the order in which the policy takes them."""
    return sorted(rooms, key=_PREFERENCE[policy.placement])


def place(request: Request, rooms: Sequence[GpuCapacity], policy: Policy) -> Placed | InsufficientResources:
    """The GPUs for this request, or the reason in plain words why it has none."""
    fitting = by_preference((room for room in rooms if room.holds(request, policy)), policy)
    for room in fitting:
        beside = [other for other in fitting if other.domain == room.domain]
        if len(beside) >= request.gpus:
            return Placed(room.domain, tuple(other.gpu.uuid for other in beside[: request.gpus]))
    return InsufficientResources(_reason(request, rooms, policy), _fits_when_empty(request, rooms, policy))


def _fits_when_empty(request: Request, rooms: Sequence[GpuCapacity], policy: Policy) -> bool:
    large = [room for room in rooms if request.memory_mib <= room.memory_mib_total]
    if (request.thread_percent or 0) > policy.oversubscription.thread_percent:
        return False
    return any(sum(other.domain == room.domain for other in large) >= request.gpus for room in large)


def _reason(request: Request, rooms: Sequence[GpuCapacity], policy: Policy) -> str:
    if not rooms:
        return "no GPU here takes programs now"
    if request.gpus > 1 and not any(sum(o.domain == r.domain for o in rooms) >= request.gpus for r in rooms):
        return f"no domain here has {request.gpus} GPUs; `domains` in the policy says which GPUs belong together"
    each = ", ".join(f"{room.gpu.label} {_left(request, room, policy)}" for room in rooms)
    wanted = f"{gib(request.memory_mib)} GiB"
    if request.thread_percent:
        wanted += f" and {request.thread_percent} % of the threads"
    if request.gpus == 1:
        remark = "; together they would do, but a grant lies on one GPU" if _together(request, rooms, policy) else ""
        return f"no single GPU has {wanted}: {each}{remark}"
    return f"no domain has {wanted} on each of {request.gpus} GPUs: {each}"


def _together(request: Request, rooms: Sequence[GpuCapacity], policy: Policy) -> bool:
    """Whether memory is all that each of several GPUs lacks, and their sum would do."""
    nothing = replace(request, memory_mib=0)
    only_memory = all(room.holds(nothing, policy) for room in rooms)
    return len(rooms) > 1 and only_memory and sum(room.memory_mib for room in rooms) >= request.memory_mib


def _left(request: Request, room: GpuCapacity, policy: Policy) -> str:
    said = [f"has {gib(max(0, room.memory_mib))} of {gib(room.memory_mib_total)} GiB free"]
    if (request.thread_percent or 0) > room.thread_percent:
        said.append(f"{room.thread_percent} % of its threads")
    if policy.requests.clients_per_grant > room.clients:
        said.append(f"room for {max(0, room.clients)} more clients")
    return " and ".join(said)
