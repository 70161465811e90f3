"""The asking side of `nvidia-cuda-mps-control`: commands to the running daemon, one a line, answers
on standard output.

No time-out of its own; a daemon that is stopped keeps its askers waiting, as the real one does.
"""

import _socket
import sys

# -- what passes between the two: packets, as seen on an H200 (docs/mps-observed.md, section 4)
# Nothing is imported here. A command costs a process each time, and the reader of JSON twice that
# process.

LONGEST = 1 << 18
HELLO = b"OUTBHELL\0"  # of the daemon, to whoever connects
CREDENTIALS = b"OUTBCRED\0"  # the answer to it
COMMANDER = b"\4\0\0\0"  # who connects
CLIENT = b"\1\0\0\0"  # the same, of a CUDA client: not observed
LONGEST_TEXT = 4000  # bytes; at 4090 the daemon aborts
LENGTH_BYTES = 8  # of a command; little-endian
NO_MORE = bytes(LENGTH_BYTES)  # after it
_TEXT = bytes(4)  # before an answer
END = b"\1" + bytes(7)  # after it


def command_packets(text: bytes) -> "Sequence[bytes]":
    """After HELLO has come. The real asker cuts at line breaks; whoever speaks to the socket need
    not."""
    text += b"\n\0"
    return CREDENTIALS, COMMANDER, len(text).to_bytes(LENGTH_BYTES, "little"), text, NO_MORE


def answer_packets(text: str) -> "Sequence[bytes]":
    """Of several lines: not observed whether they come in one packet, as here."""
    if not text:
        return (END,)
    return _TEXT + text.removesuffix("\n").encode(errors="surrogateescape"), END


TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def ask(pipe_directory: str, commands: "Iterable[str]") -> int:
    """Pass each command on and print its answer; the exit code, 1 only where there is no daemon.
    Whether the real one has a connection for each was not observed."""
    connection = _connect(pipe_directory)
    if connection is None:
        print("Cannot find MPS control daemon process", file=sys.stderr)
        return 1
    for command in filter(None, map(str.strip, commands)):
        if connection is None:
            connection = _connect(pipe_directory)
        answer = None
        if connection is not None:
            answer = _answer(connection, command)
        if answer is None:
            print("Cannot send command to MPS control daemon process", file=sys.stderr)
            return 1
        print(answer, end="", flush=True)
        connection = None
    return 0


def _connect(pipe_directory: str) -> _socket.socket | None:
    for name in ("control_privileged", "control"):
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            connection.connect(f"{pipe_directory}/{name}")
        except OSError:
            continue
        return connection
    return None


def _answer(connection: _socket.socket, command: str) -> str | None:
    """None when the daemon has gone."""
    answer = ""
    try:
        if connection.recv(LONGEST) != HELLO:
            return None
        for packet in command_packets(command.encode(errors="surrogateescape")):
            connection.send(packet)
        while (packet := connection.recv(LONGEST)) != END:
            if not packet:
                return None
            answer += packet[len(_TEXT) :].decode(errors="surrogateescape") + "\n"
    except (BrokenPipeError, ConnectionResetError):
        return None
    return answer
