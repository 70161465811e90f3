"""Watches objects of the Kubernetes API, and keeps a copy of some, which does not become empty
because the server is away."""

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

import msgspec
import urllib3
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from mpsd.model.fields import as_mapping
from mpsd.platform import clock, life
from mpsd.platform.kube import (
    ANY_VERSION,
    LARGEST,
    PIECE,
    UNREACHED,
    Ask,
    Expired,
    Kube,
    KubeError,
    Resource,
    Unavailable,
    decoded,
    refusal,
    within,
)
from mpsd.platform.logs import logger

T = TypeVar("T")

_WATCH_S = (240, 300)  # what a watch is asked to last; not all are to return together
_SILENCE_S = 90.0  # servers send a bookmark about once a minute
_QUIET_S = 10.0  # then the server is asked something: one that hangs keeps connections
_ANSWER_S = 5.0
_SHORTEST_S = 1.0  # a watch that ends sooner shows that the server is in trouble
BACK_OFF = wait_random_exponential(multiplier=0.5, max=30.0)


@dataclass(frozen=True, slots=True)
class Selection:
    resource: Resource
    namespace: str = ""
    #: Such as `{"fieldSelector": "spec.nodeName=a"}`.
    query: Mapping[str, str] = field(default_factory=dict)
    #: A TypedDict or struct of what is read of each object; None: everything.
    fields: type[Any] | None = None


# -- watches


class ChangeKind(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"  # holds the resourceVersion up to which everything was reported


@dataclass(frozen=True, slots=True)
class WatchEvent:
    kind: ChangeKind
    version: str  # the resourceVersion of the object as of then
    object: Any  # as the selection's `fields` have it


class _Line(msgspec.Struct, frozen=True):
    """A line of a watch."""

    type: str
    object: msgspec.Raw


class _Version(msgspec.Struct, frozen=True):
    version: str = msgspec.field(name="resourceVersion")


class _Versioned(msgspec.Struct, frozen=True):
    metadata: _Version


class _Watch:
    """An answer that goes on for minutes, a line a change. It is read in a daemon thread, so that
    neither a stop of the process nor `close` waits for the server."""

    def __init__(self, kube: Kube, ask: Ask, fields: Any, silence_s: float) -> None:
        self._kube = kube
        self._ask = ask
        self._fields = fields
        self._silence_s = silence_s
        # None: the thread ends
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._call: Future[Any] = Future()
        self._is_closed = False
        self._answer: urllib3.BaseHTTPResponse | None = None  # None until its head has come

    async def open(self) -> None:
        """Raises what a refusal is called."""
        try:
            name = f"kube-watch-{self._ask.resource.plural}"
            Thread(target=self._call_each, name=name, daemon=True).start()
        except RuntimeError as error:  # for want of processes or memory
            raise Unavailable(f"{self._ask}: {error}") from None
        async with within(self._kube.deadline_s, self._ask):
            await self._in_thread(self._open)
        self._kube.heard_at = time.monotonic()

    async def changes(self) -> AsyncIterator[WatchEvent]:
        """Expired; Unavailable."""
        assert self._answer, "it is open"
        pieces = self._read(self._answer)
        while (piece := await self._next(pieces)) is not None:
            self._kube.heard_at = time.monotonic()
            for change in piece:
                yield change

    async def _next(self, pieces: Iterator[list[WatchEvent]]) -> list[WatchEvent] | None:
        """None at the end. Unavailable once the server answers nothing at all."""
        if self._is_closed:
            return None
        reading = self._in_thread(lambda: next(pieces, None))
        try:
            while not (await asyncio.wait({reading}, timeout=_QUIET_S))[0]:
                if self._kube.silent_s >= _QUIET_S:
                    asking = asyncio.create_task(self._kube.date(_ANSWER_S))
                    both: tuple[asyncio.Future[Any], ...] = (reading, asking)
                    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                    asking.cancel()
                    if asking.done() and (trouble := asking.exception()) and not reading.done():
                        raise trouble
            return await reading
        finally:
            reading.cancel()

    def close(self) -> None:
        """Wakes the thread out of whatever it waits for, so that it ends."""
        self._is_closed = True
        if self._answer:
            # it has ended by itself
            with suppress(*UNREACHED, ValueError, RuntimeError):
                self._answer.shutdown()
        self._call.add_done_callback(self._release)
        self._calls.put(None)

    def _in_thread(self, act: Callable[[], T]) -> asyncio.Future[T]:
        self._call = call = Future[T]()
        # one whose caller is cancelled goes on to its end
        call.set_running_or_notify_cancel()

        def run() -> None:
            try:
                call.set_result(act())
            except Exception as error:
                call.set_exception(error)

        self._calls.put(run)
        return asyncio.wrap_future(call)

    # -- in the thread

    def _call_each(self) -> None:
        while act := self._calls.get():
            act()

    def _open(self) -> None:
        self._answer = answer = self._kube.access.open(self._ask, self._kube.deadline_s)
        if answer.status != 200:
            date = str(answer.headers.get("Date", ""))
            raise refusal(self._ask, answer.status, decoded(answer.read(LARGEST)), date)
        # None where the whole answer has come already
        if socket := getattr(answer.connection, "sock", None):
            socket.settimeout(self._silence_s)

    def _read(self, answer: urllib3.BaseHTTPResponse) -> Iterator[list[WatchEvent]]:
        line = bytearray()
        try:
            for piece in answer.stream(PIECE):
                lines = []
                first, *others = piece.split(b"\n")
                line += first
                for other in others:
                    lines.append(line)
                    line = bytearray(other)
                if len(line) > LARGEST:  # the list says which it is, or no longer has it
                    raise Expired(f"{self._ask}: a change has more than {LARGEST} bytes")
                yield [change for one in lines if one and (change := self._change(one))]
        except UNREACHED as error:
            why = str(error)
            if isinstance(error, urllib3.exceptions.ReadTimeoutError):
                why = f"nothing came for {self._silence_s:g} s"
            raise Unavailable(f"{self._ask}: the connection is lost: {why}") from None

    def _change(self, line: bytearray) -> WatchEvent | None:
        """None for an unknown kind of change."""
        entry = decoded(line, _Line)
        if not isinstance(entry, _Line):
            raise self._unreadable(line)
        if entry.type == "ERROR":
            status = as_mapping(decoded(entry.object))
            raise refusal(self._ask, int(status.get("code") or 500), status)
        if entry.type not in ChangeKind.__members__:
            return None
        kind = ChangeKind(entry.type)
        about = decoded(entry.object, _Versioned)
        found = None
        if kind is not ChangeKind.BOOKMARK:
            found = decoded(entry.object, self._fields or object)
        if not isinstance(about, _Versioned) or (found is None and kind is not ChangeKind.BOOKMARK):
            raise self._unreadable(line)
        return WatchEvent(kind, about.metadata.version, found)

    def _unreadable(self, line: bytearray) -> Unavailable:
        return Unavailable(
            f"{self._ask}: a line of the answer cannot be read: {bytes(line[:200])!r}"
        )

    def _release(self, _call: Future[Any]) -> None:
        if self._answer:
            self._answer.close()


@asynccontextmanager
async def watch(
    kube: Kube, selection: Selection, since: str = "", silence_s: float = _SILENCE_S
) -> AsyncIterator[AsyncIterator[WatchEvent]]:
    """The changes after the resourceVersion `since`, once the server has agreed to send them, until
    it ends them. Expired: list again; Unavailable: nothing came for `silence_s`, or it broke."""
    lasting_s = str(random.randint(*_WATCH_S))  # noqa: S311 - no secret
    query = {**selection.query, "watch": "1", "allowWatchBookmarks": "true"}
    query |= {"timeoutSeconds": lasting_s, "resourceVersion": since}
    ask = Ask("watch", selection.resource, "", selection.namespace, query=query)
    under_way = _Watch(kube, ask, selection.fields, silence_s)
    try:
        await under_way.open()
        yield under_way.changes()
    finally:
        under_way.close()


# -- mirrors


class Mirror(Generic[T]):
    """A copy of a selection, each object as `read` makes it (None: not wanted).

    on_change: called in the loop when an object that is not quiet has come, changed or gone, and
    when the copy is first in sync. each: called before that, also for quiet ones, with what the
    object was and is (None: not there).
    """

    def __init__(
        self,
        kube: Kube,
        selection: Selection,
        read: Callable[[Any], T | None],
        on_change: Callable[[], None] = lambda: None,
        is_quiet: Callable[[T], bool] = lambda _value: False,
        each: Callable[[T | None, T | None], None] = lambda _before, _now: None,
    ) -> None:
        self._kube = kube
        self._selection = selection
        self._read = read
        self._on_change = on_change
        self._is_quiet = is_quiet
        self._each = each
        self._objects: dict[tuple[str, str], T] = {}
        self._in_order: tuple[T, ...] | None = ()  # None: to be made anew
        self._version = ANY_VERSION
        self._listed = False  # whether `_version` is one to go on watching from
        self.plural = selection.resource.plural
        self._log = logger(watched=self.plural)
        self.synced = False
        # seconds since 1970, for people; None while it is in sync
        self.out_of_sync_since: float | None = clock.wall_s()
        self._in_sync_at = time.monotonic()  # last
        self.trouble: KubeError | None = None

    def objects(self) -> tuple[T, ...]:
        """By namespace and name; empty until `synced`; the very same tuple while none changes."""
        if self._in_order is None:
            self._in_order = tuple(self._objects[name] for name in sorted(self._objects))
        return self._in_order

    @property
    def out_of_sync_s(self) -> float:
        """For how long it has been out of sync; 0 while it is in sync."""
        if self.out_of_sync_since is None:
            return 0.0
        return time.monotonic() - self._in_sync_at

    async def run(self) -> None:
        while True:
            again = retry_if_exception_type(KubeError)
            await AsyncRetrying(wait=BACK_OFF, retry=again, before_sleep=self._note_away)(
                self._follow
            )

    async def _follow(self) -> None:
        """One watch to its end. KubeError where it was so short that the server needs a rest."""
        if not self._listed:
            await self._list()
        began = math.inf
        try:
            async with watch(self._kube, self._selection, self._version) as changes:
                began = time.monotonic()
                if self.out_of_sync_since is not None:
                    self._log.info("in sync", objects=len(self._objects))
                self.out_of_sync_since = self.trouble = None
                async for change in changes:
                    self._take(change)
            trouble: KubeError = Unavailable(f"watch {self.plural}: ended as soon as it had begun")
        except KubeError as error:
            trouble = error
        if isinstance(trouble, Expired):
            self._listed = False
        if time.monotonic() - began < _SHORTEST_S or self._kube.silent_s >= _QUIET_S:
            raise trouble  # else the next one goes on from where it broke, at once

    async def _list(self) -> None:
        query = {**self._selection.query, "resourceVersion": self._version}
        # else a server takes a list in pages for one of exactly that version, old as it may be
        if self._version:
            query["resourceVersionMatch"] = "NotOlderThan"
        objects: dict[tuple[str, str], T] = {}
        version = ""
        selected = (self._selection.resource, self._selection.namespace)
        try:
            async for page in self._kube.pages(*selected, query, self._selection.fields):
                for found in page.items:
                    if (value := self._read(found)) is not None:
                        objects[_name(found)] = value
                version = page.version
        except Expired:
            self._version = ""  # the newest, whatever that costs the server
            raise
        before = self._objects
        changed = not self.synced or self._loud(objects) != self._loud(self._objects)
        if objects != before:
            self._objects = objects
            self._in_order = None
        self._version = version
        self._listed = True
        self.synced = True
        for name in before.keys() | objects.keys():
            if before.get(name) != objects.get(name):
                self._each(before.get(name), objects.get(name))
        if changed:
            self._on_change()

    def _take(self, change: WatchEvent) -> None:
        self._version = change.version
        if change.kind is ChangeKind.BOOKMARK:
            return
        name = _name(change.object)
        value = None
        if change.kind is not ChangeKind.DELETED:
            value = self._read(change.object)
        before = self._objects.get(name)
        if value == before:
            return
        self._in_order = None
        if value is None:
            del self._objects[name]
        else:
            self._objects[name] = value
        self._each(before, value)
        if not all(each is None or self._is_quiet(each) for each in (before, value)):
            self._on_change()

    def _loud(self, objects: Mapping[tuple[str, str], T]) -> dict[tuple[str, str], T]:
        return {name: value for name, value in objects.items() if not self._is_quiet(value)}

    def _note_away(self, attempt: RetryCallState) -> None:
        assert attempt.outcome
        why = attempt.outcome.exception()
        assert isinstance(why, KubeError), "others are not tried again"
        self.trouble = why
        if self.out_of_sync_since is not None and attempt.attempt_number > 1:
            return
        if self.out_of_sync_since is None:
            ago_s = self._kube.silent_s
            if ago_s < _QUIET_S:
                ago_s = 0.0
            self.out_of_sync_since = clock.wall_s() - ago_s
            self._in_sync_at = time.monotonic() - ago_s
        self._log.warning("out of sync", reason=str(why))


def _name(found: Any) -> tuple[str, str]:
    if isinstance(found, msgspec.Struct):
        return found.metadata.namespace, found.metadata.name  # type: ignore[attr-defined]
    metadata = found["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


@asynccontextmanager
async def following(*mirrors: Mirror[Any]) -> AsyncIterator[None]:
    """The mirrors run meanwhile."""
    tasks = [life.background(mirror.run()) for mirror in mirrors]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
