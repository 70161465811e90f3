"""Serves HTTP on a TCP port, with TLS or without, to peers that nobody vouches for.

One rule: every peer has a deadline for what it sends, and a stop loses no request that has been accepted.
"""

import asyncio
import logging
import os
import ssl
from asyncio import sslproto
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from dataclasses import dataclass

from aiohttp import web

from mpsd.edge.bounded_server import BoundedServer
from mpsd.edge.http_server import Handler, application
from mpsd.edge.logs import logger

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


class PortTaken(Exception):
    """Another process listens on this port, or this one may not."""


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


@dataclass(frozen=True, slots=True)
class Listening:
    """Where and how a server listens. context: None for HTTP without TLS.

    last_requests_s: what requests under way have to finish, once nobody can connect any more.
    cancels: whether a request ends when its peer hangs up, as it should where answers are streams.
    most_peers: at a time; more are hung up on. None: as many as come.
    """

    address: str
    port: int
    context: ssl.SSLContext | None
    longest_body: int
    last_requests_s: float = _LAST_REQUESTS_S
    cancels: bool = False
    most_peers: int | None = None


class TcpServer:
    """An HTTP server on one TCP port. routes: from `METHOD /path` to handler."""

    def __init__(self, routes: Mapping[str, Handler], listening: Listening) -> None:
        self._listening = listening
        self._closing = False
        self._log = logger()
        # Peers that have not asked anything yet. Their timers go when they ask, or closed connections would stay.
        self._silent: dict[asyncio.BaseProtocol, asyncio.TimerHandle] = {}
        app = application(routes, longest_body=listening.longest_body)
        app.middlewares.append(self._note_and_close)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=_SILENT,
            keepalive_timeout=_IDLE_S,
            max_line_size=_LONGEST_FIELD,
            max_field_size=_LONGEST_FIELD,
            lingering_time=_REST_OF_BODY_S,
            shutdown_timeout=listening.last_requests_s,
            handler_cancellation=listening.cancels,
        )
        self._server: asyncio.Server | BoundedServer | None = None

    @property
    def port(self) -> int:
        """The port in use, which the kernel chose where 0 was asked for."""
        return int(self._server.sockets[0].getsockname()[1]) if self._server and self._server.sockets else 0

    async def start(self) -> None:
        """PortTaken where nobody can listen there."""
        await self._runner.setup()
        listening = self._listening
        if listening.context:
            sslproto.SSLProtocol.max_size = _TLS_BUFFER
        handshake_s = _HANDSHAKE_S if listening.context else None
        try:
            self._server = await self._listen(handshake_s)
        except OSError as error:
            await self._runner.cleanup()
            where = f"{listening.address}:{listening.port}"
            # asyncio says it all in words of its own, with the address once more
            why = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)
            raise PortTaken(f"cannot listen on {where}: {why}; choose another address or port") from error

    async def _listen(self, handshake_s: float | None) -> asyncio.Server | BoundedServer:
        listening = self._listening
        if listening.most_peers is not None:
            bounded = BoundedServer(listening.most_peers, listening.context, handshake_s, self._protocol)
            bounded.open(listening.address, listening.port)
            return bounded
        return await asyncio.get_running_loop().create_server(
            self._protocol,
            listening.address,
            listening.port,
            ssl=listening.context,
            ssl_handshake_timeout=handshake_s,
            backlog=1024,
        )

    def ask_to_go(self) -> None:
        """From now on each answer asks its peer to connect anew, and thereby elsewhere; new peers are served too."""
        self._closing = True

    async def stop(self) -> None:
        """Accepts nobody any more, finishes what is under way, then closes every connection."""
        if self._server:
            self._server.close()
        await self._runner.cleanup()

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

    def _has_asked(self, protocol: asyncio.BaseProtocol) -> None:
        timer = self._silent.pop(protocol, None)
        if timer:
            timer.cancel()

    @web.middleware
    async def _note_and_close(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self._has_asked(request.protocol)
        try:
            answer = await handler(request)
        except web.HTTPException as error:  # 404 and 405, which aiohttp answers from here
            answer = web.Response(status=error.status, text=f"{error.reason}\n", headers=_allowed(error))
            answer.force_close()  # who has asked for nothing that is here keeps no connection, which others may need
        except Exception as error:  # a fault of ours, which may cost this request and no other
            self._log.exception("request failed", path=request.path, error=type(error).__name__)
            answer = web.Response(status=500, text="mpsd failed; its log says why\n")
        if self._closing:
            answer.force_close()
        return answer


def _allowed(error: web.HTTPException) -> dict[str, str]:
    return {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}


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
