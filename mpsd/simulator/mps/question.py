"""The asking side of `nvidia-cuda-mps-control`: commands to the running daemon, one a line, answers
on standard output.

No time-out of its own; a daemon that is stopped keeps its askers waiting, as the real one does.
"""

import _socket
import sys

# -- commands and their answers: text, no JSON
# As they pass between `nvidia-cuda-mps-control` and its daemon.
# Nothing is imported here. A command costs a process each time, and the reader of JSON twice that
# process.

LONGEST = 1 << 18
# no JSON begins so, and no packet of it is empty, which would be the end of the connection
_MARK = b">"


def packed(words: str) -> bytes:
    return _MARK + words.encode()


def unpacked(packet: bytes) -> str | None:
    """None for what is no plain words."""
    return packet[1:].decode() if packet.startswith(_MARK) else None


TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def ask(pipe_directory: str, commands: "Iterable[str]") -> int:
    """Pass each command on and print its answer; the exit code, 1 only where there is no daemon."""
    connection = _connect(f"{pipe_directory}/control_privileged") or _connect(
        f"{pipe_directory}/control"
    )
    if connection is None:
        print("Cannot find MPS control daemon process", file=sys.stderr)
        return 1
    for command in filter(None, map(str.strip, commands)):
        answer = _answer(connection, command)
        if answer is None:
            print("Cannot send command to MPS control daemon process", file=sys.stderr)
            return 1
        print(answer, end="", flush=True)
    return 0


def _connect(path: str) -> _socket.socket | None:
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        connection.connect(path)
    except OSError:
        return None
    return connection


def _answer(connection: _socket.socket, command: str) -> str | None:
    """None when the daemon has gone."""
    try:
        connection.send(packed(command))
        return unpacked(connection.recv(LONGEST))
    except (BrokenPipeError, ConnectionResetError):
        return None
