"""Chooses the GPUs of a request: any that fit (`place`), or those it names (`place_there`); the
same for the same capacities and request."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mpsd.model import policy as policies
from mpsd.model.domain import domain_name
from mpsd.model.grants import CardsRequest, GpuCapacity, GpuShare, Request
from mpsd.model.policy import Policy
from mpsd.model.quantity import gib

# By the policy: of the GPUs that have room, the one with the least left is taken, or the most.
_SIGN: Mapping[policies.Placement, int] = {
    policies.Placement.BINPACK: 1,
    policies.Placement.SPREAD: -1,
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
    sign = _SIGN[policy.placement]
    return sorted(
        rooms,
        key=lambda room: (sign * room.memory_mib, sign * room.thread_percent, room.gpu.ordinal),
    )


FREE = ""  # instead of a domain: of GPUs on which nobody holds a grant, any of which may be joined


def together(rooms: Iterable[GpuCapacity]) -> dict[str, str]:
    """By GPU, the domain in which it stays, else FREE: GPUs with the same can be had together.
    rooms: with all GPUs of every domain that may be divided."""
    every = tuple(rooms)
    found = {room.gpu.uuid: FREE for room in every}
    staying = {room.domain for room in every if room.holders != 0}
    for room in every:
        if room.domain in staying:
            found[room.gpu.uuid] = room.domain
    return found


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
            return _placed(beside[: request.gpus], group)
    return None


def _placed(chosen: Sequence[GpuCapacity], group: Mapping[str, str]) -> Placed:
    """chosen: of one domain, or free. group: `together`."""
    domain = chosen[0].domain
    uuids = tuple(room.gpu.uuid for room in chosen)
    if group[uuids[0]] == FREE:
        domain = domain_name(room.gpu.ordinal for room in chosen)
    return Placed(domain, uuids)


def place(
    request: Request, rooms: Sequence[GpuCapacity], policy: Policy
) -> Placed | InsufficientResources:
    """As `find_gpus`, with the reason in plain words where nothing fits."""
    if found := find_gpus(request, rooms, policy):
        return found
    large = [room for room in rooms if request.memory_mib <= room.memory_mib_total]
    ever = most_together(large) >= request.gpus
    if (request.thread_percent or 0) > policy.oversubscription.thread_percent:
        ever = False
    return InsufficientResources(_reason(request, rooms, policy), ever)


def most_together(rooms: Iterable[GpuCapacity]) -> int:
    """How many GPUs at most a request may have, whatever is granted of them now."""
    sizes = Counter[str]()
    for room in rooms:
        sizes[FREE if room.holders is not None else room.domain] += 1
    return max(sizes.values(), default=0)


def _reason(request: Request, rooms: Sequence[GpuCapacity], policy: Policy) -> str:
    if not rooms:
        return "no GPU here accepts programs now"
    if request.gpus > most_together(rooms):
        return f"no domain here has {request.gpus} GPUs: {apart(rooms)}"
    lacking = what_lacks(request, rooms, policy)
    if request.gpus > 1:
        return lacking
    return f"no single GPU has {wanted(request)}: {lacking}"


def what_lacks(
    request: Request, rooms: Sequence[GpuCapacity], policy: Policy, closed: Mapping[str, str] = {}
) -> str:
    """What each GPU lacks where nothing fits: `gpu0 has 3 of the needed 7 GiB free, gpu1 4`.
    closed: by label, why other GPUs take nothing, as it reads after `is`."""
    parts = []
    before = ""
    for room in rooms:
        free, of = _lack(request, room, policy)
        if not of:
            continue
        if of == before:
            parts.append(f"{room.gpu.label} {free}")
        else:
            parts.append(f"{room.gpu.label} has {free} of the needed {of} free")
        before = of
    parts += [f"{label} is {reason}" for label, reason in closed.items()]
    reasons = [", ".join(parts)]
    if request.gpus == 1:
        return reasons[0]
    if sum(room.holds(request, policy) for room in rooms) >= request.gpus:
        reasons.insert(0, apart(rooms))
    return f"{needs(request)}: {'; '.join(filter(None, reasons))}"


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
    free: list[str] = []
    used: list[str] = []
    fixed: list[str] = []
    parts: list[str] = []
    ordinals: list[int] = []
    for room in rooms:
        gpu = room.gpu
        if not gpu.instance:
            ordinals.append(gpu.ordinal)
        if group[gpu.uuid] == FREE:
            free.append(gpu.label)
        elif room.holders is not None:
            used.append(gpu.label)
        elif gpu.instance:
            parts.append(gpu.label)
        else:
            fixed.append(gpu.label)
    why_used = "in use by others, and GPUs are joined only while nobody uses them"
    why_fixed = f"not joined on demand; `domains` in the policy can list {sorted(ordinals)}"
    found = [*_are(free, "unused"), *_are(used, why_used), *_are(fixed, why_fixed)]
    if parts:
        why = "MIG instances are not joined, since a CUDA program sees one at most"
        found.append(f"{why}: {', '.join(parts)}")
    return "; ".join(found)


def _are(labels: Sequence[str], what: str) -> Iterator[str]:
    if len(labels) == 1:
        yield f"{labels[0]} is {what}"
    elif labels:
        yield f"{', '.join(labels[:-1])} and {labels[-1]} are {what}"


# -- a container that names its GPUs: all of them or none


def place_there(
    request: CardsRequest, rooms: Sequence[GpuCapacity], policy: Policy, closed: Mapping[str, str]
) -> Placed | InsufficientResources:
    """The GPUs, which are one domain's, or the reason why they cannot be had. closed: in plain
    words, by UUID, why a GPU that is not among `rooms` takes no programs."""
    by_gpu = {room.gpu.uuid: room for room in rooms}
    named: list[GpuCapacity] = []
    away: list[str] = []
    short: list[str] = []
    ever = True  # a GPU that is not here now may come back
    for part in request.parts:
        room = by_gpu.get(part.gpu)
        if room is None:
            away.append(closed.get(part.gpu, f"{part.gpu} is not on this node now"))
        else:
            named.append(room)
            short += lacks(part, room, policy)
            ever = ever and _fits_when_empty(part, room, policy)
    reasons = [*away, *short]
    group = together(rooms)
    are_apart = len({group[room.gpu.uuid] for room in named}) > 1
    if are_apart:
        reasons.insert(0, _apart(named, rooms))
    if not reasons:
        return _placed(named, group)
    if short and ever:
        reasons.append("request less, or try again when others have ended")
    elif short:
        reasons.append("request less")
    if len(request.parts) > 1:
        reasons.append(f"nothing is reserved on any of the {len(request.parts)} GPUs")
    if are_apart and most_together(named) < len(named):
        ever = False
    return InsufficientResources("; ".join(reasons), ever)


def lacks(part: GpuShare, room: GpuCapacity, policy: Policy) -> Iterator[str]:
    """What a GPU lacks of what is asked of it, in plain words."""
    has = f"{room.gpu.label} has"
    if part.memory_mib > room.memory_mib:
        free = f"{max(0, room.memory_mib)} of {room.memory_mib_total} MiB free"
        yield f"{has} {free}, and {part.memory_mib} MiB are requested"
    percent = part.reserved_percent
    if percent > room.thread_percent:
        free = f"{max(0, room.thread_percent)} % of its threads free"
        yield f"{has} {free}, and {percent} % are requested"
    if room.weight is not None and (part.weight or 0) > room.weight:
        max_inst = policy.compute.of(room.gpu.ordinal).max_inst
        free = f"a weight of {max(0, room.weight)} of {max_inst} free"
        yield f"{has} {free}, and {part.weight} is requested"
    clients = policy.requests.clients_per_grant
    if clients > room.clients:
        free = f"room for {max(0, room.clients)} more clients"
        yield f"{has} {free}, and a grant may have {clients}"


def _apart(named: Sequence[GpuCapacity], rooms: Sequence[GpuCapacity]) -> str:
    labels = " and ".join(room.gpu.label for room in named)
    why = "have separate control daemons, and a program can be a client of only one"
    domains = {room.domain for room in named}
    return f"{labels} {why}: {apart([room for room in rooms if room.domain in domains])}"


def _fits_when_empty(part: GpuShare, room: GpuCapacity, policy: Policy) -> bool:
    weight = part.weight or 0
    return (
        part.memory_mib <= room.memory_mib_total
        and part.reserved_percent <= policy.oversubscription.thread_percent
        and weight <= (policy.compute.of(room.gpu.ordinal).max_inst or weight)
    )
