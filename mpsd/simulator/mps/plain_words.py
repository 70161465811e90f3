"""Commands and their answers, as they pass between `nvidia-cuda-mps-control` and its daemon: text, no JSON.

One rule: nothing is imported here. A command costs a process each time, and the reader of JSON twice that process.
"""

LONGEST = 1 << 18
_MARK = b">"  # no JSON begins so, and no packet of it is empty, which would be the end of the connection


def packed(words: str) -> bytes:
    return _MARK + words.encode()


def unpacked(packet: bytes) -> str | None:
    """None for what is no plain words."""
    return packet[1:].decode() if packet.startswith(_MARK) else None
