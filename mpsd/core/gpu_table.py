"""What every GPU of a cluster has left, as columns: which of thousands of nodes have room, and which of these is best.

One rule: it says of a node exactly what `placement.place` says of its books, only for all nodes at once.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mpsd.core.grants import Request, Room
from mpsd.core.node_books import NodeBooks
from mpsd.core.policy import Placement

BEST = 10  # of scores, whose least is 0: MaxExtenderPriority of k8s.io/kube-scheduler/extender/v1
_ABSENT = -(2**31)  # less than anybody asks for
_FIRST = 16  # rows, which grow as nodes come

Slots = NDArray[np.int32]
Flags = NDArray[np.bool_]
Scores = NDArray[np.int64]


class GpuTable:
    """A row a node, a column a GPU that takes pods; a row is written anew when its node's books change."""

    def __init__(self) -> None:
        self._slots: dict[str, int] = {}
        self._books: list[NodeBooks | None] = []
        self._free: list[int] = []  # slots of nodes that have gone
        self._memory = np.full((_FIRST, 1), _ABSENT, np.int32)
        self._percent = self._memory.copy()
        self._clients = self._memory.copy()
        self._domain = self._memory.copy()  # a number within the node
        self._wanted = np.zeros(_FIRST, np.int32)  # clients that the node's policy gives each grant
        self._spread = np.zeros(_FIRST, np.bool_)

    def put(self, books: NodeBooks) -> None:
        """Writes a node's row."""
        slot = self._slot(books.node)
        self._books[slot] = books
        self._widen(len(books.rooms))
        self._clear(slot)
        domains: dict[str, int] = {}
        for column, room in enumerate(books.rooms):
            self._write(slot, column, room, domains.setdefault(room.domain, len(domains)))
        self._wanted[slot] = books.policy.requests.clients_per_grant
        self._spread[slot] = books.policy.placement is Placement.SPREAD

    def drop(self, node: str) -> None:
        """Forgets a node; one that is not there is no error."""
        slot = self._slots.pop(node, None)
        if slot is not None:
            self._books[slot] = None
            self._clear(slot)
            self._free.append(slot)

    def books(self, node: str) -> NodeBooks | None:
        slot = self._slots.get(node)
        return None if slot is None else self._books[slot]

    @property
    def nodes(self) -> Sequence[str]:
        """Those that have books, by name."""
        return sorted(self._slots)

    def slots(self, nodes: Sequence[str]) -> Slots:
        """Where the rows of these nodes are; -1 for one that has none."""
        return np.fromiter((self._slots.get(node, -1) for node in nodes), np.int32, len(nodes))

    def fits(self, request: Request, slots: Slots) -> Flags:
        """Which of these nodes have room."""
        fits: Flags = np.any(self._together(request, slots, self._fitting(request, slots)), axis=1)
        return fits

    def scores(self, request: Request, slots: Slots) -> Scores:
        """BEST for the nodes that their placement takes first, one less for the next, and so on; 0 where nothing fits.

        Nodes that are as good as each other have the same score.
        """
        fitting = self._together(request, slots, self._fitting(request, slots))
        memory = self._memory[slots]
        tightest = np.where(fitting, memory, np.iinfo(np.int32).max).min(axis=1, initial=np.iinfo(np.int32).max)
        roomiest = np.where(fitting, memory, _ABSENT).max(axis=1, initial=_ABSENT)
        spread, fits = self._spread[slots], fitting.any(axis=1)
        scores = np.zeros(len(slots), np.int64)
        for group, key in ((fits & ~spread, tightest), (fits & spread, -roomiest)):
            _keys, rank = np.unique(key[group], return_inverse=True)
            scores[group] = np.maximum(BEST - rank, 0)
        return scores

    # -- the columns -----------------------------------------------------------------------------------------------

    def _fitting(self, request: Request, slots: Slots) -> Flags:
        """By node and GPU: which single GPUs have room."""
        fitting: Flags = (
            (self._memory[slots] >= request.memory_mib)
            & (self._percent[slots] >= (request.thread_percent or 0))
            & (self._clients[slots] >= self._wanted[slots, None])
            & (slots >= 0)[:, None]
        )
        return fitting

    def _together(self, request: Request, slots: Slots, fitting: Flags) -> Flags:
        """Those of the fitting GPUs that have enough others beside them in their domain."""
        if request.gpus == 1:
            return fitting
        domain, together = self._domain[slots], np.zeros_like(fitting)
        for number in range(int(domain.max(initial=-1)) + 1):
            beside = fitting & (domain == number)
            together |= beside & (beside.sum(axis=1) >= request.gpus)[:, None]
        return together

    def _slot(self, node: str) -> int:
        slot = self._slots.get(node)
        if slot is None:
            slot = self._free.pop() if self._free else self._new_slot()
            self._slots[node] = slot
        return slot

    def _new_slot(self) -> int:
        slot = len(self._books)
        self._books.append(None)
        if slot == len(self._memory):
            more = slot
            self._memory, self._percent, self._clients, self._domain = (
                np.vstack([column, np.full((more, column.shape[1]), _ABSENT, np.int32)])
                for column in (self._memory, self._percent, self._clients, self._domain)
            )
            self._wanted = np.concatenate([self._wanted, np.zeros(more, np.int32)])
            self._spread = np.concatenate([self._spread, np.zeros(more, np.bool_)])
        return slot

    def _widen(self, gpus: int) -> None:
        more = gpus - self._memory.shape[1]
        if more > 0:
            self._memory, self._percent, self._clients, self._domain = (
                np.pad(column, ((0, 0), (0, more)), constant_values=_ABSENT)
                for column in (self._memory, self._percent, self._clients, self._domain)
            )

    def _clear(self, slot: int) -> None:
        for column in (self._memory, self._percent, self._clients, self._domain):
            column[slot] = _ABSENT

    def _write(self, slot: int, column: int, room: Room, domain: int) -> None:
        self._memory[slot, column] = room.memory_mib
        self._percent[slot, column] = room.thread_percent
        self._clients[slot, column] = room.clients
        self._domain[slot, column] = domain
