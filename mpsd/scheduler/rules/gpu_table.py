"""A table of what every GPU of a cluster has left: which nodes have room for a request, and which are best.

It says of a node exactly what `placement.place` says of its capacity, but for all nodes at once, in columns of numbers
by kind of number, GPU of a node, and the node's slot. Results are kept for each request and list of nodes: schedulers
ask about the same nodes again and again, for similar pods, and then only the nodes that have changed are computed.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import compress, repeat
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from mpsd.model.grants import Request
from mpsd.model.policy import Placement
from mpsd.scheduler.rules.capacity import NodeCapacity

_FIRST = 16  # slots that there is space for, which grows as nodes come

# What is kept of each GPU. USABLE: MiB, of those with enough clients left and no fewer than 0 % of their threads.
# DOMAIN: a number within the node, of domains of several GPUs. TOTAL: MiB that may be given away in all, the largest
# first, of every GPU, also of those that take no pods.
_USABLE, _MEMORY, _PERCENT, _DOMAIN, _TOTAL = range(5)
_ABSENT = -(2**30)  # less than anybody asks for; amounts are kept between this and a PiB

# What is left, less what is asked: below zero, and read as unsigned, it is at least NOTHING. So the least of a node's
# is at once whether anything fits, and how tightly.
NOTHING, LOOSEST = np.uint32(2**31), np.uint32(2**31 - 1)

Slots = NDArray[np.intp]
Flags = NDArray[np.bool_]
Lacks = NDArray[np.uint8]
Keys = NDArray[np.uint32]  # by slot: its placement takes the least first, and from NOTHING on nothing fits


class Lack(IntEnum):
    """Why a request does not fit a node, by the GPUs that come nearest."""

    NOTHING = 0
    UNKNOWN = 1  # the node is not known
    SIZE = 2  # it would not fit an empty node where every GPU serves
    SERVING = 3  # no GPU takes pods now
    MEMORY = 4
    THREADS = 5
    CLIENTS = 6
    TOGETHER = 7  # enough GPUs have room, but not in one domain


class GpuColumns:
    """The columns. The slot after the last one written is empty, and so is -1, which stands for an unknown node."""

    def __init__(self) -> None:
        self._gpus = np.full((5, 1, _FIRST), _ABSENT, np.int32)
        self._spread = np.zeros(_FIRST, np.bool_)
        self._domains = 0  # of several GPUs, that a node had at most

    def write(self, slot: int, ledger: NodeCapacity) -> None:
        self._grow(max(len(ledger.rooms), len(ledger.totals)), slot)
        rooms, clients = ledger.rooms, ledger.policy.requests.clients_per_grant
        shared = [domain for domain, size in Counter(room.domain for room in rooms).items() if size > 1]
        self._domains = max(self._domains, len(shared))
        self.clear(slot)
        for kind, amounts in (
            (_USABLE, [r.memory_mib if r.clients >= clients and r.thread_percent >= 0 else _ABSENT for r in rooms]),
            (_MEMORY, [room.memory_mib for room in rooms]),
            (_PERCENT, [room.thread_percent for room in rooms]),
            (_DOMAIN, [shared.index(room.domain) if room.domain in shared else _ABSENT for room in rooms]),
            (_TOTAL, sorted((mib for _gpu, mib in ledger.totals), reverse=True)),
        ):
            self._gpus[kind, : len(amounts), slot] = _kept(amounts)
        self._spread[slot] = ledger.policy.placement is Placement.SPREAD

    def clear(self, slot: int) -> None:
        self._gpus[:, :, slot] = _ABSENT
        self._spread[slot] = False

    def spread(self, slots: Slots) -> Flags | None:
        """Which of these nodes take the emptiest GPU first; None where no node does."""
        return self._spread[slots] if self._spread.any() else None

    def keys(self, request: Request, slots: Slots | slice) -> Keys:
        """Shape: that of the slots."""
        gpus, spread = self._gpus[:, :, slots], self._spread[slots]
        left = self._left(request, gpus)
        keys: Keys = np.minimum.reduce(left.view(np.uint32), axis=0)
        if spread.any():  # what is below zero comes out at NOTHING or above
            loosest_first = LOOSEST - np.maximum.reduce(left, axis=0).view(np.uint32)
            keys = np.where(spread, loosest_first, keys)
        return keys

    def lacks(self, request: Request, slots: slice) -> Lacks:
        """The first `Lack` that is so, from SIZE on, for nodes where nothing fits."""
        gpus = self._gpus[:, :, slots]
        size, percent = _wanted(request.memory_mib), _wanted(request.thread_percent)
        memory = gpus[_MEMORY] >= size
        threads = memory & (gpus[_PERCENT] >= percent)
        lacks = np.full(gpus.shape[-1], Lack.TOGETHER, np.uint8)
        for lack, enough, number in (
            (Lack.CLIENTS, threads & (gpus[_USABLE] >= size), request.gpus),
            (Lack.THREADS, threads, request.gpus),
            (Lack.MEMORY, memory, request.gpus),
            (Lack.SERVING, gpus[_MEMORY] > _ABSENT, 1),
            (Lack.SIZE, gpus[_TOTAL] >= size, request.gpus),
        ):
            lacks[enough.sum(axis=0, dtype=np.int16) < number] = lack
        return lacks

    def _left(self, request: Request, gpus: NDArray[np.int32]) -> NDArray[np.int32]:
        """By GPU and slot: MiB that the request would leave there, below zero where it does not fit."""
        left: NDArray[np.int32] = gpus[_USABLE] - _wanted(request.memory_mib)
        if request.thread_percent:
            left |= (gpus[_PERCENT] - _wanted(request.thread_percent)) >> 31  # -1 where that is below zero
        if request.gpus > 1:
            left[~self._together(left >= 0, gpus[_DOMAIN], request.gpus)] = -1
        return left

    def _together(self, fitting: Flags, domain: NDArray[np.int32], wanted: int) -> Flags:
        """Those of the fitting GPUs that have enough others beside them in their domain."""
        together = np.zeros_like(fitting)
        for number in range(self._domains):
            beside = fitting & (domain == number)
            together |= beside & (beside.sum(axis=0, dtype=np.int16) >= wanted)
        return together

    def _grow(self, gpus: int, slot: int) -> None:
        """Makes space for so many GPUs, and for this slot and an empty one."""
        _kinds, wide, long = self._gpus.shape
        slots = long if slot + 1 >= long else 0
        if gpus > wide or slots:
            self._gpus = np.pad(self._gpus, ((0, 0), (0, max(0, gpus - wide)), (0, slots)), constant_values=_ABSENT)
            self._spread = np.pad(self._spread, (0, slots))


def _kept(amounts: list[int]) -> list[int]:
    """Amounts as a column keeps them."""
    if amounts and (min(amounts) < _ABSENT or max(amounts) >= -_ABSENT):
        return [min(max(amount, _ABSENT), -_ABSENT - 1) for amount in amounts]
    return amounts


def _wanted(amount: int | None) -> np.int32:
    """An amount as it is asked for: what is more than any column keeps stays so."""
    return np.int32(min(amount or 0, -_ABSENT))


Key = TypeVar("Key")
Value = TypeVar("Value")


class RecentValues(Generic[Key, Value]):
    """The `most` values last asked for, by key. Keys are compared, not hashed: a hash of thousands of names costs more.

    The very object of before is found without a comparison, so it is worth keeping what is made from a key (names, from
    the bytes they came in) as one object.
    """

    def __init__(self, most: int = 8) -> None:
        self._most = most
        self._kept: list[tuple[Key, Value]] = []

    def get(self, key: Key) -> Value | None:
        """None for an unknown key."""
        place = self._place(key)
        if place is None:
            return None
        found = self._kept[place]
        if place:
            del self._kept[place]
            self._kept.insert(0, found)
        return found[1]

    def _place(self, key: Key) -> int | None:
        for place, (kept, _value) in enumerate(self._kept):
            if kept is key:
                return place
        return next((place for place, (kept, _value) in enumerate(self._kept) if kept == key), None)

    def put(self, key: Key, value: Value) -> None:
        """For a key that `get` does not know."""
        self._kept.insert(0, (key, value))
        del self._kept[self._most :]

    def values(self) -> Iterator[Value]:
        return (value for _key, value in self._kept)

    def clear(self) -> None:
        self._kept.clear()


BEST = 10  # of scores, whose least is 0: MaxExtenderPriority of k8s.io/kube-scheduler/extender/v1
_FEW = 16  # up to this part of all nodes, only those that have changed are looked at
_KEPT = 16  # lists, and requests

Scores = np.ndarray[tuple[int], np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class _Listed:
    """The slots of a list of nodes, and which of them passed: by their flags as bytes."""

    slots: Slots
    passing: RecentValues[bytes, tuple[str, ...]] = field(default_factory=lambda: RecentValues(_KEPT))


@dataclass(slots=True)
class _Found:
    """The keys computed for a request. stale: slots that have been written since."""

    keys: Keys
    stale: set[int] = field(default_factory=set)


class GpuTable:
    """The capacity of every node, and its columns, which are rewritten when it changes."""

    def __init__(self) -> None:
        self._columns = GpuColumns()
        self._slots: dict[str, int] = {}
        self._ledger: list[NodeCapacity | None] = []
        self._free: list[int] = []  # slots of nodes that have gone
        self._lists: RecentValues[tuple[str, ...], _Listed] = RecentValues(_KEPT)
        self._found: RecentValues[Request, _Found] = RecentValues(_KEPT)

    def put(self, ledger: NodeCapacity) -> None:
        """Writes a node's columns."""
        slot = self._slots.get(ledger.node)
        if slot is None:
            slot = self._new_slot(ledger.node)
        self._ledger[slot] = ledger
        self._columns.write(slot, ledger)
        self._touch(slot)

    def drop(self, node: str) -> None:
        """Forgets a node; one that is not there is no error."""
        slot = self._slots.pop(node, None)
        if slot is not None:
            self._ledger[slot] = None
            self._columns.clear(slot)
            self._touch(slot)
            self._free.append(slot)
            self._lists.clear()

    def ledger(self, node: str) -> NodeCapacity | None:
        slot = self._slots.get(node)
        return None if slot is None else self._ledger[slot]

    @property
    def nodes(self) -> Sequence[str]:
        """The names of all nodes, in order."""
        return sorted(self._slots)

    def slots(self, nodes: Sequence[str]) -> Slots:
        """Where these nodes are, until a node comes or goes; -1 for an unknown one.

        Kept for a tuple, and at no cost where the very tuple is asked about again.
        """
        return self._listed(tuple(nodes)).slots

    def passing(self, request: Request, nodes: Sequence[str]) -> tuple[str, ...]:
        """Those of these nodes that have room, in their order: the very tuple of before while they are the same.

        They are asked about next, so where they are is kept.
        """
        names = tuple(nodes)
        listed = self._listed(names)
        fits = self.fits(request, listed.slots)
        if fits.all():
            return names
        flags = fits.tobytes()
        passing = listed.passing.get(flags)
        if passing is None:
            passing = tuple(compress(names, flags))
            listed.passing.put(flags, passing)
            self._lists.put(passing, _Listed(listed.slots[fits]))
        return passing

    def fits(self, request: Request, slots: Slots) -> Flags:
        """Which of these nodes have room."""
        fits: Flags = self._keys(request)[slots] < NOTHING
        return fits

    def scores(self, request: Request, slots: Slots) -> Scores:
        """BEST for the nodes that their placement takes first, one less for the next, and so on; 0 where nothing fits.

        Nodes that are as good as each other have the same score.
        """
        keys, spread = self._keys(request)[slots], self._columns.spread(slots)
        if spread is None or spread.all():
            return _ranked(keys)
        others = np.where(spread, NOTHING, keys), np.where(spread, keys, NOTHING)
        scores: Scores = np.maximum(*map(_ranked, others))
        return scores

    def lacks(self, request: Request, slots: Slots) -> Lacks:
        """What each of these nodes lacks: the first `Lack` that is so, in their order."""
        keys = self._keys(request)
        lacks = self._columns.lacks(request, slice(len(keys)))
        lacks[-1] = Lack.UNKNOWN
        lacks[keys < NOTHING] = Lack.NOTHING
        found: Lacks = lacks[slots]
        return found

    def _new_slot(self, node: str) -> int:
        slot = self._free.pop() if self._free else len(self._ledger)
        if slot == len(self._ledger):
            self._ledger.append(None)
            self._found.clear()
        self._slots[node] = slot
        self._lists.clear()
        return slot

    def _listed(self, names: tuple[str, ...]) -> _Listed:
        listed = self._lists.get(names)
        if listed is None:
            listed = _Listed(np.fromiter(map(self._slots.get, names, repeat(-1)), np.intp, len(names)))
            self._lists.put(names, listed)
        return listed

    def _touch(self, slot: int) -> None:
        """Marks a slot to be computed again at the next question."""
        for found in self._found.values():
            found.stale.add(slot)

    def _keys(self, request: Request) -> Keys:
        """The keys of every slot, and of an empty one at the end, which -1 means."""
        found, slots = self._found.get(request), len(self._ledger) + 1
        if found is None:
            found = _Found(self._columns.keys(request, slice(slots)))
            self._found.put(request, found)
        elif len(found.stale) > slots // _FEW:
            found.keys = self._columns.keys(request, slice(slots))
        elif found.stale:
            stale = np.fromiter(found.stale, np.intp, len(found.stale))
            found.keys[stale] = self._columns.keys(request, stale)
        found.stale.clear()
        return found.keys


def _ranked(keys: Keys) -> Scores:
    """By the BEST least of the different keys."""
    ordered = np.sort(keys)
    first = np.concatenate([ordered[:1], ordered[1:][ordered[1:] != ordered[:-1]][: BEST - 1]])
    steps = np.full((BEST, 1), LOOSEST)
    steps[: len(first), 0] = np.minimum(first, LOOSEST)
    scores: Scores = (keys <= steps).sum(axis=0, dtype=np.uint8)
    return scores
