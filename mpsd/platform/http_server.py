"""Who is at the other end of a Unix socket.

The kernel says so (SO_PEERCRED of unix(7)), never the peer.
"""

import socket
import struct
from dataclasses import dataclass
from typing import Protocol

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class _Connection(Protocol):
    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


class AlreadyServed(Exception):
    """Another process answers on a socket that was to be ours."""


@dataclass(frozen=True, slots=True)
class Peer:
    """pid 0: the peer is in a pid namespace that cannot be seen from here."""

    pid: int
    uid: int


def peer_of(connection: _Connection) -> Peer:
    pid, uid, _gid = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return Peer(pid, uid)
