"""The side of a socket where others come to: listening, and who came."""

import selectors
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from mpsd.simulator.mps.messages import new_socket

_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end, by the kernel's word."""

    pid: int
    uid: int


def listen(path: Path, mode: int) -> socket.socket:
    """Listen at `path`, over whatever an earlier listener left there."""
    path.unlink(missing_ok=True)
    listener = new_socket()
    listener.bind(str(path))
    path.chmod(mode)
    listener.listen(512)
    return listener


def peer(connection: socket.socket) -> Peer:
    """Who connected: pid and uid at the time, in this process's own namespaces."""
    pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return Peer(pid, uid)


def still_open(key: selectors.SelectorKey) -> bool:
    """Whether the socket of an event is open: another event of the same round may have closed it."""
    return isinstance(key.fileobj, socket.socket) and key.fileobj.fileno() == key.fd
