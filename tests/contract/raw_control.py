"""Speaks to a control socket itself, packet by packet, as any user may (docs/mps-observed.md,
section 4).

usage: as_user.py UID tests.contract.raw_control PATH    reads talks, prints what each was answered

A talk is a JSON list of packets in hex, one talk a line; so are the answers.
"""

import json
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

HELLO = b"OUTBHELL\0"
CREDENTIALS = b"OUTBCRED\0"
COMMANDER = bytes([4, 0, 0, 0])
END = bytes([1, 0, 0, 0, 0, 0, 0, 0])
PATIENCE_S = 5.0
LONGEST = 1 << 18

Talk = Sequence[bytes]


def command(text: bytes) -> Talk:
    text += b"\n\0"
    return CREDENTIALS, COMMANDER, len(text).to_bytes(8, "little"), text, bytes(8)


def connected(path: Path | str) -> socket.socket:
    """Once it has been greeted."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(str(path))
    connection.settimeout(PATIENCE_S)
    assert connection.recv(LONGEST) == HELLO
    return connection


def say(path: Path | str, talk: Talk) -> list[bytes]:
    """What came back to a command, up to its end; of anything else no answer is waited for."""
    answers: list[bytes] = []
    is_command = len(talk) == 5 and tuple(talk) == command(talk[3].removesuffix(b"\n\0"))
    # the other side may close, and a packet be longer than one can be
    with connected(path) as connection, suppress(OSError):
        for packet in talk:
            connection.send(packet)
        while is_command and (packet := connection.recv(LONGEST)) and packet != END:
            answers.append(packet)
    return answers


def main() -> None:
    for line in sys.stdin:
        talk = tuple(bytes.fromhex(packet) for packet in json.loads(line))
        print(json.dumps([packet.hex() for packet in say(sys.argv[1], talk)]), flush=True)


if __name__ == "__main__":
    main()
