"""Lets something happen at once, and then not again too soon.

One rule: whatever was asked for happens, at the latest `apart_s` after it was; what is asked for meanwhile is one.
"""

import asyncio
from collections.abc import Callable


class Pace:
    """Calls `act`, never twice within `apart_s` seconds. To be used in one event loop."""

    def __init__(self, act: Callable[[], None], apart_s: float) -> None:
        self._act = act
        self._apart_s = apart_s
        self._acted_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None  # while it waits for its time

    def ask(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(self._acted_at + self._apart_s, self._now)

    def _now(self) -> None:
        self._timer = None
        self._acted_at = asyncio.get_running_loop().time()
        self._act()
