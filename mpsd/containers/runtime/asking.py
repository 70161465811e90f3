"""Asks `mpsd up` over its Unix socket.

One rule: every wait has a deadline, and only root or the own user is believed, since what is answered is run.
"""

import sys
import time
from _socket import AF_UNIX, SO_PEERCRED, SOCK_CLOEXEC, SOCK_STREAM, SOL_SOCKET, socket
from os import geteuid

from mpsd.containers.runtime import json_text
from mpsd.containers.runtime.json_text import ContainerRefused, rows, table, text, texts, word

_LONGEST_ANSWER = 1024**2  # bytes
_FIRST_ERROR = 400
_AGAIN_S = 0.05
_CREDENTIALS = 12  # bytes: pid, uid, gid; unix(7)


class HttpAnswer:
    """body: None where there is none."""

    def __init__(self, status: int, body: object) -> None:
        self.status = status
        self.body = body


class NobodyAnswers(ContainerRefused):
    """mpsd is not there, or was not heard in time."""


class _WentAway(Exception):
    """The connection ended before the answer did: mpsd is being upgraded, perhaps."""


def ask(run_directory: str, url: str, body: object, answer_s: float = 30.0, patience_s: float = 5.0) -> HttpAnswer:
    """The answer to a POST. NobodyAnswers, after `answer_s` in all, or where nobody listened for `patience_s`; Refused.

    Asking again is safe: mpsd knows by the pid and the name who asks, and for what.
    """
    path = f"{run_directory}/mpsd.sock"
    request = _request(url, json_text.write(body, "the question"))
    end = time.monotonic() + answer_s
    absent = None  # since when nobody is there; None while somebody was at the last try
    while True:
        try:
            return _answer(_exchange(path, request, end))
        except (FileNotFoundError, ConnectionRefusedError, _WentAway) as error:
            now = time.monotonic()
            absent = now if absent is None else absent
            if now + _AGAIN_S > min(end, absent + patience_s):
                raise NobodyAnswers(_nobody(path, isinstance(error, _WentAway))) from None
        except BlockingIOError:  # its queue is full
            absent = None
            if time.monotonic() + _AGAIN_S > end:
                raise NobodyAnswers(f"mpsd takes no more questions on {path}; see its log") from None
        except TimeoutError:
            raise NobodyAnswers(f"mpsd did not answer on {path} within {answer_s:g} s; see its log") from None
        except PermissionError:
            raise ContainerRefused(f"you may not use {path}; ask whoever runs mpsd on this machine") from None
        except OSError as error:
            why = error.strerror or error
            raise ContainerRefused(f"{path} cannot be used: {why}; name mpsd's folder with --run-dir") from None
        time.sleep(_AGAIN_S)


def _nobody(path: str, went_away: bool) -> str:
    if went_away:
        return f"mpsd went away while it was asked on {path}; see its log, and start it with `mpsd up`"
    return f"mpsd does not run here: nobody answers on {path}; start it with `mpsd up`"


def _request(url: str, body: str) -> bytes:
    return (
        f"POST {url} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"
    ).encode("ascii")


def _exchange(path: str, request: bytes, end: float) -> bytes:
    """Everything that is answered. OSError, _WentAway, Refused."""
    connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC)
    try:
        connection.settimeout(_left(end))
        connection.connect(path)
        uid = int.from_bytes(connection.getsockopt(SOL_SOCKET, SO_PEERCRED, _CREDENTIALS)[4:8], sys.byteorder)
        if uid not in {0, geteuid()}:
            raise ContainerRefused(f"user {uid} answers on {path}, who is neither root nor you; start mpsd as root")
        heard = bytearray()
        try:
            connection.settimeout(_left(end))
            connection.sendall(request)
            connection.settimeout(_left(end))
            while piece := connection.recv(65536):
                heard += piece
                if len(heard) > _LONGEST_ANSWER:
                    raise ContainerRefused(f"mpsd answers more than {_LONGEST_ANSWER} bytes on {path}; see its log")
                connection.settimeout(_left(end))
        except (BrokenPipeError, ConnectionResetError):
            raise _WentAway from None
        return bytes(heard)
    finally:
        connection.close()


def _left(end: float) -> float:
    return max(end - time.monotonic(), 0.001)


def _answer(heard: bytes) -> HttpAnswer:
    """_WentAway where it is not whole; Refused where it is no HTTP, or no JSON."""
    head, between, body = heard.partition(b"\r\n\r\n")
    if not between:
        raise _WentAway
    status_line, *headers = head.decode("latin-1").split("\r\n")
    words = status_line.split(None, 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not (words[1].isdecimal() and len(words[1]) == 3):
        raise ContainerRefused("what answers in mpsd's place does not speak HTTP; see which program listens there")
    for header in headers:
        name, _, value = header.partition(":")
        if name.lower() == "content-length" and value.strip() != str(len(body)):
            raise _WentAway
    status = int(words[1])
    try:
        return HttpAnswer(status, json_text.read(body, "mpsd's answer") if body else None)
    except ContainerRefused:
        if status < _FIRST_ERROR:
            raise
        return HttpAnswer(status, None)  # of its HTTP server, in words


# What mpsd answers about a container: `grants.rules.container_messages` as they arrive.
#
# One rule: what is not of the form that this version knows is refused before anything is changed.

_ANSWER = "mpsd's answer"
CREATED = 201
NOTHING_ASKED = 204
_NOT_FOUND = 404


class AnsweredMount:
    """A folder of this machine, seen in the container at `inside`."""

    def __init__(self, source: str, inside: str, read_only: bool) -> None:
        self.source = source
        self.inside = inside
        self.read_only = read_only


class AnsweredDevice:
    """A device node of this machine, made again in the container at `inside`, for `access`."""

    def __init__(self, source: str, inside: str, access: str) -> None:
        self.source = source
        self.inside = inside
        self.access = access


class Granted:
    """What goes into the bundle."""

    def __init__(self, body: object) -> None:
        """Refused."""
        answer = table(body, _ANSWER)
        self.grant = text(answer, "grant", _ANSWER)
        self.environment = environment(answer)
        self.mounts = [_mount(row) for row in rows(answer, "mounts", _ANSWER)]
        self.devices = [_device(row) for row in rows(answer, "devices", _ANSWER)]
        self.messages = texts(answer, "messages", _ANSWER)


def environment(answer: dict[str, object]) -> dict[str, str]:
    """Its variables. Refused."""
    read = table(answer.get("environment"), f"{_ANSWER}: environment")
    for name in read:
        if not name or "=" in name or "\0" in name:
            raise ContainerRefused(f"{_ANSWER} names a variable {name!a}; see its log")
    return {name: word(value, f"{_ANSWER}: environment: {name}") for name, value in read.items()}


def refusal(answer: HttpAnswer) -> ContainerRefused:
    """Why mpsd refuses, in its own words where it has any."""
    reasons = texts(answer.body, "reasons", _ANSWER) if isinstance(answer.body, dict) else []
    if not reasons and answer.status == _NOT_FOUND:
        return ContainerRefused("the mpsd that runs here knows nothing of containers; upgrade it")
    return (
        ContainerRefused(*reasons)
        if reasons
        else ContainerRefused(f"mpsd answers {answer.status} and no reason; see its log")
    )


def _mount(row: object) -> AnsweredMount:
    read = table(row, f"{_ANSWER}: a mount")
    return AnsweredMount(_path(read, "source"), _path(read, "inside"), read.get("read_only") is not False)


def _device(row: object) -> AnsweredDevice:
    read = table(row, f"{_ANSWER}: a device")
    access = text(read, "access", _ANSWER)
    if not access or access.strip("rwm"):
        raise ContainerRefused(f"{_ANSWER} names the access {access!a}; see its log")
    return AnsweredDevice(_path(read, "source"), _path(read, "inside"), access)


def _path(read: dict[str, object], name: str) -> str:
    path = text(read, name, _ANSWER)
    if not path.startswith("/"):
        raise ContainerRefused(f"{_ANSWER} names the path {path!a}, which is not absolute; see its log")
    return path
