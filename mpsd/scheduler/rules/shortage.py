"""Why a node has no room for a request, in the words that `kubectl describe pod` shows.

One rule: each GPU is named with what it lacks, and what is alike is said once.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from mpsd.grants.rules.placement import InsufficientResources, place
from mpsd.model.grants import GpuCapacity, Request
from mpsd.model.quantity import gib
from mpsd.scheduler.rules.capacity import NodeCapacity

NO_BOOKS = "mpsd knows no GPU of this node"  # of one that has no MPSNode


def why_not(request: Request, ledger: NodeCapacity) -> str:
    """Why nothing of this node fits; empty where something does."""
    if ledger.shut:
        return ledger.shut
    found = place(request, ledger.rooms, ledger.policy)
    if not isinstance(found, InsufficientResources):
        return ""
    if not has_domain(request, ledger):
        return f"no domain of this node has {request.gpus} GPUs"
    lacks = [
        *_lacks(request, ledger.rooms, ledger),
        *((one.gpu.label, f"is {one.reason}", "") for one in ledger.closed),
    ]
    if request.gpus > 1 and not any(words for _label, words, _short in lacks):
        return f"no domain of this node has {request.gpus} GPUs with room"
    said = _joined((label, words, short) for label, words, short in lacks if words)
    return f"{said}; wanted are {request.gpus} GPUs of one domain" if request.gpus > 1 else said


def can_ever(request: Request, ledger: NodeCapacity) -> bool:
    """Whether it would fit there if nobody held anything and every GPU served."""
    return sum(mib >= request.memory_mib for _gpu, mib in ledger.totals) >= request.gpus


def has_domain(request: Request, ledger: NodeCapacity) -> bool:
    """Whether a domain has as many GPUs, whatever they hold and whether they serve; True where that is not known."""
    known = [*(room.domain for room in ledger.rooms), *(one.domain for one in ledger.closed)]
    return None in known or max(Counter(known).values(), default=0) >= request.gpus


def _lacks(request: Request, rooms: Iterable[GpuCapacity], ledger: NodeCapacity) -> Iterator[tuple[str, str, str]]:
    """Of each GPU its label, what it lacks, and the same after another GPU that lacks the like; empty for nothing."""
    clients = ledger.policy.requests.clients_per_grant
    for room in rooms:
        label = room.gpu.label
        if room.memory_mib < request.memory_mib:
            free = gib(max(0, room.memory_mib))
            yield label, f"has {free} of {gib(request.memory_mib)} GiB free", free
        elif room.thread_percent < (request.thread_percent or 0):
            percent = str(max(0, room.thread_percent))
            yield label, f"has {percent} of {request.thread_percent} % of the threads free", percent
        elif room.clients < clients:
            left = str(max(0, room.clients))
            yield label, f"has {left} of {clients} clients free", left
        else:
            yield label, "", ""


def _joined(lacks: Iterable[tuple[str, str, str]]) -> str:
    """`gpu0 has 3 of 7 GiB free, gpu1 4, gpu2 is cordoned`."""
    said: list[str] = []
    kind = ""
    for label, words, short in lacks:
        now = words.replace(short, "", 1) if short else ""
        said.append(f"{label} {short}" if short and now == kind else f"{label} {words}")
        kind = now
    return ", ".join(said)
