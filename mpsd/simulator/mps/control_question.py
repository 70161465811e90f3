"""The asking side of `nvidia-cuda-mps-control`: commands to the running daemon, one a line, answers on standard output.

One rule: no time-out of its own; a daemon that is stopped keeps its askers waiting, as the real one does.
"""

import _socket  # what `socket` wraps: to import that takes twice as long as the rest of this program
import sys

from mpsd.simulator.mps.plain_words import LONGEST, packed, unpacked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def ask(pipe_directory: str, commands: "Iterable[str]") -> int:
    """Pass each command on and print its answer; the exit code, 1 only where there is no daemon."""
    connection = _connect(f"{pipe_directory}/control_privileged") or _connect(f"{pipe_directory}/control")
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
