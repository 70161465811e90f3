"""What every GPU of a cluster has left, in columns of numbers: by kind of number, GPU of a node, and the node's slot.

One rule: whatever a room says, however large or far below zero, a column says the same of whether a request fits.
"""

from collections import Counter
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from mpsd.model.grants import Request
from mpsd.model.policy import Placement
from mpsd.scheduler.rules.node_books import NodeBooks

_FIRST = 16  # slots that there is space for, which grows as nodes come

# What is kept of each GPU. USABLE: MiB, of those with enough clients left and no fewer than 0 % of their threads.
# DOMAIN: a number within the node, of domains of several GPUs. TOTAL: MiB that may be promised in all, the largest
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
    """What keeps a request from a node: what the GPUs that come nearest have too little of."""

    NOTHING = 0
    BOOKS = 1  # nothing is known of it
    SIZE = 2  # it would not fit if nobody held anything and every GPU served
    SERVING = 3  # no GPU takes pods now
    MEMORY = 4
    THREADS = 5
    CLIENTS = 6
    TOGETHER = 7  # enough GPUs have room, but not in one domain


class GpuColumns:
    """The slot after the last one written is empty, and so is -1, which stands for a node without books."""

    def __init__(self) -> None:
        self._gpus = np.full((5, 1, _FIRST), _ABSENT, np.int32)
        self._spread = np.zeros(_FIRST, np.bool_)
        self._domains = 0  # of several GPUs, that a node had at most

    def write(self, slot: int, books: NodeBooks) -> None:
        self._grow(max(len(books.rooms), len(books.totals)), slot)
        rooms, clients = books.rooms, books.policy.requests.clients_per_grant
        shared = [domain for domain, size in Counter(room.domain for room in rooms).items() if size > 1]
        self._domains = max(self._domains, len(shared))
        self.clear(slot)
        for kind, amounts in (
            (_USABLE, [r.memory_mib if r.clients >= clients and r.thread_percent >= 0 else _ABSENT for r in rooms]),
            (_MEMORY, [room.memory_mib for room in rooms]),
            (_PERCENT, [room.thread_percent for room in rooms]),
            (_DOMAIN, [shared.index(room.domain) if room.domain in shared else _ABSENT for room in rooms]),
            (_TOTAL, sorted((mib for _gpu, mib in books.totals), reverse=True)),
        ):
            self._gpus[kind, : len(amounts), slot] = _kept(amounts)
        self._spread[slot] = books.policy.placement is Placement.SPREAD

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
