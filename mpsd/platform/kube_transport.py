"""Exchanges with the Kubernetes API over HTTP: requests, watches, and what each refusal is called.

A request blocks its thread for no longer than the deadline it is given. A watch is one answer that goes on for minutes,
a line a change: it has a thread of its own, which ends when the watch is closed, whatever the server does, and which
reads no faster than its changes are taken.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import urllib3

Object = dict[str, Any]

UNREACHED = (urllib3.exceptions.HTTPError, OSError)  # what an exchange that came to nothing raises


class KubeError(Exception):
    """The API server did not do what was asked."""


class NotFound(KubeError):
    """There is no such object, or no such kind of objects."""


class Conflict(KubeError):
    """Somebody else was first: the object exists already, or has changed since it was read."""


class Forbidden(KubeError):
    """A right is missing."""


class Rejected(KubeError):
    """The API server, or an admission webhook, finds something wrong with what was sent."""


class Expired(KubeError):
    """The server no longer knows, or does not know yet, the resourceVersion asked for: list again."""


class Unavailable(KubeError):
    """No answer in time, no connection, or a server that cannot answer now."""


class Throttled(Unavailable):
    """The server has too much to do, or a disruption budget forbids an eviction for the time being."""


@dataclass(frozen=True, slots=True)
class Access:
    """How an API server is reached. host: with the scheme and no slash at its end. authorization: the headers that let
    us in, as they are now."""

    host: str
    pool: urllib3.PoolManager
    authorization: Callable[[], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object. api: group and version, `v1` for the core group."""

    api: str
    plural: str

    def path(self, name: str = "", namespace: str = "", subresource: str = "") -> str:
        parts = ["apis" if "/" in self.api else "api", self.api]
        parts += ["namespaces", quote(namespace, safe="")] if namespace else []
        parts += [self.plural, quote(name, safe="")] if name else [self.plural]
        parts += [subresource] if subresource else []
        return "/" + "/".join(parts)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. verb: as RBAC names it. name: empty for a collection. body None: the request has none.

    said: a path that is about no object, such as /apis; empty for the path of the resource.
    """

    verb: str
    resource: Resource
    name: str = ""
    namespace: str = ""
    subresource: str = ""
    query: Mapping[str, str] | None = None
    body: bytes | None = None
    content_type: str = "application/json"
    said: str = ""

    def __str__(self) -> str:
        if self.said:
            return f"{self.verb} {self.said}"
        plural = self.resource.plural + (f"/{self.subresource}" if self.subresource else "")
        name = f" {self.name}" if self.name else ""
        return f"{self.verb} {plural}{name}" + (f" in {self.namespace}" if self.namespace else "")

    @property
    def path(self) -> str:
        if self.said:
            return self.said
        creates_itself = self.verb == "create" and not self.subresource
        name = "" if creates_itself else self.name
        query = f"?{urlencode(self.query)}" if self.query else ""
        return self.resource.path(name, self.namespace, self.subresource) + query


_METHODS = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
}
_ERRORS: Mapping[int, type[KubeError]] = {404: NotFound, 409: Conflict, 410: Expired, 429: Throttled}
_ENDING = "is being terminated"  # in a 403 about a namespace that takes nothing new
_TOO_NEW = "ResourceVersionTooLarge"  # the cause in a 504 to whom this server's cache lags behind
_PIECE = 1 << 16  # bytes read at once
_AHEAD = 4  # pieces that may wait to be taken


class Transport:
    """Sends to one API server."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def exchange(self, ask: Ask, deadline_s: float) -> tuple[int, bytes]:
        """The status and the whole body. Unavailable where nobody answers."""
        answer = self._send(ask, deadline_s)
        return answer.status, answer.data

    def date(self, ask: Ask, deadline_s: float) -> str:
        """The header Date of an answer, whatever else it says. Unavailable where nobody answers."""
        return str(self._send(ask, deadline_s).headers.get("Date", ""))

    def stream(self, ask: Ask, deadline_s: float, silence_s: float) -> urllib3.BaseHTTPResponse:
        """An answer whose body is still to come: its head within the deadline, then never `silence_s` without a byte.

        Raises what the server's refusal is called.
        """
        answer = self._send(ask, deadline_s, streaming=True)
        if answer.status != 200:
            with_body = answer.data
            answer.release_conn()
            raise refusal(ask, answer.status, _decoded(with_body))
        socket = getattr(answer.connection, "sock", None)  # None where the whole answer has come already
        if socket is not None:
            socket.settimeout(silence_s)
        return answer

    def close(self) -> None:
        self._access.pool.clear()

    def _send(self, ask: Ask, deadline_s: float, *, streaming: bool = False) -> urllib3.BaseHTTPResponse:
        try:
            headers = {"Accept": "application/json", "Content-Type": ask.content_type, **self._access.authorization()}
            return self._access.pool.request(
                _METHODS[ask.verb],
                f"{self._access.host}{ask.path}",
                body=ask.body,
                headers=headers,
                timeout=urllib3.Timeout(connect=deadline_s, read=deadline_s),
                retries=False,
                redirect=False,
                preload_content=not streaming,
            )
        except UNREACHED as error:
            raise Unavailable(f"{ask}: the Kubernetes API does not answer: {error}") from None


def read_answer(ask: Ask, status: int, body: bytes) -> Object:
    """The object in an answer; raises what a refusal is called."""
    answer = _decoded(body)
    if not 200 <= status < 300:
        raise refusal(ask, status, answer)
    if isinstance(answer, dict):
        return answer
    raise Unavailable(f"{ask}: the answer is not a JSON object")


def refusal(ask: Ask, status: int, answer: object) -> KubeError:
    """answer: the Status object that came with it, if one did."""
    said = answer.get("message", "") if isinstance(answer, dict) else ""
    if status == 401:
        return Forbidden(f"mpsd is not known to the API server: {said}")
    if status == 403 and said.startswith("admission webhook "):
        return Rejected(f"{ask}: {said}")
    if status == 403:
        return Forbidden(f"{ask}: {said}" if _ENDING in said else f"mpsd lacks the right to {ask}: {said}")
    if status == 504 and _TOO_NEW in str(answer):
        return Expired(f"{ask}: {said}")
    error = _ERRORS.get(status, Unavailable if status >= 500 else Rejected)
    if error is Rejected and _is_of_another(answer):
        error = Conflict
    return error(f"{ask}: {said or f'HTTP {status}'}")


def _is_of_another(answer: object) -> bool:
    """Whether a patch named a uid and another object has the name: servers call that an attempt to change the uid."""
    details = answer.get("details") if isinstance(answer, dict) else None
    causes = details.get("causes") if isinstance(details, dict) else None
    return any(isinstance(cause, dict) and cause.get("field") == "metadata.uid" for cause in causes or ())


def _decoded(body: bytes) -> object:
    """None for what is no JSON."""
    try:
        found: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found


# -- watches -----------------------------------------------------------------------------------------------------------


class ChangeKind(StrEnum):
    """BOOKMARK: nothing has changed; its object holds the resourceVersion up to which everything was said."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


_KINDS = frozenset(kind.value for kind in ChangeKind)


@dataclass(frozen=True, slots=True)
class WatchEvent:
    kind: ChangeKind
    object: Object

    @property
    def version(self) -> str:
        """The resourceVersion to go on from after this change."""
        return str(self.object["metadata"]["resourceVersion"])


class Watch:
    """One watch under way. An async iterator of changes; it ends when the server ends it, as servers do after minutes.

    While it goes on it raises Expired, or Unavailable where nothing came for too long or the connection broke.
    """

    def __init__(self, transport: Transport, ask: Ask, deadline_s: float, silence_s: float) -> None:
        self._transport = transport
        self._ask = ask
        self._deadline_s = deadline_s
        self._silence_s = silence_s
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._pieces: asyncio.Queue[list[WatchEvent] | Exception | None] = asyncio.Queue()
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
            raise Unavailable(f"{self._ask}: no answer from the Kubernetes API in {self._deadline_s:g} s") from None

    def close(self) -> None:
        """Wakes the thread out of whatever it waits for, so that it ends; may be called again."""
        self._closed.set()
        self._room.release()
        answer = self._answer
        if answer is not None:
            with suppress(*UNREACHED, ValueError, RuntimeError):  # it may have ended by itself just now
                answer.shutdown()

    async def changes(self) -> AsyncIterator[WatchEvent]:
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
            return Unavailable(f"{self._ask}: the connection is lost: {why}")
        except Exception as error:  # also a fault of ours, or nobody would hear of it in this thread
            return error
        finally:
            answer.close()
        return None

    def _read(self, answer: urllib3.BaseHTTPResponse) -> Iterator[list[WatchEvent]]:
        rest = b""
        for piece in answer.stream(_PIECE):
            if self._closed.is_set():
                return
            *lines, rest = (rest + piece).split(b"\n")
            changes = [change for line in lines if line and (change := self._change(line))]
            if changes:
                yield changes

    def _change(self, line: bytes) -> WatchEvent | None:
        """None for a kind of change that this version of mpsd does not know."""
        try:
            said = msgspec.json.decode(line)
            kind, found = said["type"], said["object"]
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            raise Unavailable(f"{self._ask}: a line of the answer cannot be read: {error}") from None
        if kind == "ERROR":
            raise refusal(self._ask, int(found.get("code") or 500), found)
        return WatchEvent(ChangeKind(kind), found) if kind in _KINDS else None

    def _give(self, piece: list[WatchEvent] | Exception | None) -> None:
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
