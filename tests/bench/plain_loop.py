"""A scheduler's decision as a loop in plain Python, beside which the table's is measured.

One rule: it says the same as `GpuTable` does of the same ledger, as quickly as a loop can.
"""

from collections.abc import Mapping, Sequence

from mpsd.model.grants import Request
from mpsd.model.policy import Placement
from mpsd.scheduler.rules.capacity import NodeCapacity
from mpsd.scheduler.rules.gpu_table import BEST

Gpus = tuple[tuple[int, int, int], ...]  # MiB, percent and clients that are left
# spread, clients that a pod gets, GPUs, domain of each
Row = tuple[bool, int, Gpus, tuple[str, ...]]
Decision = tuple[list[str], list[int]]  # the nodes that have room, and their scores


def row(ledger: NodeCapacity) -> Row:
    return (
        ledger.policy.placement is Placement.SPREAD,
        ledger.policy.requests.clients_per_grant,
        tuple((room.memory_mib, room.thread_percent, room.clients) for room in ledger.rooms),
        tuple(room.domain for room in ledger.rooms),
    )


def decided(request: Request, names: Sequence[str], rows: Mapping[str, Row]) -> Decision:
    """rows: by name, what is left of each node."""
    return _of_one(request, names, rows) if request.gpus == 1 else _of_several(request, names, rows)


def _of_one(request: Request, names: Sequence[str], rows: Mapping[str, Row]) -> Decision:
    """One pass, which keeps of each node the GPU that its placement takes."""
    asked, percent = request.memory_mib, request.thread_percent or 0
    passing: list[str] = []
    keys: list[tuple[bool, int]] = []
    for name in names:
        node = rows.get(name)
        if node is None:
            continue
        spread, wanted, gpus, _domains = node
        if spread:
            best = -1
            for memory, threads, clients in gpus:
                if memory > best and memory >= asked and threads >= percent and clients >= wanted:
                    best = memory
            if best >= 0:
                passing.append(name)
                keys.append((True, -best))
        else:
            best = 1 << 31
            for memory, threads, clients in gpus:
                if asked <= memory < best and threads >= percent and clients >= wanted:
                    best = memory
            if best < 1 << 31:
                passing.append(name)
                keys.append((False, best))
    return passing, _scores(keys)


def _of_several(request: Request, names: Sequence[str], rows: Mapping[str, Row]) -> Decision:
    """The same for a request of several GPUs of one domain."""
    asked, percent = request.memory_mib, request.thread_percent or 0
    passing: list[str] = []
    keys: list[tuple[bool, int]] = []
    for name in names:
        node = rows.get(name)
        if node is None:
            continue
        spread, wanted, gpus, names_of = node
        domains: dict[str, list[int]] = {}
        for (memory, threads, clients), domain in zip(gpus, names_of, strict=True):
            if memory >= asked and threads >= percent and clients >= wanted:
                domains.setdefault(domain, []).append(memory)
        found = [
            memory
            for memories in domains.values()
            if len(memories) >= request.gpus
            for memory in memories
        ]
        if found:
            passing.append(name)
            keys.append((spread, -max(found) if spread else min(found)))
    return passing, _scores(keys)


def _scores(keys: Sequence[tuple[bool, int]]) -> list[int]:
    scores: dict[tuple[bool, int], int] = {}
    for placement in (False, True):
        ranked = sorted({key for key in keys if key[0] is placement})
        scores |= {key: max(BEST - rank, 0) for rank, key in enumerate(ranked)}
    return [scores[key] for key in keys]
