"""How many connections a listener takes, in all and of each peer; and what it knows of a peer on a Unix socket."""

import asyncio
import os
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web

from mpsd.platform import listener, local_api
from mpsd.platform.listener import (
    AlreadyServed,
    ConnectionLimits,
    Listener,
    ListenerSettings,
    UnixPath,
    json_answer,
    peer_pid,
    trouble_reaching,
)
from tests.edge.listening import BUNDLE, DEADLINE_S, NAME, ROUTES, running, server_context


def context(*, with_tls: bool) -> ssl.SSLContext | None:
    return server_context() if with_tls else None


async def is_answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Whether a peer without TLS is answered, and not hung up on."""
    try:
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(DEADLINE_S):
            return b" 200 " in await reader.readline()
    except ConnectionError:
        return False
    finally:
        writer.close()


async def plainly_reached(port: int, from_where: str = "127.0.0.1") -> bool:
    return await is_answered(*await asyncio.open_connection("127.0.0.1", port, local_addr=(from_where, 0)))


async def reached_over_tls(port: int, from_where: str = "127.0.0.1") -> bool:
    if from_where == "127.0.0.1":
        return not await trouble_reaching("127.0.0.1", port, NAME, BUNDLE, DEADLINE_S)
    shown, there = ssl.create_default_context(cadata=BUNDLE), (from_where, 0)
    peer = await asyncio.open_connection("127.0.0.1", port, local_addr=there, ssl=shown, server_hostname=NAME)
    return await is_answered(*peer)


@pytest.mark.parametrize("limits", [ConnectionLimits(2, 9), ConnectionLimits(9, 2)])
@pytest.mark.parametrize("with_tls", [False, True])  # with it, they hold their connections by handshakes
def test_who_comes_while_there_are_as_many_connections_as_may_be_is_hung_up_on(
    with_tls: bool, limits: ConnectionLimits
) -> None:
    is_reached = reached_over_tls if with_tls else plainly_reached

    async def main() -> None:
        async with running(ROUTES, context(with_tls=with_tls), limits) as server:
            peers = [await asyncio.open_connection("127.0.0.1", server.port) for _peer in range(2)]
            assert not await is_reached(server.port)
            peers.pop()[1].close()
            async with asyncio.timeout(DEADLINE_S):
                while not await is_reached(server.port):
                    pass
            for _reader, writer in peers:
                writer.close()

    asyncio.run(main())


@pytest.mark.parametrize("with_tls", [False, True])
def test_one_address_that_holds_all_it_may_keeps_no_other_out(with_tls: bool) -> None:
    is_reached = reached_over_tls if with_tls else plainly_reached

    async def main() -> None:
        async with running(ROUTES, context(with_tls=with_tls), ConnectionLimits(4, 3)) as server:
            peers = [await asyncio.open_connection("127.0.0.1", server.port) for _peer in range(6)]
            assert await is_reached(server.port, "127.0.0.2")
            assert not await is_reached(server.port)
            async with asyncio.timeout(DEADLINE_S):
                for reader, _writer in peers[3:]:
                    assert await reader.read() == b""
            assert not any(reader.at_eof() for reader, _writer in peers[:3])  # who was there first stays
            for _reader, writer in peers:
                writer.close()

    asyncio.run(main())


def test_peers_within_the_limits_are_served_as_ever() -> None:
    async def main() -> None:
        async with running(ROUTES, server_context(), ConnectionLimits(8, 8)) as server:
            assert all(await asyncio.gather(*(reached_over_tls(server.port) for _peer in range(8))))

    asyncio.run(main())


def test_a_user_has_so_many_connections_to_a_unix_socket_and_one_that_asks_nothing_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "socket"
    monkeypatch.setattr(listener, "_FIRST_REQUEST_S", 0.3)

    async def main() -> None:
        server = Listener(ROUTES, UnixPath(path, 0o600), ListenerSettings(limits=ConnectionLimits(9, 2)))
        await server.start()
        try:
            peers = [await asyncio.open_unix_connection(path) for _peer in range(2)]
            assert not await is_answered(*await asyncio.open_unix_connection(path))
            async with asyncio.timeout(DEADLINE_S):
                for reader, writer in peers:
                    assert await reader.read() == b""
                    writer.close()
            assert await is_answered(*await asyncio.open_unix_connection(path))
        finally:
            await server.stop()

    asyncio.run(main())


# -- Unix sockets ------------------------------------------------------------------------------------------------------


def serve_while(path: Path, act: Callable[[], object]) -> object:
    """What `act` gives in another thread while a server answers on the socket."""

    async def who(request: web.Request) -> web.Response:
        return json_answer(peer_pid(request))

    async def main() -> object:
        server = Listener({"GET /who": who}, UnixPath(path, 0o666))
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
