"""The agent's socket: one server at a time, and the kernel's word for who asks."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web

from mpsd.edge import local_api
from mpsd.edge.http_server import AlreadyServed, UnixServer, json_answer, peer_pid


def serve_while(path: Path, act: Callable[[], object]) -> object:
    """What `act` gives in another thread while a server answers on the socket."""

    async def who(request: web.Request) -> web.Response:
        return json_answer(peer_pid(request))

    async def main() -> object:
        server = UnixServer(path, {"GET /who": who}, mode=0o666)
        await server.start()
        try:
            return await asyncio.to_thread(act)
        finally:
            await server.stop()

    return asyncio.run(main())


def test_the_kernel_says_who_asks(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    assert serve_while(path, lambda: local_api.ask(path, "GET", "/who")) == (200, f"{os.getpid()}\n".encode())
    assert not path.exists()


def test_a_second_server_is_refused_and_a_dead_ones_socket_replaced(tmp_path: Path) -> None:
    path = tmp_path / "socket"

    def second() -> None:
        with pytest.raises(AlreadyServed, match=str(path)):
            serve_while(path, lambda: None)
        assert local_api.ask(path, "GET", "/who")[0] == 200

    path.touch()
    serve_while(path, second)


def test_any_user_may_ask(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    assert serve_while(path, lambda: path.stat().st_mode & 0o777) == 0o666
