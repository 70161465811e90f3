"""Asks the agent of this machine, over its Unix socket."""

import http.client
import os
import socket
from pathlib import Path
from typing import TypeVar

import msgspec

from mpsd.platform import run_directory
from mpsd.platform.peers import peer_of

Value = TypeVar("Value")


class NotRunning(Exception):
    """The message has the remedy."""


def read(body: bytes, kind: type[Value]) -> Value:
    """What an answer holds; NotRunning where it has another form."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError:
        why = "mpsd answered in a form that this version does not know; use its version"
        raise NotRunning(why) from None


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
        uid = peer_of(self.sock).uid
        if uid not in {0, os.geteuid()}:  # what it answers would be run in our name
            why = f"user {uid} answers on {self._path}, who is neither root nor you; not asked"
            raise NotRunning(why)


def ask(
    path: Path, method: str, url: str, body: object = None, timeout_s: float = 10.0
) -> tuple[int, bytes]:
    """The status and body. NotRunning; TimeoutError after `timeout_s`, or where it takes no more
    requests; each with a sentence for a person."""
    connection = _UnixConnection(path, timeout_s)
    sent = None
    if body is not None:
        sent = msgspec.json.encode(body)
    try:
        connection.request(method, url, body=sent)
        answer = connection.getresponse()
        found = answer.read()
    except (FileNotFoundError, ConnectionRefusedError):
        why = f"mpsd does not run here: no process answers on {path}; start it with `mpsd up`"
        if holder := run_directory.holder(path.parent):  # the daemons are held all the same
            what = f"pid {holder} holds its daemons, and no agent answers on {path}"
            remedy = "where nothing starts or stops just now, start `mpsd agent`"
            why = f"mpsd does not run here as a whole: {what}; {remedy}"
        raise NotRunning(why) from None
    except NotADirectoryError:
        why = f"{path.parent} is not a directory; select mpsd's run directory (--run-dir)"
        raise NotRunning(why) from None
    except TimeoutError:
        why = f"mpsd did not answer on {path} within {timeout_s:g} s; see its log, or `mpsd doctor`"
        raise TimeoutError(why) from None
    except BlockingIOError:  # its queue is full
        raise TimeoutError(f"mpsd accepts no more requests on {path}; see its log") from None
    except PermissionError:
        why = f"this user has no access to {path}; ask the administrator of this machine"
        raise NotRunning(why) from None
    except (ConnectionError, http.client.HTTPException):
        raise NotRunning(f"mpsd closed the connection on {path}; see its log") from None
    finally:
        connection.close()
    if answer.status == 503:  # for want of descriptors, memory or space
        raise TimeoutError(found.decode(errors="replace").strip())
    return answer.status, found
