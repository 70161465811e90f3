"""What every GPU of a cluster has left: which of thousands of nodes have room for a request, and which are best.

What was found out for a request is kept, and where the nodes of a list are: schedulers ask of the same nodes again and
again, for pods that are alike, and then only the nodes that have changed since are looked at.

One rule: it says of a node exactly what `placement.place` says of its books, only for all nodes at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress, repeat

import numpy as np

from mpsd.model.grants import Request
from mpsd.scheduler.rules.gpu_columns import LOOSEST, NOTHING, Flags, GpuColumns, Keys, Lack, Lacks, Slots
from mpsd.scheduler.rules.lately import Lately
from mpsd.scheduler.rules.node_books import NodeBooks

__all__ = ["BEST", "GpuTable", "Lack"]

BEST = 10  # of scores, whose least is 0: MaxExtenderPriority of k8s.io/kube-scheduler/extender/v1
_FEW = 16  # up to this part of all nodes, only those that have changed are looked at
_KEPT = 16  # lists, and requests

Scores = np.ndarray[tuple[int], np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class _Listed:
    """Where the nodes of a list are, and which of them have passed: by their flags as bytes."""

    slots: Slots
    passing: Lately[bytes, tuple[str, ...]] = field(default_factory=lambda: Lately(_KEPT))


@dataclass(slots=True)
class _Found:
    """What was found out for a request. stale: slots that have been written since."""

    keys: Keys
    stale: set[int] = field(default_factory=set)


class GpuTable:
    """A node's columns are written anew when its books change."""

    def __init__(self) -> None:
        self._columns = GpuColumns()
        self._slots: dict[str, int] = {}
        self._books: list[NodeBooks | None] = []
        self._free: list[int] = []  # slots of nodes that have gone
        self._lists: Lately[tuple[str, ...], _Listed] = Lately(_KEPT)
        self._found: Lately[Request, _Found] = Lately(_KEPT)

    def put(self, books: NodeBooks) -> None:
        """Writes a node's columns."""
        slot = self._slots.get(books.node)
        if slot is None:
            slot = self._new_slot(books.node)
        self._books[slot] = books
        self._columns.write(slot, books)
        self._touch(slot)

    def drop(self, node: str) -> None:
        """Forgets a node; one that is not there is no error."""
        slot = self._slots.pop(node, None)
        if slot is not None:
            self._books[slot] = None
            self._columns.clear(slot)
            self._touch(slot)
            self._free.append(slot)
            self._lists.clear()

    def books(self, node: str) -> NodeBooks | None:
        slot = self._slots.get(node)
        return None if slot is None else self._books[slot]

    @property
    def nodes(self) -> Sequence[str]:
        """Those that have books, by name."""
        return sorted(self._slots)

    def slots(self, nodes: Sequence[str]) -> Slots:
        """Where these nodes are, until a node comes or goes; -1 for one that has no books.

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
        lacks[-1] = Lack.BOOKS
        lacks[keys < NOTHING] = Lack.NOTHING
        found: Lacks = lacks[slots]
        return found

    def _new_slot(self, node: str) -> int:
        slot = self._free.pop() if self._free else len(self._books)
        if slot == len(self._books):
            self._books.append(None)
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
        """Has what was found out about a slot found out anew, once somebody asks."""
        for found in self._found.values():
            found.stale.add(slot)

    def _keys(self, request: Request) -> Keys:
        """Of every slot, and of an empty one at the end, which -1 means."""
        found, slots = self._found.get(request), len(self._books) + 1
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
