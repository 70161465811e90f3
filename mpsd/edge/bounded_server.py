"""Listens on a TCP port for so many peers at a time, and hangs up on who comes while there are as many.

One rule: a peer counts from its first packet, before it has said who it is, for a handshake alone takes memory.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable

_PATIENCE_S = 1.0  # while no connection can be had, for want of file descriptors
_BACKLOG = 128


class BoundedServer:
    """As far as it goes like an asyncio.Server. most: peers at a time. context: None for no TLS."""

    def __init__(
        self,
        most: int,
        context: ssl.SSLContext | None,
        handshake_s: float | None,
        make_protocol: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        self._most = most
        self._context = context
        self._handshake_s = handshake_s
        self._make_protocol = make_protocol
        self._coming: set[asyncio.Task[None]] = set()
        self._there: set[asyncio.BaseTransport] = set()
        self.sockets: tuple[socket.socket, ...] = ()

    def open(self, address: str, port: int) -> None:
        """OSError where nobody can listen there."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listening = socket.create_server((address, port), family=family, backlog=_BACKLOG)
        listening.setblocking(False)
        self.sockets = (listening,)
        self._listen(listening)

    def close(self) -> None:
        """Accepts nobody any more; who is there stays."""
        for listening in self.sockets:
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()
        self.sockets = ()
        for task in self._coming:
            task.cancel()

    def _listen(self, listening: socket.socket) -> None:
        if listening in self.sockets:  # else it was closed while we had patience
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            connection, _address = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # it has gone again
            return
        except OSError:  # which stays so: it would be told of again at once, for ever
            loop.remove_reader(listening)
            loop.call_later(_PATIENCE_S, self._listen, listening)
            return
        connection.setblocking(False)
        if self._peers() >= self._most:
            connection.close()
            return
        self._coming.add(loop.create_task(self._take(connection)))

    def _peers(self) -> int:
        self._there = {transport for transport in self._there if not transport.is_closing()}
        return len(self._there) + len(self._coming)

    async def _take(self, connection: socket.socket) -> None:
        try:
            transport, _protocol = await asyncio.get_running_loop().connect_accepted_socket(
                self._make_protocol,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._handshake_s,
            )
            self._there.add(transport)
        except OSError:  # no TLS, or none in time; ssl.SSLError is one
            connection.close()
        finally:  # in the same step, so that nobody counts twice
            self._coming = {task for task in self._coming if task is not asyncio.current_task()}
