"""HTTP servers on Unix sockets and TCP ports, with TLS or without.

Connections are bounded in all and for each peer, and have deadlines; a stop loses no request that
was accepted.
"""

import asyncio
import ipaddress
import logging
import os
import resource
import socket
import ssl
from asyncio import sslproto
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from mpsd.model.identity import ProcessIdentity
from mpsd.platform import life
from mpsd.platform.bodies import JSON, BodyRefused, check_body
from mpsd.platform.event_loop import Shortages
from mpsd.platform.logs import Logger, logger
from mpsd.platform.peers import Peer, is_connected_by, peer_of
from mpsd.platform.processes import is_shortage
from mpsd.platform.settings import CannotListen, ListenAddress

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
USER = web.RequestKey("USER", str)  # whose token came
_PEER = web.RequestKey("PEER", Peer)  # of a connection to a Unix socket

# else a traceback for every peer that speaks no HTTP
_SILENT = logging.Logger("aiohttp", logging.CRITICAL + 1)
_BUFFER = 32 * 1024  # bytes of each connection; asyncio takes 256 KiB
_HANDSHAKE_S = 10.0
_FIRST_REQUEST_S = 10.0
_IDLE_S = 120.0  # longer than Go's client keeps one (90 s), or a request could be on its way
_LONGEST_FIELD = 8190  # bytes of a header's line; aiohttp answers 400 to more
_MOST_FIELDS = 64  # of a header, by the same answer
_SLOW_S = 30.0  # that a peer may need to take an answer, beyond what the kernel keeps for it
_REST_OF_BODY_S = 2.0  # of a refused body, so that its sender sees the answer
_CLOSED = -1  # the file descriptor of a closed socket
_LAST_HANDSHAKES_S = 1.0
_RETRY_ACCEPT_S = 1.0  # for want of file descriptors
_BACKLOG = 1024
_RESERVED = 32  # connections to a Unix socket, for root and mpsd's own user
_ACCEPTED_AT_ONCE = 64  # then those who are served have their turn


@dataclass(frozen=True, slots=True)
class UnixPath:
    path: Path
    mode: int  # of the socket's file, such as 0o666 where every user of the machine may ask


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """most, most_of_peer: connections at a time, handshakes among them, in all and of one address,
    or of one user on a Unix socket; at most a quarter and an eighth of the files that this process
    may open. More are closed at once, but that an address takes the place of one with more."""

    longest_body: int = 1024**2  # bytes
    last_requests_s: float = 10.0  # for requests under way
    cancels: bool = False  # a request ends with its connection: where answers wait or are long
    most: int = 1024
    most_of_peer: int = 512
    context: ssl.SSLContext | None = None  # None: HTTP without TLS


class Listener:
    """An HTTP server on one address. routes: from `METHOD /path` to handler."""

    def __init__(
        self,
        routes: Mapping[str, Handler],
        where: ListenAddress | UnixPath,
        settings: ListenerSettings | None = None,
    ) -> None:
        self._where = where
        self._settings = settings = settings or ListenerSettings()
        self._closing = False
        self._log = logger()
        self._shortages = Shortages(self._log)
        self._socket: socket.socket | None = None  # None while it does not listen
        # address or uid; also of some that were closed meanwhile
        self._peers: dict[socket.socket, str | int] = {}
        # by file descriptor, who connected to a Unix socket; also of some that have gone
        self._connected: dict[int, Peer] = {}
        self._handshakes: set[asyncio.Task[None]] = set()
        # by descriptor, of peers that have asked nothing yet: a protocol keeps what it was sent
        self._silent: dict[int, asyncio.TimerHandle] = {}
        app = web.Application(
            client_max_size=settings.longest_body, middlewares=[self._note_and_close]
        )
        for route, handler in routes.items():
            method, url = route.split()
            app.router.add_route(method, url, handler)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=_SILENT,
            keepalive_timeout=_IDLE_S,
            max_line_size=_LONGEST_FIELD,
            max_field_size=_LONGEST_FIELD,
            max_headers=_MOST_FIELDS,
            auto_decompress=False,  # a MiB may unpack to a GiB
            lingering_time=0,  # which would keep what a peer sent that is gone
            shutdown_timeout=settings.last_requests_s,
            handler_cancellation=settings.cancels,
        )

    @property
    def port(self) -> int:
        """The TCP port in use, by the kernel's choice for 0; 0 while it does not listen."""
        if self._socket is None:
            return 0
        return int(self._socket.getsockname()[1])

    async def start(self) -> None:
        """CannotListen where the address is taken, or another process answers on the path."""
        if self._settings.context:
            sslproto.SSLProtocol.max_size = _BUFFER
        if isinstance(self._where, UnixPath):
            listening = _bound_path(self._where)
        else:
            listening = _bound_port(self._where)
        listening.setblocking(False)
        await self._runner.setup()
        files, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = min(self._settings.most, files // 4)
        self._most_of_peer = min(self._settings.most_of_peer, files // 8)
        self._socket = listening
        self._listen(listening)

    def ask_to_go(self) -> None:
        """Each answer from now on asks its peer to connect anew."""
        self._closing = True

    async def stop(self) -> None:
        """Finishes what is under way, then closes every connection."""
        was_open = self._socket
        self._socket = None
        if was_open:
            asyncio.get_running_loop().remove_reader(was_open)
            was_open.close()
        if self._handshakes:
            _done, late = await asyncio.wait(self._handshakes, timeout=_LAST_HANDSHAKES_S)
            for task in late:
                task.cancel()
        await self._runner.cleanup()
        if was_open and isinstance(self._where, UnixPath):
            self._where.path.unlink(missing_ok=True)

    # -- connections

    def _listen(self, listening: socket.socket) -> None:
        if listening is self._socket:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _connection in range(_ACCEPTED_AT_ONCE):
            try:
                found, address = listening.accept()
            # there is none, or it has gone again
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # which stays so, and the loop would call again at once
                self._shortages.tell("accept a connection", error)
                loop.remove_reader(listening)
                loop.call_later(_RETRY_ACCEPT_S, self._listen, listening)
                return
            found.setblocking(False)
            try:
                has_place = self._has_place(found, address)
            except OSError as error:  # who asks cannot be read
                self._shortages.tell("accept a connection", error)
                has_place = False
            if has_place:
                task = life.background(self._take(found))
                self._handshakes.add(task)
                task.add_done_callback(self._handshakes.discard)
            else:
                found.close()

    def _has_place(self, found: socket.socket, address: Any) -> bool:
        for other in [other for other in self._peers if other.fileno() == _CLOSED]:
            del self._peers[other]
        counts = Counter(self._peers.values())
        most = self._most
        peer: str | int
        if isinstance(self._where, UnixPath):
            self._connected[found.fileno()] = connected = peer_of(found)
            peer = connected.uid
            if peer in {0, os.geteuid()}:
                most += _RESERVED
        else:
            peer = address[0]
            if len(self._peers) >= most:
                self._make_room(counts, peer)
        has_place = len(self._peers) < most and counts[peer] < self._most_of_peer
        if has_place:
            self._peers[found] = peer
        return has_place

    def _make_room(self, counts: Counter[str | int], peer: str | int) -> None:
        """The address with the most loses its oldest."""
        ((address, most),) = counts.most_common(1)
        if most > counts[peer] + 1:
            oldest = next(other for other, one in self._peers.items() if one == address)
            del self._peers[oldest]
            with suppress(OSError):  # it has gone by itself
                oldest.shutdown(socket.SHUT_RDWR)

    async def _take(self, found: socket.socket) -> None:
        tls: dict[str, Any] = {}
        if context := self._settings.context:
            tls = {"ssl": context, "ssl_handshake_timeout": _HANDSHAKE_S}
        loop = asyncio.get_running_loop()
        descriptor = found.fileno()
        server = self._runner.server
        assert server is not None
        if before := self._silent.pop(descriptor, None):  # of a connection that is closed
            before.cancel()
        close = self._close_silent
        self._silent[descriptor] = loop.call_later(_FIRST_REQUEST_S, close, descriptor, found)
        try:
            transport, _protocol = await loop.connect_accepted_socket(server, found, **tls)
            transport.max_size = _BUFFER  # type: ignore[attr-defined]
        except OSError:  # no TLS, or none in time; ssl.SSLError is one
            found.close()

    def _close_silent(self, descriptor: int, found: socket.socket) -> None:
        del self._silent[descriptor]
        with suppress(OSError):  # it has gone by itself
            found.shutdown(socket.SHUT_RDWR)

    @web.middleware
    async def _note_and_close(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if (connection := request.get_extra_info("socket")) is not None:
            descriptor = connection.fileno()
            if timer := self._silent.pop(descriptor, None):
                timer.cancel()
            if connected := self._connected.get(descriptor):
                request[_PEER] = connected
        try:
            check_body(request)
            answer = await handler(request)
        except BodyRefused as refused:
            answer = web.Response(status=refused.status, text=f"{refused}\n")
            return await _closed_unread(request, answer)
        except web.HTTPException as error:  # 404 and 405, which aiohttp answers from here
            answer = web.Response(status=error.status, text=f"{error.reason}\n")
            if "Allow" in error.headers:
                answer.headers["Allow"] = error.headers["Allow"]
            return await _closed_unread(request, answer)
        except Exception as error:  # a fault of ours
            if is_shortage(error):
                self._shortages.tell(f"answer {request.path}", error)
                text = f"mpsd cannot answer now: {error}; see its log\n"
                answer = web.Response(status=503, text=text)
            else:
                kind = type(error).__name__
                self._log.error("request failed", path=request.path, error=kind, exc_info=error)
                answer = web.Response(status=500, text="mpsd failed; see its log\n")
        if self._closing:
            answer.force_close()
        return await _sent(request, answer)


async def _closed_unread(request: web.Request, answer: web.StreamResponse) -> web.StreamResponse:
    """The connection ends with this answer, whatever its peer still sends."""
    answer.force_close()
    await _send(request, answer)
    request.protocol.force_close()
    return answer


async def _sent(request: web.Request, answer: web.StreamResponse) -> web.StreamResponse:
    """What is left of a body that was refused is thrown away for a while."""
    await _send(request, answer)
    if request.content.is_eof():
        return answer
    with suppress(ConnectionError, TimeoutError, web.RequestPayloadError):
        async with asyncio.timeout(_REST_OF_BODY_S):
            while not request.content.is_eof():
                await request.content.readany()
            return answer
    request.protocol.force_close()
    return answer


async def _send(request: web.Request, answer: web.StreamResponse) -> None:
    """Who asks and then takes nothing keeps neither the answer nor the connection."""
    try:
        async with asyncio.timeout(_SLOW_S):
            await answer.prepare(request)
            await answer.write_eof()
    except (ConnectionError, TimeoutError):
        if request.transport:
            request.transport.abort()


def _bound_port(where: ListenAddress) -> socket.socket:
    family = socket.AF_INET6 if ":" in where.address else socket.AF_INET
    try:
        return socket.create_server((where.address, where.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        why = str(error)
        if error.errno and error.errno > 0:  # else Python adds the address once more
            why = os.strerror(error.errno).lower()
        what = f"cannot listen on {where.address}:{where.port}: {why}"
        raise CannotListen(f"{what}; choose another address or port") from error


def _bound_path(where: UnixPath) -> socket.socket:
    """A new socket in place of one that nobody listens on."""
    where.path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
        probe.settimeout(1)
        probe.connect(str(where.path))
        raise CannotListen(f"mpsd runs here already: it answers on {where.path}")
    where.path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(str(where.path))
        where.path.chmod(where.mode)
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


class Shutdown:
    """A server that ends is not ready at once, and serves on for `drain_s` or until a second
    signal."""

    def __init__(self, drain_s: float, log: Logger) -> None:
        self._drain_s = drain_s
        self._log = log
        self._hurry = asyncio.Event()
        self.has_begun = False

    def hurry(self) -> None:
        self._hurry.set()

    async def drain(self, ask_to_go: Callable[[], None]) -> None:
        """ask_to_go: asks peers to come elsewhere."""
        self.has_begun = True
        ask_to_go()
        self._log.info("going", drain_s=self._drain_s, again="a second signal ends the drain")
        with suppress(TimeoutError):
            async with asyncio.timeout(self._drain_s):
                await self._hurry.wait()


def tls_context(client_authorities: str = "") -> ssl.SSLContext:
    """A context without a certificate yet; `certificates.load_into` gives it one, in the loop's
    thread. client_authorities: PEM of those that must have signed a client's certificate; empty:
    none is asked for. ssl.SSLError where nothing of it can be read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if client_authorities:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=client_authorities)
    return context


# -- requests and answers


def peer(request: web.Request) -> Peer | None:
    """Who connected to a Unix socket, by the kernel's word; None where the connection is gone."""
    return request.get(_PEER)


def asking_process(request: web.Request) -> ProcessIdentity | None:
    """The process that connected to a Unix socket, and lives. None where it has ended, the kernel
    cannot say that it is the one, or the connection is gone. OSError for a shortage."""
    connected = peer(request)
    connection = request.get_extra_info("socket")
    if connection is None or connected is None or connected.process is None:
        return None
    if is_connected_by(connection, connected.process):
        return connected.process
    return None


def asker(request: web.Request) -> str:
    """Whose token came, else the user at the other end of a Unix socket, else the address. All
    loopback addresses are one."""
    if user := request.get(USER):
        return f"user {user}"
    if connected := peer(request):
        return f"user {connected.uid} of this machine"
    address = ipaddress.ip_address((request.remote or "::").partition("%")[0])
    if address.is_loopback:
        return "this machine"
    return f"address {address}"


def health_routes(trouble: Callable[[], str]) -> Mapping[str, Handler]:
    """/healthz, always 200, and /readyz: 503 with `trouble()` where that is not empty."""

    async def health(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readiness(_request: web.Request) -> web.Response:
        if reason := trouble():
            return web.Response(text=f"{reason}\n", status=503)
        return await health(_request)

    return {"GET /healthz": health, "GET /readyz": readiness}


def json_answer(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value) + b"\n", content_type=JSON, status=status)


def has_certificate(request: web.Request) -> bool:
    """Whether who asks has shown one, which a context without authorities never asks for."""
    return bool(request.get_extra_info("peercert"))


async def trouble_reaching(
    address: str, port: int, name: str, bundle: str, deadline_s: float
) -> str:
    """Why this server is not ready, asked as an API server would; empty where it is. name: what its
    certificate must be good for. bundle: PEM of the authorities to trust, empty for the system's.
    """
    try:
        context = ssl.create_default_context(cadata=bundle or None)
        async with asyncio.timeout(deadline_s):
            reader, writer = await asyncio.open_connection(
                address, port, ssl=context, server_hostname=name
            )
            with closing(writer):
                asks = f"GET /readyz HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n"
                writer.write(asks.encode())
                status = await reader.readline()
    except TimeoutError:
        return f"this server did not answer itself within {deadline_s:g} s"
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        return f"this server cannot reach itself: {error}"
    if b" 200 " in status:
        return ""
    return "this server is not ready"
