"""What readers of the page are shown now, and what has changed since they were sent something last.

A view is made once for all readers, and only while there are some; what a reader has not been sent yet is worked out
when it can take it, so that nothing is kept for one that is slow.
"""

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from mpsd.platform.logs import logger
from mpsd.status.page.rules.view import LISTS, PageHead, PageView

MOST_READERS = 32
SHORTEST_PAUSE_S = 0.5  # between two looks
_SHARE = 20  # of the time, one part at most is spent on looks
_LINGER_S = 30.0  # that looking goes on after the last reader, who may only have loaded the page anew
_AFTER_FAULT_S = 10.0
_GONE_KEPT = 4096


class Full(Exception):
    """As many read as may. own: how many of them are the one who asked for one place more."""

    def __init__(self, own: int) -> None:
        super().__init__()
        self.own = own


def who_gives_way(there: Sequence[str], newcomer: str) -> int | None:
    """Which reader of the page goes where there is no place left: the last one of whoever has the most, so that nobody
    keeps all others out.

    None: the newcomer goes, for nobody would then have more than it has. there: whose each place is (an address, a
    user), the first who came first.
    """
    count = Counter(there)
    if not there or count[(most := max(count, key=lambda one: count[one]))] < count[newcomer] + 2:
        return None
    return max(place for place, address in enumerate(there) if address == most)


@dataclass(eq=False, slots=True)
class _Place:
    """The place of a reader. hang_up: ends its stream."""

    reader: str
    hang_up: Callable[[], None]


class _ListEntry(Protocol):
    """An entry of a list of a view."""

    @property
    def id(self) -> str: ...


class ViewSource(Protocol):
    """Where views come from. Between `begin` and `end` it is asked again and again."""

    async def begin(self) -> None: ...

    async def look(self) -> PageView | None:
        """None where nothing can have changed since the last look."""

    async def end(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Part:
    """An entry of a list, and since which serial it is so."""

    value: object
    text: bytes
    serial: int


@dataclass(slots=True)
class _Shown:
    """What was made of the views so far. serial: how often that was another; 0 before the first view."""

    serial: int = 0
    head: PageHead | None = None  # None before the first view
    view: PageView | None = None  # likewise
    parts: dict[str, dict[str, _Part]] = field(default_factory=lambda: {name: {} for name in LISTS})
    gone: deque[tuple[int, str, str]] = field(default_factory=lambda: deque(maxlen=_GONE_KEPT))

    def take(self, view: PageView) -> bool:
        """Whether anything but the time has changed."""
        serial, before = self.serial + 1, self.head
        changed = before is None or _lasting(before) != _lasting(view.head)
        for name in LISTS:
            old, new = self.parts[name], dict(_encoded(name, view, self.parts[name], serial))
            missing = old.keys() - new.keys()
            self.gone.extend((serial, name, one) for one in missing)
            changed = changed or bool(missing) or any(part.serial == serial for part in new.values())
            self.parts[name] = new
        self.head, self.view = view.head, view
        self.serial += changed
        return changed

    def since(self, serial: int) -> bytes:
        """As JSON: everything where `serial` is 0 or too long ago, else what has changed after it."""
        whole = serial == 0 or (len(self.gone) == _GONE_KEPT and self.gone[0][0] > serial)
        after = 0 if whole else serial
        put = {
            name: b"[" + b",".join(part.text for part in parts.values() if part.serial > after) + b"]"
            for name, parts in self.parts.items()
        }
        gone: dict[str, list[str]] = {}
        for at, name, one in self.gone:
            if at > after and not whole and one not in self.parts[name]:
                gone.setdefault(name, []).append(one)
        message = {"whole": whole, "head": self.head, "gone": gone}
        return msgspec.json.encode(message | {"put": {name: msgspec.Raw(text) for name, text in put.items()}})


def _lasting(head: PageHead) -> tuple[object, ...]:
    """The head without the time."""
    return head.scope, head.name, head.version, head.away, head.away_since, head.waiting_more, head.pods


def _encoded(name: str, view: PageView, before: Mapping[str, _Part], serial: int) -> Iterator[tuple[str, _Part]]:
    entries: Sequence[_ListEntry] = getattr(view, name)
    for value in entries:
        known = before.get(value.id)
        if known is not None and known.value is value:
            yield value.id, known
            continue
        text = msgspec.json.encode(value)
        yield value.id, (known if known is not None and known.text == text else _Part(value, text, serial))


class PageFeed:
    """Looks while there are readers, and gives each what it does not have yet."""

    def __init__(self, source: ViewSource) -> None:
        self._source = source
        self._shown = _Shown()
        self._places: list[_Place] = []  # the first who came first
        self._idle_since = time.monotonic()
        self._task: asyncio.Task[None] | None = None  # None while nobody reads
        self._news = asyncio.Event()
        self._last: tuple[tuple[int, int, PageHead | None], bytes] = (
            (-1, -1, None),
            b"",
        )  # sent last: of what, and the text
        self.closed = False
        self._log = logger()

    @property
    def readers(self) -> int:
        """How many read now."""
        return len(self._places)

    @contextlib.asynccontextmanager
    async def reading(self, reader: str, hang_up: Callable[[], None] = lambda: None) -> AsyncIterator[None]:
        """Full where too many do already. reader: who it is. hang_up: ends it, to make place for who reads less."""
        place = _Place(reader, hang_up)
        self._make_room(reader)
        self._places.append(place)
        try:
            if self._task is None or self._task.done():
                self._shown = _Shown()
                self._task = asyncio.create_task(self._run())
            yield
        finally:
            if place in self._places:
                self._places.remove(place)
            self._idle_since = time.monotonic()

    def _make_room(self, newcomer: str) -> None:
        whose = [place.reader for place in self._places]
        if self.closed:
            raise Full(0)
        if len(whose) < MOST_READERS:
            return
        place = who_gives_way(whose, newcomer)
        if place is None:
            raise Full(whose.count(newcomer))
        self._places.pop(place).hang_up()

    async def news(self, serial: int, longest_s: float) -> tuple[int, bytes] | None:
        """What has changed after this serial (0: everything), and up to which; None where nothing has by then."""
        if self._shown.serial <= serial and not self.closed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(longest_s):
                    await self._news.wait()
        now = self._shown.serial
        if self.closed or now <= serial:
            return None
        of = (serial, now, self._shown.head)
        if self._last[0] != of:
            self._last = of, self._shown.since(serial)
        return now, self._last[1]

    @property
    def head(self) -> PageHead | None:
        """None before the first view."""
        return self._shown.head

    @property
    def view(self) -> PageView | None:
        """None before the first."""
        return self._shown.view

    async def close(self) -> None:
        """Ends what every reader waits for, at once."""
        self.closed = True
        self._news.set()
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._is_wanted:
            try:
                await self._look_on()
            except Exception as error:  # a fault of ours, which may cost the page and nothing else
                self._log.exception("page failed", error=type(error).__name__)
                await asyncio.sleep(_AFTER_FAULT_S)

    @property
    def _is_wanted(self) -> bool:
        return self.readers > 0 or time.monotonic() - self._idle_since < _LINGER_S

    async def _look_on(self) -> None:
        try:
            await self._source.begin()
            while self._is_wanted:
                began = time.monotonic()
                view = await self._source.look()
                if view and self._shown.take(view):
                    self._wake()
                await asyncio.sleep(max(SHORTEST_PAUSE_S, _SHARE * (time.monotonic() - began)))
        finally:
            await self._source.end()

    def _wake(self) -> None:
        """Wakes everybody who waits for news now."""
        waiting, self._news = self._news, asyncio.Event()
        waiting.set()
