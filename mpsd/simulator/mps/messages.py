"""How the simulated programs talk: one JSON object a packet, over unix sockets that keep packets apart.

Only commands and their answers are plain words, since who asks is to be quick: `{"words": ...}` here.

One rule: this format is the simulator's own. Only what the real programs print and do is copied, not what passes
between them, which nobody has written down.
"""

import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from mpsd.simulator.mps.plain_words import LONGEST, packed, unpacked

Message = Mapping[str, Any]


def new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def connect(path: str) -> socket.socket | None:
    """A connection to whoever listens at `path`; None when nobody does, or this user may not."""
    connection = new_socket()
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        return None
    return connection


def send(connection: socket.socket, message: Message, files: Sequence[int] = ()) -> bool:
    """Send one message, with open files for the other side; False when the other side has gone."""
    return _send(connection, json.dumps(message).encode(), files)


def send_words(connection: socket.socket, words: str) -> bool:
    """The answer to a command; False when the other side has gone."""
    return _send(connection, packed(words))


def _send(connection: socket.socket, packet: bytes, files: Sequence[int] = ()) -> bool:
    try:
        if files:
            socket.send_fds(connection, [packet], files)
        else:
            connection.send(packet)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def receive(connection: socket.socket) -> Message | None:
    """The next message; None when the other side has gone."""
    try:
        packet = connection.recv(LONGEST)
    except ConnectionResetError:
        return None
    return _message(packet)


def receive_with_files(connection: socket.socket) -> tuple[Message | None, list[int]]:
    """The next message as `receive` has it, and the files that came with it."""
    try:
        packet, files, _, _ = socket.recv_fds(connection, LONGEST, 1)
    except ConnectionResetError:
        return None, []
    return _message(packet), files


def _message(packet: bytes) -> Message | None:
    if not packet:
        return None
    words = unpacked(packet)
    message: Message = json.loads(packet) if words is None else {"words": words}
    return message
