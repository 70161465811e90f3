"""The view that readers of the page get: made once for all, while somebody reads."""

import asyncio
import contextlib
import gzip
import hashlib
import time
from dataclasses import dataclass
from typing import Protocol

import msgspec

from mpsd.platform.logs import logger
from mpsd.status.page.rules.view import PageView

SHORTEST_PAUSE_S = 0.5  # between two looks
_SHARE = 20  # of the time, one part at most is spent on looks
_LINGER_S = 30.0  # that looking goes on after somebody asked last
_AFTER_FAULT_S = 10.0


class ViewSource(Protocol):
    """Where views come from. While it is watching it is asked again and again."""

    def watching(self) -> contextlib.AbstractAsyncContextManager[None]: ...

    async def look(self) -> PageView | None:
        """None where nothing can have changed since the last look."""


@dataclass(frozen=True, slots=True)
class ServedView:
    text: bytes
    zipped: bytes
    tag: str


class PageFeed:
    def __init__(self, source: ViewSource) -> None:
        self._source = source
        self._latest: ServedView | None = None  # None before the first
        self._known = asyncio.Event()
        self._asked_at = 0.0  # monotonic
        self._task: asyncio.Task[None] | None = None  # None while nobody asks
        self._closed = False
        self._log = logger()

    async def latest(self, longest_s: float) -> ServedView | None:
        self._asked_at = time.monotonic()
        if self._closed:
            return None
        if self._task is None or self._task.done():
            self._latest = None
            self._known.clear()
            self._task = asyncio.create_task(self._run())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._known.wait()
        return self._latest

    async def close(self) -> None:
        self._closed = True
        self._known.set()
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._is_wanted:
            try:
                async with self._source.watching():
                    while self._is_wanted:
                        await self._look()
            except Exception as error:  # a fault of ours, which may cost the page and nothing else
                self._log.error("page failed", error=type(error).__name__, exc_info=error)
                await asyncio.sleep(_AFTER_FAULT_S)

    @property
    def _is_wanted(self) -> bool:
        return time.monotonic() - self._asked_at < _LINGER_S

    async def _look(self) -> None:
        began = time.monotonic()
        if view := await self._source.look():
            text = msgspec.json.encode(view) + b"\n"
            zipped = await asyncio.to_thread(gzip.compress, text, 1)
            self._latest = ServedView(text, zipped, f'"{hashlib.sha256(text).hexdigest()[:16]}"')
            self._known.set()
        await asyncio.sleep(max(SHORTEST_PAUSE_S, _SHARE * (time.monotonic() - began)))
