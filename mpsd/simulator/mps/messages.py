"""How the simulated programs talk, over unix sockets that keep packets apart.

Commands and their answers pass as the real ones do (`question`). Between a client, once it has said
that it is one, and its server passes one JSON object a packet: the simulator's own, as what real
ones say was not observed.
"""

import json
import os
import selectors
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpsd.simulator.mps.question import LONGEST, answer_packets

Message = Mapping[str, Any]


def new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def connect(path: str) -> socket.socket | None:
    """A connection to the listener at `path`; None where there is none, or this user may not
    connect."""
    connection = new_socket()
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        return None
    return connection


def send(connection: socket.socket, message: Message, files: Sequence[int] = ()) -> bool:
    """Send one message, with open files for the other side; False when the other side has gone."""
    return send_packet(connection, json.dumps(message).encode(), files)


def send_answer(connection: socket.socket, text: str) -> None:
    """To a command."""
    for packet in answer_packets(text):
        send_packet(connection, packet)


def send_packet(connection: socket.socket, packet: bytes, files: Sequence[int] = ()) -> bool:
    try:
        if files:
            socket.send_fds(connection, [packet], files)
        else:
            connection.send(packet)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def receive(connection: socket.socket) -> Message | None:
    """The next message; None when the other side has gone, or sends what is none."""
    return _message(receive_packet(connection))


def receive_packet(connection: socket.socket) -> bytes:
    """Empty when the other side has gone."""
    try:
        return connection.recv(LONGEST)
    except ConnectionResetError:
        return b""


def receive_with_files(connection: socket.socket) -> tuple[Message | None, list[int]]:
    """The next message as `receive` has it, and the files that came with it."""
    try:
        packet, files, _, _ = socket.recv_fds(connection, LONGEST, 1)
    except ConnectionResetError:
        return None, []
    return _message(packet), files


def _message(packet: bytes) -> Message | None:
    try:
        message = json.loads(packet)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict):
        return None
    return message


# The side of a socket where others come to: listening, and who came.

_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class SocketPeer:
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


def peer(connection: socket.socket) -> SocketPeer:
    """Who connected: pid and uid at the time, in this process's own namespaces."""
    pid, uid, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return SocketPeer(pid, uid)


def still_open(key: selectors.SelectorKey) -> bool:
    """Whether the socket of an event is open: another event of the same round may have closed
    it."""
    return isinstance(key.fileobj, socket.socket) and key.fileobj.fileno() == key.fd


# -- the log of the control daemon and its server, in the real one's format
# A line goes out in one write, since the daemon and its server share the file.


@dataclass(frozen=True, slots=True)
class MpsLog:
    """Where the lines go: the same file twice in the foreground, control.log and server.log
    otherwise."""

    control_file: int
    server_file: int

    def control(self, text: str) -> None:
        _write(self.control_file, "Control", text)

    def server(self, text: str, writer: str = "Server") -> None:
        _write(self.server_file, writer, text)


def _write(file: int, writer: str, text: str) -> None:
    now = time.time()
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
    line = f"[{clock}.{int(now % 1 * 1000):03} {writer} {os.getpid():>5}] {text}\n"
    try:
        os.write(file, line.encode(errors="surrogateescape"))
    except BrokenPipeError:
        return  # the foreground output has no reader any more; the daemon continues
