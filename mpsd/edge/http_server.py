"""Serves HTTP on a Unix socket, and says which process asks. (`https_server` serves on a TCP port.)

One rule: the peer's pid comes from the kernel (SO_PEERCRED), never from what the peer writes.
"""

import ipaddress
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec
from aiohttp import web

from mpsd.edge.peer import AlreadyServed, Peer, peer_of

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
USER = web.RequestKey("USER", str)  # whose token came with a request


def application(routes: Mapping[str, Handler], longest_body: int = 1024**2) -> web.Application:
    """routes: from `METHOD /path` to handler; every other path is answered 404, every other method 405."""
    built = web.Application(client_max_size=longest_body)
    for route, handler in routes.items():
        method, url = route.split()
        built.router.add_route(method, url, handler)
    return built


class UnixServer:
    """An HTTP server on one Unix socket. routes: from `METHOD /path` to handler."""

    def __init__(self, path: Path, routes: Mapping[str, Handler], mode: int) -> None:
        self._path = path
        self._mode = mode
        # A handler whose peer hangs up is cancelled, so that nobody waits in a queue for a program that is gone.
        self._runner = web.AppRunner(
            application(routes), handler_cancellation=True, access_log=None, shutdown_timeout=2
        )

    async def start(self) -> None:
        """AlreadyServed where somebody answers there; a socket that nobody listens on is replaced."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if _is_served(self._path):
            raise AlreadyServed(f"mpsd runs here already: it answers on {self._path}")
        self._path.unlink(missing_ok=True)
        await self._runner.setup()
        await web.UnixSite(self._runner, str(self._path)).start()
        self._path.chmod(self._mode)

    async def stop(self) -> None:
        await self._runner.cleanup()
        self._path.unlink(missing_ok=True)


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def peer(request: web.Request) -> Peer | None:
    """Who asks; None where the connection is gone."""
    connection = request.get_extra_info("socket")
    return None if connection is None else peer_of(connection)


def peer_pid(request: web.Request) -> int | None:
    """The asking process; None where the kernel does not say, as for one of another pid namespace."""
    found = peer(request)
    return found.pid or None if found else None


def asker(request: web.Request) -> str:
    """Who asks: whose token came, else the user at the other end of a Unix socket, else the address.

    All loopback addresses are one, for whoever is on this machine may come from any of them.
    """
    if user := request.get(USER):
        return f"user {user}"
    connection = request.get_extra_info("socket")
    if connection is not None and connection.family == socket.AF_UNIX:
        return f"user {peer_of(connection).uid} of this machine"
    address = ipaddress.ip_address((request.remote or "::").partition("%")[0])
    return "this machine" if address.is_loopback else f"address {address}"


def json_answer(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value) + b"\n", content_type="application/json", status=status)
