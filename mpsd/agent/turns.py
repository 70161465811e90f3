"""Lets tasks wait until a loop has looked and acted on what they changed.

One rule: a turn counts for a task only if it began after the task asked, so that it saw what the task had done.
"""

import asyncio


class Turns:
    """The turns of one loop."""

    def __init__(self) -> None:
        self._asked: list[asyncio.Future[None]] = []
        self._under_way: list[asyncio.Future[None]] = []

    def begin(self) -> None:
        """The loop begins a turn; who asks from now on waits for the next one."""
        self._under_way, self._asked = self._under_way + self._asked, []

    def end(self) -> None:
        """The turn is over."""
        served, self._under_way = self._under_way, []
        for one in served:
            if not one.done():
                one.set_result(None)

    async def next(self) -> None:
        """Returns after a whole turn. The caller sees to it that there is one, and to a deadline."""
        one: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked.append(one)
        await one
