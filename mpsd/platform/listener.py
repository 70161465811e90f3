"""HTTP listeners on Unix sockets and TCP ports, with TLS or without: so many connections in all and of each peer.

A connection counts from its first packet, for a handshake alone takes memory. Each peer has a deadline for its first
request and an idle time after each, and a stop loses no request that was accepted.
"""

import asyncio
import ipaddress
import logging
import os
import socket
import ssl
from asyncio import sslproto
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
from aiohttp import web

from mpsd.platform.http_server import AlreadyServed, Peer, peer_of
from mpsd.platform.logs import Logger, logger

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
USER = web.RequestKey("USER", str)  # whose token came with a request

# aiohttp would log a traceback for every peer that speaks no HTTP; such a peer is answered 400 and no more.
_SILENT = logging.Logger("aiohttp", logging.CRITICAL + 1)
# asyncio takes 256 KiB for each TLS connection, 20 MiB for the idle ones that three API servers keep.
_TLS_BUFFER = 32 * 1024
_HANDSHAKE_S = 10.0
_FIRST_REQUEST_S = 10.0
# Go's client gives an idle connection up after 90 s; a server that is first can meet a request that is on its way.
_IDLE_S = 120.0
_LONGEST_FIELD = 8190  # bytes of a header's line; aiohttp answers 400 to more
_REST_OF_BODY_S = 2.0  # how long a body that is refused is read on, so that its sender sees the answer
_LAST_REQUESTS_S = 10.0
_LAST_HANDSHAKES_S = 1.0
_RETRY_ACCEPT_S = 1.0  # while no connection can be had, for want of file descriptors
_BACKLOG = 1024
_ACCEPTED_AT_ONCE = 64  # before those who are served have their turn


class PortTaken(Exception):
    """Another process listens on this port, or this one may not."""


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """address: an IP address. port 0: the kernel chooses. context: None for HTTP without TLS."""

    address: str
    port: int
    context: ssl.SSLContext | None = None

    def bind(self) -> socket.socket:
        """PortTaken where nobody can listen there."""
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        try:
            return socket.create_server((self.address, self.port), family=family, backlog=_BACKLOG)
        except OSError as error:
            # Python adds words of its own, with the address once more
            why = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)
            where = f"{self.address}:{self.port}"
            raise PortTaken(f"cannot listen on {where}: {why}; choose another address or port") from error

    def release(self) -> None:
        """Nothing of a port is left once its socket is closed."""


@dataclass(frozen=True, slots=True)
class UnixPath:
    """mode: of the socket's file, such as 0o666 where every user of the machine may ask."""

    path: Path
    mode: int
    context: None = None

    def bind(self) -> socket.socket:
        """AlreadyServed where somebody answers there; a socket that nobody listens on is replaced."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if _is_served(self.path):
            raise AlreadyServed(f"mpsd runs here already: it answers on {self.path}")
        self.path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX)
        try:
            listening.bind(str(self.path))
            self.path.chmod(self.mode)
            listening.listen(_BACKLOG)
        except OSError:
            listening.close()
            raise
        return listening

    def release(self) -> None:
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Connections at a time, those that have not ended their handshake among them; more are closed at once.

    of_one_peer: of one address, or of one user on a Unix socket.
    """

    in_all: int = 1024
    of_one_peer: int = 512


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """longest_body: bytes. last_requests_s: what requests under way have to finish, once nobody can connect any more.

    cancels: whether a request ends when its peer hangs up, as it should where answers are streams or wait.
    """

    longest_body: int = 1024**2
    last_requests_s: float = _LAST_REQUESTS_S
    cancels: bool = False
    limits: ConnectionLimits = ConnectionLimits()


@dataclass(eq=False, slots=True)
class _Accepted:
    """peer: an address or a uid. transport: None until its handshake is over, for which `accepting` waits."""

    peer: str | int
    accepting: asyncio.Task[None] | None = None
    transport: asyncio.BaseTransport | None = None

    @property
    def is_open(self) -> bool:
        return self.transport is None or not self.transport.is_closing()


class Listener:
    """An HTTP server on one address. routes: from `METHOD /path` to handler; any other path is answered 404, any other
    method 405."""

    def __init__(
        self, routes: Mapping[str, Handler], where: TcpAddress | UnixPath, settings: ListenerSettings | None = None
    ) -> None:
        self._where = where
        self._settings = settings = settings or ListenerSettings()
        self._closing = False
        self._log = logger()
        self._socket: socket.socket | None = None  # None while it does not listen
        self._connections: list[_Accepted] = []  # also some that have ended since the last one came
        # Peers that have not asked anything yet. Their timers go when they ask, or closed connections would stay.
        self._silent: dict[asyncio.BaseProtocol, asyncio.TimerHandle] = {}
        app = web.Application(client_max_size=settings.longest_body, middlewares=[self._note_and_close])
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
            lingering_time=_REST_OF_BODY_S,
            shutdown_timeout=settings.last_requests_s,
            handler_cancellation=settings.cancels,
        )

    @property
    def port(self) -> int:
        """The TCP port in use, which the kernel chose where 0 was asked for; 0 while it does not listen."""
        return int(self._socket.getsockname()[1]) if self._socket else 0

    async def start(self) -> None:
        """PortTaken or AlreadyServed where nobody can listen there."""
        if self._where.context:
            sslproto.SSLProtocol.max_size = _TLS_BUFFER
        listening = self._where.bind()
        listening.setblocking(False)
        await self._runner.setup()
        self._socket = listening
        self._listen(listening)

    def ask_to_go(self) -> None:
        """From now on each answer asks its peer to connect anew, and thereby elsewhere; new peers are served too."""
        self._closing = True

    async def stop(self) -> None:
        """Accepts nobody any more, finishes what is under way, then closes every connection."""
        was_open = self._socket
        if was_open:
            self._socket = None
            asyncio.get_running_loop().remove_reader(was_open)
            was_open.close()
        handshakes = [connection.accepting for connection in self._connections if connection.accepting]
        if handshakes:
            _done, late = await asyncio.wait(handshakes, timeout=_LAST_HANDSHAKES_S)
            for task in late:
                task.cancel()
        await self._runner.cleanup()
        if was_open:
            self._where.release()

    # -- connections -----------------------------------------------------------------------------------------------

    def _listen(self, listening: socket.socket) -> None:
        if listening is self._socket:  # else it was closed before the retry
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _connection in range(_ACCEPTED_AT_ONCE):
            try:
                found, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # there is none, or it has gone again
                return
            except OSError:  # which stays so: the loop would call again at once, for ever
                loop.remove_reader(listening)
                loop.call_later(_RETRY_ACCEPT_S, self._listen, listening)
                return
            found.setblocking(False)
            peer = peer_of(found).uid if isinstance(self._where, UnixPath) else address[0]
            if self._has_room(peer):
                connection = _Accepted(peer)
                self._connections.append(connection)
                connection.accepting = loop.create_task(self._take(found, connection))
            else:
                found.close()

    def _has_room(self, peer: str | int) -> bool:
        self._connections = [connection for connection in self._connections if connection.is_open]
        limits, own = self._settings.limits, sum(connection.peer == peer for connection in self._connections)
        return len(self._connections) < limits.in_all and own < limits.of_one_peer

    async def _take(self, found: socket.socket, connection: _Accepted) -> None:
        context = self._where.context
        try:
            connection.transport, _protocol = await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol, found, ssl=context, ssl_handshake_timeout=_HANDSHAKE_S if context else None
            )
        except OSError:  # no TLS, or none in time; ssl.SSLError is one
            found.close()
        finally:  # in the same step, so that nobody counts twice
            connection.accepting = None
            if connection.transport is None and connection in self._connections:
                self._connections.remove(connection)

    def _protocol(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        assert server is not None
        protocol: asyncio.BaseProtocol = server()
        loop = asyncio.get_running_loop()
        self._silent[protocol] = loop.call_later(_FIRST_REQUEST_S, self._close_silent, protocol)
        return protocol

    def _close_silent(self, protocol: asyncio.BaseProtocol) -> None:
        """A peer that connects and never ends its first request holds a connection that others need."""
        del self._silent[protocol]
        transport = getattr(protocol, "transport", None)  # None once it has gone by itself
        if transport is not None:
            transport.abort()

    @web.middleware
    async def _note_and_close(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        timer = self._silent.pop(request.protocol, None)
        if timer:
            timer.cancel()
        try:
            answer = await handler(request)
        except web.HTTPException as error:  # 404 and 405, which aiohttp answers from here
            allowed = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
            answer = web.Response(status=error.status, text=f"{error.reason}\n", headers=allowed)
            answer.force_close()  # who has asked for nothing that is here keeps no connection, which others may need
        except Exception as error:  # a fault of ours, which may cost this request and no other
            self._log.exception("request failed", path=request.path, error=type(error).__name__)
            answer = web.Response(status=500, text="mpsd failed; its log says why\n")
        if self._closing:
            answer.force_close()
        return answer


class Shutdown:
    """How a server goes: not ready at once, served as before until those who ask have gone elsewhere, or until a second
    signal. drain_s: how long to serve on."""

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


def tls_context(client_authorities: str = "") -> ssl.SSLContext:
    """A context without a certificate yet; `certificates.load_into` gives it one, now and later.

    Both happen in the loop's thread, between two handshakes, so none sees half of one.
    client_authorities: PEM; who shows no certificate that one of them has signed for a client is not let in. Empty:
    everybody is. ssl.SSLError where nothing of it can be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if client_authorities:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=client_authorities)
    return context


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


# -- requests and answers ----------------------------------------------------------------------------------------------


def peer(request: web.Request) -> Peer | None:
    """Who asks on a Unix socket, by the kernel's word; None where the connection is gone."""
    connection = request.get_extra_info("socket")
    return None if connection is None else peer_of(connection)


def peer_pid(request: web.Request) -> int | None:
    """The asking process; None where the kernel does not say, as for one of another pid namespace."""
    found = peer(request)
    return found.pid or None if found else None


def asker(request: web.Request) -> str:
    """Who asks: whose token came, else the user at the other end of a Unix socket, else the address.

    All loopback addresses are one, for whoever is on this machine may come from any of them.
    """
    if user := request.get(USER):
        return f"user {user}"
    connection = request.get_extra_info("socket")
    if connection is not None and connection.family == socket.AF_UNIX:
        return f"user {peer_of(connection).uid} of this machine"
    address = ipaddress.ip_address((request.remote or "::").partition("%")[0])
    return "this machine" if address.is_loopback else f"address {address}"


def json_answer(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value) + b"\n", content_type="application/json", status=status)


class BodyRefused(Exception):
    """A body that is not taken. status: the HTTP status that says why."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        super().__init__(reason)


async def read_body(request: web.Request, content_type: str, longest: int, deadline_s: float) -> bytes:
    """The whole body. BodyRefused with 415, 413 or 408 for another type, one too long, and one too slow."""
    if request.content_type != content_type:
        raise BodyRefused(415, f"the content type is {request.content_type}; send {content_type}")
    too_long = BodyRefused(413, f"the body is longer than {longest} bytes")
    if (request.content_length or 0) > longest:
        raise too_long
    try:
        if request.content.is_eof():  # all of it is here, mostly, and a deadline costs as much as to read it
            return await request.read()
        async with asyncio.timeout(deadline_s):
            return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise too_long from None
    except TimeoutError:
        raise BodyRefused(408, f"the body did not arrive within {deadline_s:g} s") from None


async def trouble_reaching(address: str, port: int, name: str, bundle: str, deadline_s: float) -> str:
    """Asks a server whether it is ready, as an API server would; empty where it is, else what stands in the way.

    name: what its certificate must be good for. bundle: PEM of the authorities to trust, empty for the system's.
    """
    try:
        context = ssl.create_default_context(cadata=bundle or None)
        async with asyncio.timeout(deadline_s):
            reader, writer = await asyncio.open_connection(address, port, ssl=context, server_hostname=name)
            with closing(writer):
                writer.write(f"GET /readyz HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode())
                status = await reader.readline()
    except TimeoutError:
        return f"no answer from ourselves within {deadline_s:g} s"
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        return f"we do not reach ourselves: {error}"
    return "" if b" 200 " in status else "we are not ready"
