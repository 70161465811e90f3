"""Chooses the GPUs of a request: any that fit by the policy's preference (`place`), or those it
names (`place_there`).

The same capacities and the same request always give the same GPUs.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mpsd.model import policy as policies
from mpsd.model.domain import domain_name
from mpsd.model.grants import CardsRequest, GpuCapacity, GpuShare, Request
from mpsd.model.policy import Policy
from mpsd.model.quantity import gib

# Of the GPUs that have room, the one with the smallest key is taken.
_PREFERENCE: Mapping[policies.Placement, Callable[[GpuCapacity], tuple[int, ...]]] = {
    policies.Placement.BINPACK: lambda room: (
        room.memory_mib,
        room.thread_percent,
        room.gpu.ordinal,
    ),
    policies.Placement.SPREAD: lambda room: (
        -room.memory_mib,
        -room.thread_percent,
        room.gpu.ordinal,
    ),
}


@dataclass(frozen=True, slots=True)
class Placed:
    """The GPUs chosen. domain: of all of them; where there is none of this name, they are to be
    joined or divided."""

    domain: str
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InsufficientResources:
    """Why nothing fits now; `ever` is False where it would not fit on empty GPUs either."""

    reason: str
    ever: bool


def by_preference(rooms: Iterable[GpuCapacity], policy: Policy) -> list[GpuCapacity]:
    return sorted(rooms, key=_PREFERENCE[policy.placement])


FREE = ""  # instead of a domain: of GPUs on which nobody holds a grant, any of which may be joined


def together(rooms: Iterable[GpuCapacity]) -> dict[str, str]:
    """By GPU, the domain in which it stays, else FREE: GPUs with the same can be had together.
    rooms: with all GPUs of every domain that may be divided."""
    every = tuple(rooms)
    staying = {room.domain for room in every if room.holders is None or room.holders}
    return {room.gpu.uuid: room.domain if room.domain in staying else FREE for room in every}


def find_gpus(
    request: Request,
    rooms: Iterable[GpuCapacity],
    policy: Policy,
    only: Collection[str] | None = None,
) -> Placed | None:
    """The GPUs for this request; None where nothing fits. only: the GPUs to choose from; None for
    all."""
    every = tuple(rooms)
    group = together(every)
    fitting = [room for room in every if room.holds(request, policy)]
    if only is not None:
        fitting = [room for room in fitting if room.gpu.uuid in only]
    fitting = by_preference(fitting, policy)
    for room in fitting:
        beside = [other for other in fitting if group[other.gpu.uuid] == group[room.gpu.uuid]]
        if len(beside) >= request.gpus:
            # rather a domain that is there
            beside.sort(key=lambda other: other.domain != room.domain)
            return _placed(beside[: request.gpus], every)
    return None


def _placed(chosen: Sequence[GpuCapacity], rooms: Sequence[GpuCapacity]) -> Placed:
    """chosen: of one domain, or free."""
    domain = chosen[0].domain
    uuids = tuple(room.gpu.uuid for room in chosen)
    if together(rooms)[uuids[0]] == FREE:
        domain = domain_name(room.gpu.ordinal for room in chosen)
    return Placed(domain, uuids)


def place(
    request: Request, rooms: Sequence[GpuCapacity], policy: Policy
) -> Placed | InsufficientResources:
    """As `find_gpus`, with the reason in plain words where nothing fits."""
    if found := find_gpus(request, rooms, policy):
        return found
    large = [room for room in rooms if request.memory_mib <= room.memory_mib_total]
    fits_when_empty = (request.thread_percent or 0) <= policy.oversubscription.thread_percent and (
        most_together(large) >= request.gpus
    )
    return InsufficientResources(_reason(request, rooms, policy), fits_when_empty)


def most_together(rooms: Iterable[GpuCapacity]) -> int:
    """How many GPUs at most a request may have, whatever is granted of them now."""
    sizes = Counter(FREE if room.holders is not None else room.domain for room in rooms)
    return max(sizes.values(), default=0)


def _reason(request: Request, rooms: Sequence[GpuCapacity], policy: Policy) -> str:
    if not rooms:
        return "no GPU here accepts programs now"
    if request.gpus > most_together(rooms):
        return f"no domain here has {request.gpus} GPUs: {apart(rooms)}"
    lacking = what_lacks(request, rooms, policy)
    return lacking if request.gpus > 1 else f"no single GPU has {wanted(request)}: {lacking}"


def what_lacks(
    request: Request, rooms: Sequence[GpuCapacity], policy: Policy, closed: Mapping[str, str] = {}
) -> str:
    """What each GPU lacks where nothing fits: `gpu0 has 3 of the needed 7 GiB free, gpu1 4`.
    closed: by label, why other GPUs take nothing, as it reads after `is`."""
    parts = []
    before = ""
    for room in rooms:
        free, of = _lack(request, room, policy)
        if of:
            parts.append(
                f"{room.gpu.label} {free}"
                if of == before
                else f"{room.gpu.label} has {free} of the needed {of} free"
            )
            before = of
    parts += [f"{label} is {reason}" for label, reason in closed.items()]
    each = ", ".join(parts)
    if request.gpus == 1:
        return each
    roomy = sum(room.holds(request, policy) for room in rooms)
    why = apart(rooms) if roomy >= request.gpus else ""
    return f"{needs(request)}: {'; '.join(filter(None, [why, each]))}"


def _lack(request: Request, room: GpuCapacity, policy: Policy) -> tuple[str, str]:
    """How much a GPU has left of what is asked, and what that is; empty where it has all."""
    clients = request.clients or policy.requests.clients_per_grant
    if room.memory_mib < request.memory_mib:
        return gib(max(0, room.memory_mib)), f"{gib(request.memory_mib)} GiB"
    if room.thread_percent < (request.thread_percent or 0):
        return str(max(0, room.thread_percent)), f"{request.thread_percent} % of the threads"
    if room.clients < clients:
        return str(max(0, room.clients)), f"{clients} clients"
    return "", ""


def wanted(request: Request) -> str:
    """`7 GiB and 30 % of its threads`, of each GPU."""
    said = []
    if request.memory_mib:
        said.append(f"{gib(request.memory_mib)} GiB")
    if request.thread_percent:
        said.append(f"{request.thread_percent} % of its threads")
    return " and ".join(said)


def needs(request: Request) -> str:
    return f"needs {request.gpus} GPUs of one domain"


def apart(rooms: Sequence[GpuCapacity]) -> str:
    """Why GPUs with room are not in one domain, in plain words."""
    group = together(rooms)
    free = [room.gpu.label for room in rooms if group[room.gpu.uuid] == FREE]
    used = [
        room.gpu.label
        for room in rooms
        if room.holders is not None and group[room.gpu.uuid] != FREE
    ]
    parts = [room.gpu.label for room in rooms if room.gpu.instance]
    fixed = [room.gpu.label for room in rooms if room.holders is None and not room.gpu.instance]
    ordinals = sorted(room.gpu.ordinal for room in rooms if not room.gpu.instance)
    found = []
    if free:
        found.append(f"{_are(free)} unused")
    if used:
        why = "in use by others, and GPUs are joined only while nobody uses them"
        found.append(f"{_are(used)} {why}")
    if fixed:
        why = f"not joined on demand; `domains` in the policy can list {ordinals}"
        found.append(f"{_are(fixed)} {why}")
    if parts:
        why = "MIG instances are not joined, since a CUDA program sees one at most"
        found.append(f"{why}: {', '.join(parts)}")
    return "; ".join(found)


def _are(labels: Sequence[str]) -> str:
    if len(labels) == 1:
        return f"{labels[0]} is"
    return f"{', '.join(labels[:-1])} and {labels[-1]} are"


# -- a container that names its GPUs: all of them or none ----------------------------------------


def place_there(
    request: CardsRequest, rooms: Sequence[GpuCapacity], policy: Policy, closed: Mapping[str, str]
) -> Placed | InsufficientResources:
    """The GPUs, which are one domain's, or the reason why they cannot be had. closed: in plain
    words, by UUID, why a GPU that is not among `rooms` takes no programs."""
    by_gpu = {room.gpu.uuid: room for room in rooms}
    named = [by_gpu[part.gpu] for part in request.parts if part.gpu in by_gpu]
    away = [
        closed.get(one.gpu, f"{one.gpu} is not on this node now")
        for one in request.parts
        if one.gpu not in by_gpu
    ]
    short = [
        lack
        for part in request.parts
        if part.gpu in by_gpu
        for lack in lacks(part, by_gpu[part.gpu], policy)
    ]
    group = together(rooms)
    are_apart = len({group[room.gpu.uuid] for room in named}) > 1
    if not (are_apart or away or short):
        return replace(_placed(named, rooms), gpus=tuple(part.gpu for part in request.parts))
    fit_when_empty = _named_fit_when_empty(request, by_gpu, policy)
    stay_apart = are_apart and most_together(named) < len(named)
    reasons = [*([_apart(named, rooms)] if are_apart else []), *away, *short]
    if short:
        reasons.append(
            "request less" + (", or try again when others have ended" if fit_when_empty else "")
        )
    if len(request.parts) > 1:
        reasons.append(f"nothing is reserved on any of the {len(request.parts)} GPUs")
    return InsufficientResources("; ".join(reasons), not stay_apart and fit_when_empty)


def lacks(part: GpuShare, room: GpuCapacity, policy: Policy) -> Iterator[str]:
    """What a GPU lacks of what is asked of it, in plain words."""
    label = room.gpu.label
    if part.memory_mib > room.memory_mib:
        free_mib = max(0, room.memory_mib)
        yield (
            f"{label} has {free_mib} of {room.memory_mib_total} MiB free, and {part.memory_mib} MiB"
            " are requested"
        )
    if part.reserved_percent > room.thread_percent:
        free = max(0, room.thread_percent)
        yield (
            f"{label} has {free} % of its threads free, and {part.reserved_percent} % are requested"
        )
    if room.weight is not None and (part.weight or 0) > room.weight:
        max_inst = policy.compute.of(room.gpu.ordinal).max_inst
        yield (
            f"{label} has a weight of {max(0, room.weight)} of {max_inst} free, and {part.weight}"
            " is requested"
        )
    if policy.requests.clients_per_grant > room.clients:
        needed = policy.requests.clients_per_grant
        yield (
            f"{label} has room for {max(0, room.clients)} more clients, and a grant may have"
            f" {needed}"
        )


def _apart(named: Sequence[GpuCapacity], rooms: Sequence[GpuCapacity]) -> str:
    labels = " and ".join(room.gpu.label for room in named)
    why = "have separate control daemons, and a program can be a client of only one"
    staying = [room for room in rooms if any(room.domain == one.domain for one in named)]
    return f"{labels} {why}: {apart(staying)}"


def _named_fit_when_empty(
    request: CardsRequest, rooms: dict[str, GpuCapacity], policy: Policy
) -> bool:
    """A GPU that is not here now may come back."""
    return all(
        part.memory_mib <= rooms[part.gpu].memory_mib_total
        and part.reserved_percent <= policy.oversubscription.thread_percent
        and (part.weight or 0)
        <= (policy.compute.of(rooms[part.gpu].gpu.ordinal).max_inst or part.weight or 0)
        for part in request.parts
        if part.gpu in rooms
    )
