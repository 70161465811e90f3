"""Watches objects of the Kubernetes API: one answer that goes on for minutes, a line a change.

One rule: a watch has a thread of its own, which ends when the watch is closed, whatever the server does; and it reads
no faster than its changes are taken.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec
import urllib3

from mpsd.edge.kube_transport import UNREACHED, Ask, Away, KubeError, Object, Transport, refusal

_PIECE = 1 << 16  # bytes read at once
_AHEAD = 4  # pieces that may wait to be taken


class ChangeKind(StrEnum):
    """BOOKMARK: nothing has changed; its object holds the resourceVersion up to which everything was said."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


_KINDS = frozenset(kind.value for kind in ChangeKind)


@dataclass(frozen=True, slots=True)
class Change:
    kind: ChangeKind
    object: Object

    @property
    def version(self) -> str:
        """The resourceVersion to go on from after this change."""
        return str(self.object["metadata"]["resourceVersion"])


class Watch:
    """One watch under way. An async iterator of changes; it ends when the server ends it, as servers do after minutes.

    While it goes on it raises Expired, or Away where nothing came for too long or the connection broke.
    """

    def __init__(self, transport: Transport, ask: Ask, deadline_s: float, silence_s: float) -> None:
        self._transport = transport
        self._ask = ask
        self._deadline_s = deadline_s
        self._silence_s = silence_s
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._pieces: asyncio.Queue[list[Change] | Exception | None] = asyncio.Queue()
        self._room = threading.Semaphore(_AHEAD)
        self._closed = threading.Event()
        self._answer: urllib3.BaseHTTPResponse | None = None

    async def open(self) -> None:
        """Returns once the server has agreed to it. Raises what a refusal is called."""
        threading.Thread(target=self._run, name=f"kube-watch-{self._ask.resource.plural}", daemon=True).start()
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._opened
        except TimeoutError:
            raise Away(f"{self._ask}: no answer from the Kubernetes API in {self._deadline_s:g} s") from None

    def close(self) -> None:
        """Wakes the thread out of whatever it waits for, so that it ends; may be called again."""
        self._closed.set()
        self._room.release()
        answer = self._answer
        if answer is not None:
            with suppress(*UNREACHED, ValueError, RuntimeError):  # it may have ended by itself just now
                answer.shutdown()

    async def changes(self) -> AsyncIterator[Change]:
        while True:
            piece = await self._pieces.get()
            self._room.release()
            if piece is None:
                return
            if isinstance(piece, Exception):
                raise piece
            for change in piece:
                yield change

    # -- in the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._answer = self._transport.stream(self._ask, self._deadline_s, self._silence_s)
        except KubeError as error:
            self._say(_fail, self._opened, error)
            return
        if self._closed.is_set():  # by somebody who did not see the answer come
            self._answer.close()
            return
        self._say(_succeed, self._opened)
        self._give(self._pass_on(self._answer))

    def _pass_on(self, answer: urllib3.BaseHTTPResponse) -> Exception | None:
        """Gives every change until the answer ends; what went wrong, None where nothing did."""
        try:
            for piece in self._read(answer):
                self._give(piece)
        except UNREACHED as error:
            late = isinstance(error, urllib3.exceptions.ReadTimeoutError)
            why = f"nothing came for {self._silence_s:g} s" if late else str(error)
            return Away(f"{self._ask}: the connection is lost: {why}")
        except Exception as error:  # also a fault of ours, or nobody would hear of it in this thread
            return error
        finally:
            answer.close()
        return None

    def _read(self, answer: urllib3.BaseHTTPResponse) -> Iterator[list[Change]]:
        rest = b""
        for piece in answer.stream(_PIECE):
            if self._closed.is_set():
                return
            *lines, rest = (rest + piece).split(b"\n")
            changes = [change for line in lines if line and (change := self._change(line))]
            if changes:
                yield changes

    def _change(self, line: bytes) -> Change | None:
        """None for a kind of change that this version of mpsd does not know."""
        try:
            said = msgspec.json.decode(line)
            kind, found = said["type"], said["object"]
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            raise Away(f"{self._ask}: a line of the answer cannot be read: {error}") from None
        if kind == "ERROR":
            raise refusal(self._ask, int(found.get("code") or 500), found)
        return Change(ChangeKind(kind), found) if kind in _KINDS else None

    def _give(self, piece: list[Change] | Exception | None) -> None:
        """Waits for room; gives nothing to nobody."""
        self._room.acquire()
        if not self._closed.is_set():
            self._say(self._pieces.put_nowait, piece)

    def _say(self, what: Any, *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop has ended, and whoever waited with it
            self._loop.call_soon_threadsafe(what, *arguments)


def _succeed(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _fail(future: asyncio.Future[None], error: KubeError) -> None:
    if not future.done():
        future.set_exception(error)
