"""Asks `mpsd up` over its Unix socket, and reads its answer about a container
(mpsd/grants/rules/messages.py). Every wait has a deadline. Only root and this user are believed."""

import sys
import time
from _socket import AF_UNIX, SO_PEERCRED, SOCK_CLOEXEC, SOCK_STREAM, SOL_SOCKET, socket
from os import geteuid

from mpsd.containers.runtime import json_text
from mpsd.containers.runtime.json_text import ContainerRefused, rows, table, text, texts, word

_LONGEST_ANSWER = 1024**2  # bytes
_RETRY_S = 0.05


class _Disconnected(Exception):
    """mpsd is being upgraded, perhaps."""


def ask(
    run_directory: str, url: str, body: object, answer_s: float = 30.0, patience_s: float = 5.0
) -> tuple[int, object]:
    """The status and body that answer a POST. Refused, also after `answer_s`, or where nobody
    listened for `patience_s`. It may be asked again: mpsd knows who asks by pid and name."""
    path = f"{run_directory}/mpsd.sock"
    data = json_text.write(body, "the request")
    request = (
        f"POST {url} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n{data}"
    ).encode("ascii")
    end = time.monotonic() + answer_s
    absent = None  # since when nobody listens; None where somebody did at the last try
    while True:
        is_over = True
        try:
            return _answer(_exchange(path, request, end))
        except (FileNotFoundError, ConnectionRefusedError, _Disconnected) as error:
            now = time.monotonic()
            absent = now if absent is None else absent
            is_over = now + _RETRY_S > min(end, absent + patience_s)
            is_there = isinstance(error, _Disconnected)
            what = "closed the connection" if is_there else "is not running: no process answers"
            why = f"mpsd {what} on {path}; start it with `mpsd up`, or see its log"
        except BlockingIOError:  # its queue is full
            absent = None
            is_over = time.monotonic() + _RETRY_S > end
            why = f"mpsd accepts no more connections on {path}; see its log"
        except TimeoutError:
            why = f"mpsd did not answer on {path} within {answer_s:g} s; see its log"
        except PermissionError:
            why = f"this user has no access to {path}; ask this machine's administrator"
        except OSError as error:
            reason = error.strerror or error
            why = f"{path} cannot be used: {reason}; name mpsd's folder with --run-dir"
        if is_over:
            raise ContainerRefused(why)
        time.sleep(_RETRY_S)


def _exchange(path: str, request: bytes, end: float) -> bytes:
    """OSError, _Disconnected, Refused."""
    connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC)
    try:
        connection.settimeout(_left(end))
        connection.connect(path)
        pid_uid_gid = connection.getsockopt(SOL_SOCKET, SO_PEERCRED, 12)  # unix(7)
        uid = int.from_bytes(pid_uid_gid[4:8], sys.byteorder)
        if uid not in {0, geteuid()}:
            raise ContainerRefused(
                f"user {uid} answers on {path}, who is neither root nor you; start mpsd as root"
            )
        received = bytearray()
        try:
            connection.settimeout(_left(end))
            connection.sendall(request)
            connection.settimeout(_left(end))
            while piece := connection.recv(65536):
                received += piece
                if len(received) > _LONGEST_ANSWER:
                    raise ContainerRefused(
                        f"mpsd answers more than {_LONGEST_ANSWER} bytes on {path}; see its log"
                    )
                connection.settimeout(_left(end))
        except (BrokenPipeError, ConnectionResetError):
            raise _Disconnected from None
        return bytes(received)
    finally:
        connection.close()


def _left(end: float) -> float:
    return max(end - time.monotonic(), 0.001)


def _answer(received: bytes) -> tuple[int, object]:
    """_Disconnected where it is not whole; Refused where it is no HTTP, or no JSON."""
    head, between, body = received.partition(b"\r\n\r\n")
    if not between:
        raise _Disconnected
    status_line, *headers = head.decode("latin-1").split("\r\n")
    version, code, *_reason = [*status_line.split(None, 2), "", ""]
    if not (version.startswith("HTTP/1.") and code.isdecimal() and len(code) == 3):
        raise ContainerRefused(
            "what answers on mpsd's socket does not speak HTTP; see which program listens there"
        )
    for header in headers:
        name, _, value = header.partition(":")
        if name.lower() == "content-length" and value.strip() != str(len(body)):
            raise _Disconnected
    status = int(code)
    if not body:
        return status, None
    try:
        return status, json_text.read(body, _ANSWER)
    except ContainerRefused:
        if status < 400:
            raise
        return status, None  # of its HTTP server, in words


# -- what is answered about a container

_ANSWER = "mpsd's answer"
CREATED = 201
NOTHING_REQUESTED = 204
_NOT_FOUND = 404


class Granted:
    """What goes into the bundle: variables; (source, inside, read_only) of folders; (source,
    inside, access) of device nodes. Refused."""

    def __init__(self, body: object) -> None:
        answer = table(body, _ANSWER)
        self.grant = text(answer, "grant", _ANSWER)
        self.environment = environment(answer)
        self.mounts = []
        for row in rows(answer, "mounts", _ANSWER):
            mount = table(row, f"{_ANSWER}: a mount")
            self.mounts.append((*_places(mount), mount.get("read_only") is not False))
        self.devices = []
        for row in rows(answer, "devices", _ANSWER):
            device = table(row, f"{_ANSWER}: a device")
            access = text(device, "access", _ANSWER)
            if not access or access.strip("rwm"):
                raise ContainerRefused(f"{_ANSWER} names the access {access!a}; see its log")
            self.devices.append((*_places(device), access))
        self.messages = texts(answer, "messages", _ANSWER)


def environment(answer: dict[str, object]) -> dict[str, str]:
    """Refused."""
    found = {}
    for name, value in table(answer.get("environment"), f"{_ANSWER}: environment").items():
        if not name or "=" in name or "\0" in name:
            raise ContainerRefused(f"{_ANSWER} names a variable {name!a}; see its log")
        found[name] = word(value, f"{_ANSWER}: environment: {name}")
    return found


def refusal(status: int, body: object) -> ContainerRefused:
    """In mpsd's own words where it has any."""
    reasons = texts(body, "reasons", _ANSWER) if isinstance(body, dict) else []
    if not reasons and status == _NOT_FOUND:
        reasons = ["the mpsd that runs here does not support containers; upgrade it"]
    return ContainerRefused(*reasons or [f"mpsd answers {status} without a reason; see its log"])


def _places(row: dict[str, object]) -> tuple[str, str]:
    source = text(row, "source", _ANSWER)
    inside = text(row, "inside", _ANSWER)
    for path in (source, inside):
        if not path.startswith("/"):
            why = f"{_ANSWER} names the path {path!a}, which is not absolute; see its log"
            raise ContainerRefused(why)
    return source, inside
