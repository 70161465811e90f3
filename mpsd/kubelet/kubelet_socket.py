"""The Unix sockets of kubelet: dialling them, the errors in plain words, and whether one is still the same.

One rule: a socket is known by its inode and the time of its change, since a restarted kubelet makes a new one in place.
"""

from dataclasses import dataclass
from pathlib import Path

import grpc

_LONGEST_WORDS = 300


class KubeletUnavailable(Exception):
    """Kubelet does not answer now; it may again."""


class KubeletRefused(Exception):
    """Kubelet answered no."""


@dataclass(frozen=True, slots=True)
class SocketIdentity:
    """One socket file for ever: a file made later in its place has another inode or another time."""

    device: int
    inode: int
    changed_ns: int


def identity_of(path: Path) -> SocketIdentity | None:
    """None where there is no such file."""
    try:
        seen = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return SocketIdentity(seen.st_dev, seen.st_ino, seen.st_ctime_ns)


def dial(path: Path, longest_answer: int | None = None) -> grpc.aio.Channel:
    """A channel to one Unix socket; longest_answer: in bytes, gRPC's 4 MiB where None."""
    # What grpc would write by default, the path in percent signs, is refused by stricter servers: grpc/grpc #38142.
    options: list[tuple[str, str | int]] = [
        ("grpc.default_authority", "localhost"),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if longest_answer is not None:
        options.append(("grpc.max_receive_message_length", longest_answer))
    return grpc.aio.insecure_channel(f"unix:{path}", options=options)


def error_for(error: grpc.aio.AioRpcError, path: Path, deadline_s: float) -> KubeletUnavailable | KubeletRefused:
    """The error in plain words: KubeletAway where to ask again may help, else KubeletRefused."""
    code, details = error.code(), " ".join((error.details() or "").split())[:_LONGEST_WORDS]
    match code:
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return KubeletUnavailable(f"kubelet did not answer on {path} within {deadline_s:g} s")
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:  # cancelled: it stops while it is asked
            return KubeletUnavailable(f"kubelet does not answer on {path}: {details}")
        case grpc.StatusCode.UNIMPLEMENTED:
            return KubeletRefused(f"what answers on {path} is no kubelet that mpsd knows: {details}")
        case _:
            return KubeletRefused(f"kubelet answered on {path}: {details or code.name}")
