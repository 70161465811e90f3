"""A table of what every GPU of a cluster has left: which nodes have room for a request, and which
are best.

It says of a node exactly what `placement.place` says of its capacity, in columns of numbers by kind
of number, GPU of a node, and the node's slot. Results are kept for each request and list of nodes,
since schedulers ask about the same again: then only nodes that have changed are computed.
"""

import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import compress, repeat
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from mpsd.grants.rules.placement import together
from mpsd.model.grants import Request
from mpsd.model.policy import Placement
from mpsd.scheduler.rules.capacity import NodeCapacity

_FIRST = 16  # slots that there is space for, which grows as nodes come
_FEW = 16  # up to this part of all nodes, only those that have changed are looked at
_KEPT = 16  # lists, and requests
BEST = 10  # of scores, whose least is 0: MaxExtenderPriority of k8s.io/kube-scheduler/extender/v1

# What is kept of each GPU. USABLE: MiB, of those with enough clients left and no fewer than 0 % of
# their threads. DOMAIN: a number within the node, of GPUs that can be had together
# (`placement.together`). TOTAL: MiB that may be given away in all, the largest first, of every GPU,
# also of those that take no pods.
_USABLE, _MEMORY, _PERCENT, _DOMAIN, _TOTAL = range(5)
_ABSENT = -(2**30)  # less than anybody asks for; amounts are kept between this and a PiB

# What is left, less what is asked: below zero, and read as unsigned, it is at least _NOTHING. So
# the least of a node's is at once whether anything fits, and how tightly.
_NOTHING = np.uint32(2**31)
_LOOSEST = np.uint32(2**31 - 1)

Slots = NDArray[np.intp]
Flags = NDArray[np.bool_]
Lacks = NDArray[np.uint8]
Scores = np.ndarray[tuple[int], np.dtype[np.uint8]]
# by slot: its placement takes the least first, and from _NOTHING on nothing fits
Keys = NDArray[np.uint32]

Key = TypeVar("Key")
Value = TypeVar("Value")


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


class RecentValues(Generic[Key, Value]):
    """The `most` values last asked for, by key. Keys are compared, not hashed: a hash of thousands
    of names costs more. The very object of before is found without a comparison."""

    def __init__(self, most: int = 8) -> None:
        self._most = most
        self._kept: list[tuple[Key, Value]] = []

    def get(self, key: Key) -> Value | None:
        for is_same in (operator.is_, operator.eq):
            for place, (kept, value) in enumerate(self._kept):
                if is_same(kept, key):
                    self._kept.insert(0, self._kept.pop(place))
                    return value
        return None

    def put(self, key: Key, value: Value) -> None:
        """For a key that `get` does not know."""
        self._kept.insert(0, (key, value))
        del self._kept[self._most :]

    def values(self) -> Iterator[Value]:
        return (value for _key, value in self._kept)

    def clear(self) -> None:
        self._kept.clear()


@dataclass(frozen=True, slots=True)
class _Listed:
    """The slots of a list of nodes, and which of them passed: by their flags as bytes."""

    slots: Slots
    passing: RecentValues[bytes, tuple[str, ...]] = field(
        default_factory=lambda: RecentValues(_KEPT)
    )


@dataclass(slots=True)
class _Found:
    """The keys computed for a request. stale: slots that have been written since."""

    keys: Keys
    stale: set[int] = field(default_factory=set)


class GpuTable:
    """The capacity of every node, and its columns. The slot after the last one written is empty,
    and so is -1, which stands for an unknown node."""

    def __init__(self) -> None:
        self._gpus = np.full((5, 1, _FIRST), _ABSENT, np.int32)
        # of each slot, whether its node takes the emptiest GPU first
        self._spread = np.zeros(_FIRST, np.bool_)
        self._domains = 0  # of several GPUs, that a node had at most
        self._slots: dict[str, int] = {}
        self._ledger: list[NodeCapacity | None] = []
        self._free: list[int] = []  # slots of nodes that have gone
        self.shut: dict[str, str] = {}  # by node that takes no pods at all: why, a sentence
        self._lists: RecentValues[tuple[str, ...], _Listed] = RecentValues(_KEPT)
        self._found: RecentValues[Request, _Found] = RecentValues(_KEPT)

    def put(self, ledger: NodeCapacity) -> None:
        if (slot := self._slots.get(ledger.node)) is None:
            slot = self._slots[ledger.node] = self._free.pop() if self._free else len(self._ledger)
            if slot == len(self._ledger):
                self._ledger.append(None)
                self._found.clear()
            self._lists.clear()
        self.shut.pop(ledger.node, None)
        if ledger.shut:
            self.shut[ledger.node] = ledger.shut
        rooms = ledger.rooms
        clients = ledger.policy.requests.clients_per_grant
        gpus = max(len(rooms), len(ledger.totals))
        _kinds, wide, long = self._gpus.shape
        slots = long if slot + 1 >= long else 0  # an empty one stays at the end
        if gpus > wide or slots:
            self._gpus = np.pad(
                self._gpus, ((0, 0), (0, max(0, gpus - wide)), (0, slots)), constant_values=_ABSENT
            )
            self._spread = np.pad(self._spread, (0, slots))
        group = together(rooms)
        shared = [each for each, size in Counter(group.values()).items() if size > 1]
        self._domains = max(self._domains, len(shared))
        self._write(slot, ledger)
        columns = [
            (
                _USABLE,
                [
                    r.memory_mib if r.clients >= clients and r.thread_percent >= 0 else _ABSENT
                    for r in rooms
                ],
            ),
            (_MEMORY, [room.memory_mib for room in rooms]),
            (_PERCENT, [room.thread_percent for room in rooms]),
            (
                _DOMAIN,
                [shared.index(each) if each in shared else _ABSENT for each in group.values()],
            ),
            (_TOTAL, sorted((mib for _gpu, mib in ledger.totals), reverse=True)),
        ]
        for kind, amounts in columns:
            self._gpus[kind, : len(amounts), slot] = _kept(amounts)
        self._spread[slot] = ledger.policy.placement is Placement.SPREAD

    def drop(self, node: str) -> None:
        """Forgets a node; one that is not there is no error."""
        slot = self._slots.pop(node, None)
        self.shut.pop(node, None)
        if slot is not None:
            self._write(slot, None)
            self._free.append(slot)
            self._lists.clear()

    def ledger(self, node: str) -> NodeCapacity | None:
        slot = self._slots.get(node)
        return None if slot is None else self._ledger[slot]

    @property
    def nodes(self) -> Sequence[str]:
        return sorted(self._slots)

    def slots(self, nodes: Sequence[str]) -> Slots:
        """Where these nodes are, until a node comes or goes; -1 for an unknown one."""
        return self._listed(tuple(nodes)).slots

    def passing(self, request: Request, nodes: Sequence[str]) -> tuple[str, ...]:
        """Those of these nodes that have room, in their order: the very tuple of before while they
        are the same, which is asked about next."""
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
        fits: Flags = self._keys(request)[slots] < _NOTHING
        return fits

    def scores(self, request: Request, slots: Slots) -> Scores:
        """BEST for the nodes that their placement takes first, one less for the next, and so on; 0
        where nothing fits."""
        keys = self._keys(request)[slots]
        if not self._spread.any() or (spread := self._spread[slots]).all():
            return _ranked(keys)
        others = np.where(spread, _NOTHING, keys), np.where(spread, keys, _NOTHING)
        scores: Scores = np.maximum(*map(_ranked, others))
        return scores

    def lacks(self, request: Request, slots: Slots) -> Lacks:
        """What each of these nodes lacks: the first `Lack` that is so, in their order."""
        keys = self._keys(request)
        gpus = self._gpus[:, :, : len(keys)]
        size = _wanted(request.memory_mib)
        percent = _wanted(request.thread_percent)
        memory = gpus[_MEMORY] >= size
        threads = memory & (gpus[_PERCENT] >= percent)
        able = gpus[_MEMORY] > _ABSENT
        lacks = np.full(len(keys), Lack.TOGETHER, np.uint8)
        for lack, enough, number in (
            (Lack.CLIENTS, threads & (gpus[_USABLE] >= size), request.gpus),
            (Lack.THREADS, threads, request.gpus),
            (Lack.MEMORY, memory, request.gpus),
            (Lack.SERVING, able, 1),
            (Lack.SIZE, gpus[_TOTAL] >= size, request.gpus),
        ):
            lacks[enough.sum(axis=0, dtype=np.int16) < number] = lack
        lacks[-1] = Lack.UNKNOWN
        lacks[keys < _NOTHING] = Lack.NOTHING
        found: Lacks = lacks[slots]
        return found

    def _write(self, slot: int, ledger: NodeCapacity | None) -> None:
        """Empties a slot's columns."""
        self._ledger[slot] = ledger
        self._gpus[:, :, slot] = _ABSENT
        self._spread[slot] = False
        for found in self._found.values():
            found.stale.add(slot)

    def _listed(self, names: tuple[str, ...]) -> _Listed:
        listed = self._lists.get(names)
        if listed is None:
            listed = _Listed(
                np.fromiter(map(self._slots.get, names, repeat(-1)), np.intp, len(names))
            )
            self._lists.put(names, listed)
        return listed

    def _keys(self, request: Request) -> Keys:
        """The keys of every slot, and of an empty one at the end, which -1 means."""
        found = self._found.get(request)
        slots = len(self._ledger) + 1
        if found is None:
            found = _Found(self._computed(request, slice(slots)))
            self._found.put(request, found)
        elif len(found.stale) > slots // _FEW:
            found.keys = self._computed(request, slice(slots))
        elif found.stale:
            stale = np.fromiter(found.stale, np.intp, len(found.stale))
            found.keys[stale] = self._computed(request, stale)
        found.stale.clear()
        return found.keys

    def _computed(self, request: Request, slots: Slots | slice) -> Keys:
        gpus = self._gpus[:, :, slots]
        spread = self._spread[slots]
        left = self._left(request, gpus)
        keys: Keys = np.minimum.reduce(left.view(np.uint32), axis=0)
        if spread.any():  # what is below zero comes out at _NOTHING or above
            loosest_first = _LOOSEST - np.maximum.reduce(left, axis=0).view(np.uint32)
            keys = np.where(spread, loosest_first, keys)
        return keys

    def _left(self, request: Request, gpus: NDArray[np.int32]) -> NDArray[np.int32]:
        """By GPU and slot: MiB that the request would leave there, below zero where it does not
        fit."""
        left: NDArray[np.int32] = gpus[_USABLE] - _wanted(request.memory_mib)
        if request.thread_percent:
            # -1 where that is below zero
            left |= (gpus[_PERCENT] - _wanted(request.thread_percent)) >> 31
        if request.gpus > 1:
            fitting = left >= 0
            # those with enough others beside them in their domain
            together = np.zeros_like(fitting)
            for number in range(self._domains):
                beside = fitting & (gpus[_DOMAIN] == number)
                together |= beside & (beside.sum(axis=0, dtype=np.int16) >= request.gpus)
            left[~together] = -1
        return left


def _kept(amounts: list[int]) -> list[int]:
    if amounts and (min(amounts) < _ABSENT or max(amounts) >= -_ABSENT):
        return [min(max(amount, _ABSENT), -_ABSENT - 1) for amount in amounts]
    return amounts


def _wanted(amount: int | None) -> np.int32:
    """An amount as it is asked for: what is more than any column keeps stays so."""
    return np.int32(min(amount or 0, -_ABSENT))


def _ranked(keys: Keys) -> Scores:
    """By the BEST least of the different keys."""
    ordered = np.sort(keys)
    first = np.concatenate([ordered[:1], ordered[1:][ordered[1:] != ordered[:-1]][: BEST - 1]])
    steps = np.full((BEST, 1), _LOOSEST)
    steps[: len(first), 0] = np.minimum(first, _LOOSEST)
    scores: Scores = (keys <= steps).sum(axis=0, dtype=np.uint8)
    return scores
