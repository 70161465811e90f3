"""Serves HTTP over TLS on 127.0.0.1, and goes down as a machine does.

One rule: nobody is waited for, and once it has stopped nothing is left of any connection, not even of one that was just
being accepted.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress

from aiohttp import web

_LAST_S = 0.1  # for handlers to end once their connections are gone


class SuddenServer:
    """handle: answers every request. port 0: the kernel chooses one."""

    def __init__(
        self,
        handle: Callable[[web.Request], Awaitable[web.StreamResponse]],
        context: ssl.SSLContext,
        port: int,
        longest_body: int,
    ) -> None:
        app = web.Application(client_max_size=longest_body)
        app.router.add_route("*", "/{path:.*}", handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_LAST_S, handler_cancellation=True)
        self._context = context
        self.port = port
        self._listening: socket.socket | None = None  # None while it does not run
        self._handshakes: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        await self._runner.setup()
        self._listening = socket.create_server(("127.0.0.1", self.port), backlog=128)
        self._listening.setblocking(False)
        self.port = self._listening.getsockname()[1]
        asyncio.get_running_loop().add_reader(self._listening, self._accept, self._listening)

    async def stop(self) -> None:
        if self._listening:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            self._listening = None
        await self._end_handshakes()
        server = self._runner.server
        for connection in server.connections if server else []:
            if connection.transport:
                connection.transport.abort()
        await self._runner.cleanup()
        await asyncio.sleep(0)  # an aborted transport closes its socket in the turn after

    def _accept(self, listening: socket.socket) -> None:
        """asyncio's own server forgets whom it accepts in the turn in which it is closed."""
        with suppress(BlockingIOError, ConnectionAbortedError):  # whoever came has gone again
            connection, _peer = listening.accept()
            handshake = asyncio.create_task(self._shake_hands(connection))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, connection: socket.socket) -> None:
        server = self._runner.server
        assert server is not None
        with suppress(OSError):  # ssl.SSLError is one: the peer's affair
            await asyncio.get_running_loop().connect_accepted_socket(server, connection, ssl=self._context)

    async def _end_handshakes(self) -> None:
        """aiohttp knows of a connection only when TLS is agreed on, and cannot end it before."""
        await asyncio.sleep(0)  # so that each has begun, and closes its connection when it is cancelled
        handshakes = tuple(self._handshakes)
        for handshake in handshakes:
            handshake.cancel()
        await asyncio.gather(*handshakes, return_exceptions=True)
