"""What readers of the page are shown now, and what has changed since they were sent something last.

A view is made once for all readers, and only while there are some; what a reader has not been sent
yet is worked out when it can take it, so that nothing is queued for one that is slow.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec

from mpsd.platform.logs import logger
from mpsd.status.page.rules.view import LISTS, PageHead, PageView

MOST_READERS = 32
SHORTEST_PAUSE_S = 0.5  # between two looks
_SHARE = 20  # of the time, one part at most is spent on looks
# that looking goes on after the last reader, who may only have loaded the page anew
_LINGER_S = 30.0
_AFTER_FAULT_S = 10.0


class TooManyReaders(Exception):
    """As many read as may. own: how many of them are the one who asked for one place more."""

    def __init__(self, own: int) -> None:
        super().__init__()
        self.own = own


def who_gives_way(there: Sequence[str], newcomer: str) -> int | None:
    """Which reader of the page goes where there is no place left: the last one of whoever has the
    most, so that nobody keeps all others out.

    None: the newcomer goes, for nobody would then have more than it has. there: whose each place is
    (an address, a user), the first who came first.
    """
    count = Counter(there)
    if not there or count[(most := max(count, key=lambda one: count[one]))] < count[newcomer] + 2:
        return None
    return max(place for place, address in enumerate(there) if address == most)


class ViewSource(Protocol):
    """Where views come from. While it is watching it is asked again and again."""

    def watching(self) -> contextlib.AbstractAsyncContextManager[None]: ...

    async def look(self) -> PageView | None:
        """None where nothing can have changed since the last look."""


@dataclass(frozen=True, slots=True, eq=False)
class _ShownEntry:
    """An entry of a list, and its JSON; equal to itself alone, and the very same in each view until
    it changes."""

    value: object
    text: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """A view as readers get it: its entries by list and id."""

    head: PageHead
    entries: Mapping[str, Mapping[str, _ShownEntry]]

    def differs(self, other: "Shown") -> bool:
        """In anything but the time."""
        return replace(self.head, at=other.head.at) != other.head or self.entries != other.entries


def shown(view: PageView, before: Shown | None) -> Shown:
    """before: what readers got last, with which it shares what has not changed; None before the
    first view."""

    def entry(name: str, value: Any) -> _ShownEntry:
        known = before.entries[name].get(value.id) if before else None
        if known and known.value is value:
            return known
        text = msgspec.json.encode(value)
        return known if known and known.text == text else _ShownEntry(value, text)

    return Shown(
        view.head,
        {name: {one.id: entry(name, one) for one in getattr(view, name)} for name in LISTS},
    )


def changes(before: Shown | None, now: Shown, head: PageHead) -> bytes:
    """What a reader who got `before` last is sent, as JSON: everything where that is None. head: of
    the last view."""
    put = {}
    gone = {}
    for name, entries in now.entries.items():
        known = before.entries[name] if before else {}
        texts = [entry.text for one, entry in entries.items() if known.get(one) is not entry]
        put[name] = msgspec.Raw(b"[" + b",".join(texts) + b"]")
        if missing := [one for one in known if one not in entries]:
            gone[name] = missing
    return msgspec.json.encode({"whole": before is None, "head": head, "gone": gone, "put": put})


class PageFeed:
    """Looks while there are readers, and gives each what it does not have yet."""

    def __init__(self, source: ViewSource) -> None:
        self._source = source
        self.view: PageView | None = None  # the last one; None before the first
        self._shown: Shown | None = None  # likewise; the last that differed in more than the time
        # who reads and what ends it; the first who came first
        self._places: list[tuple[str, Callable[[], None]]] = []
        self._idle_since = time.monotonic()
        self._task: asyncio.Task[None] | None = None  # None while nobody reads
        self._news = asyncio.Event()
        self._sent: tuple[object, bytes] = None, b""  # sent last: of what, and the text
        self.closed = False
        self._log = logger()

    @property
    def readers(self) -> int:
        return len(self._places)

    @contextlib.asynccontextmanager
    async def reading(
        self, reader: str, hang_up: Callable[[], None] | None = None
    ) -> AsyncIterator[None]:
        """TooManyReaders where no more may. reader: who it is. hang_up: ends it, to make place for
        who reads less."""
        self._make_room(reader)
        place = reader, hang_up or (lambda: None)
        self._places.append(place)
        try:
            if self._task is None or self._task.done():
                self.view = self._shown = None
                self._task = asyncio.create_task(self._run())
            yield
        finally:
            self._places = [one for one in self._places if one is not place]
            self._idle_since = time.monotonic()

    def _make_room(self, newcomer: str) -> None:
        if self.closed:
            raise TooManyReaders(0)
        whose = [reader for reader, _hang_up in self._places]
        if len(whose) >= MOST_READERS:
            place = who_gives_way(whose, newcomer)
            if place is None:
                raise TooManyReaders(whose.count(newcomer))
            _reader, hang_up = self._places.pop(place)
            hang_up()

    async def news(self, before: Shown | None, longest_s: float) -> tuple[Shown, bytes] | None:
        """What a reader who got `before` last (None: nothing yet) gets now, and its text; None
        where that has not changed by then."""
        if self._shown is before and not self.closed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(longest_s):
                    await self._news.wait()
        now = self._shown
        view = self.view
        if self.closed or now is before or now is None or view is None:
            return None
        of = (before, now, view.head)
        if self._sent[0] != of:
            self._sent = of, changes(before, now, view.head)
        return now, self._sent[1]

    async def close(self) -> None:
        self.closed = True
        self._news.set()
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
        return self.readers > 0 or time.monotonic() - self._idle_since < _LINGER_S

    async def _look(self) -> None:
        began = time.monotonic()
        view = await self._source.look()
        if view:
            self.view, now = view, shown(view, self._shown)
            if self._shown is None or now.differs(self._shown):
                self._shown = now
                waiting = self._news
                self._news = asyncio.Event()
                waiting.set()
        await asyncio.sleep(max(SHORTEST_PAUSE_S, _SHARE * (time.monotonic() - began)))
