"""Listens on a TCP port for so many peers at a time; of more, core.port_places says on whom it hangs up.

One rule: a peer counts from its first packet, before it has said who it is, for a handshake alone takes memory.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from mpsd.core.port_places import who_gives_way

_PATIENCE_S = 1.0  # while no connection can be had, for want of file descriptors
_BACKLOG = 128


@dataclass(eq=False, slots=True)
class _Peer:
    """transport: None until its handshake is over, for which `coming` waits."""

    address: str
    coming: asyncio.Task[None] | None = None
    transport: asyncio.BaseTransport | None = None

    @property
    def is_there(self) -> bool:
        return self.transport is None or not self.transport.is_closing()

    def hang_up(self) -> None:
        if isinstance(self.transport, asyncio.WriteTransport):
            self.transport.abort()
        elif self.coming:
            self.coming.cancel()


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
        self._peers: list[_Peer] = []  # the first who came first
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
        for peer in self._peers:
            if peer.transport is None:
                peer.hang_up()

    def _listen(self, listening: socket.socket) -> None:
        if listening in self.sockets:  # else it was closed while we had patience
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            connection, address = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # it has gone again
            return
        except OSError:  # which stays so: it would be told of again at once, for ever
            loop.remove_reader(listening)
            loop.call_later(_PATIENCE_S, self._listen, listening)
            return
        connection.setblocking(False)
        if not self._has_room(address[0]):
            connection.close()
            return
        peer = _Peer(address[0])
        self._peers.append(peer)
        peer.coming = loop.create_task(self._take(connection, peer))

    def _has_room(self, newcomer: str) -> bool:
        """Whether there is a place for who comes from this address; hangs up on somebody where that makes one."""
        self._peers = [peer for peer in self._peers if peer.is_there]
        if len(self._peers) < self._most:
            return True
        place = who_gives_way([peer.address for peer in self._peers], newcomer)
        if place is None:
            return False
        self._peers.pop(place).hang_up()
        return True

    async def _take(self, connection: socket.socket, peer: _Peer) -> None:
        try:
            peer.transport, _protocol = await asyncio.get_running_loop().connect_accepted_socket(
                self._make_protocol,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._handshake_s,
            )
        except OSError:  # no TLS, or none in time; ssl.SSLError is one
            connection.close()
        finally:  # in the same step, so that nobody counts twice
            peer.coming = None
            if peer.transport is None and peer in self._peers:
                self._peers.remove(peer)
