"""How a server goes: not ready at once, served as before until those who ask have gone elsewhere.

One rule: a second signal ends the wait, and nothing else but its time.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from mpsd.edge.logs import Logger


class Departure:
    """drain_s: how long to serve on."""

    def __init__(self, drain_s: float, log: Logger) -> None:
        self._drain_s = drain_s
        self._log = log
        self._hurry = asyncio.Event()
        self.has_begun = False

    def hurry(self) -> None:
        """Ends the drain that is under way."""
        self._hurry.set()

    async def drain(self, ask_to_go: Callable[[], None]) -> None:
        """ask_to_go: has each answer from now on ask its peer to come elsewhere."""
        self.has_begun = True
        ask_to_go()
        self._log.info("going", drain_s=self._drain_s, again="a second signal ends the drain")
        with suppress(TimeoutError):
            async with asyncio.timeout(self._drain_s):
                await self._hurry.wait()
