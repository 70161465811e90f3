"""Which rows of a table are to be written anew, and when.

One rule: each is written once for all that has changed since the last time, before anybody reads it, and soon where
nobody does.
"""

import asyncio
import heapq
import math
from collections.abc import Callable

_COARSE_S = 1.0  # that a row may be late where only time has passed


class Rows:
    """write: writes one row, and says when it changes if nothing else happens; None: never. now: seconds, by the same
    clock.
    """

    def __init__(self, write: Callable[[str], float | None], now: Callable[[], float]) -> None:
        self._write = write
        self._now = now
        self._changed: set[str] = set()
        self._due: list[tuple[float, str]] = []  # a heap
        self._due_at: dict[str, float] = {}  # what of the heap counts

    def mark(self, name: str) -> None:
        """Says that a row has changed."""
        if not self._changed:
            asyncio.get_running_loop().call_soon(self.settle)
        self._changed.add(name)

    def settle(self) -> None:
        """Writes what has changed."""
        self._take_due()
        changed, self._changed = self._changed, set()
        for name in changed:
            at = self._write(name)
            if at is not None and at < self._due_at.get(name, math.inf) - _COARSE_S:
                self._due_at[name] = at
                heapq.heappush(self._due, (at, name))

    def _take_due(self) -> None:
        now = self._now()
        while self._due and self._due[0][0] <= now:
            at, name = heapq.heappop(self._due)
            if self._due_at.get(name) == at:
                del self._due_at[name]
                self._changed.add(name)
