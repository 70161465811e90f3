"""A server for peers that nobody vouches for: deadlines, limits, and a stop that loses nothing."""

import asyncio
import errno
import os
import resource
import shutil
import socket
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from mpsd.platform import listener, local_api
from mpsd.platform.bodies import BodyRefused, read_json
from mpsd.platform.certificates import issue, load_into, new_authority
from mpsd.platform.event_loop import until
from mpsd.platform.listener import (
    Listener,
    ListenerSettings,
    UnixPath,
    json_answer,
    tls_context,
    trouble_reaching,
)
from mpsd.platform.settings import CannotListen, ListenAddress

NAME = "webhook.mpsd.svc"
AUTHORITY = new_authority("test", time.time(), 3600)
BUNDLE = AUTHORITY.certificate.decode()
LONGEST = 100_000
DEADLINE_S = 30.0


async def echo(request: web.Request) -> web.Response:
    try:
        body = await read_json(request, 0.3)
    except BodyRefused as refused:
        return web.Response(status=refused.status, text=str(refused))
    return web.Response(body=body)


async def ready(_request: web.Request) -> web.Response:
    return web.Response(text="ok")


async def broken(_request: web.Request) -> web.Response:
    raise ValueError("a fault of ours")


ROUTES = {"POST /echo": echo, "POST /broken": broken, "GET /readyz": ready}


def server_context() -> ssl.SSLContext:
    context = tls_context()
    load_into(context, issue(AUTHORITY, [NAME], time.time(), 600))
    return context


@asynccontextmanager
async def running(
    routes: dict[str, Any] = ROUTES,
    context: ssl.SSLContext | None = None,
    most: int = 1024,
    most_of_peer: int = 512,
    path: Path | None = None,
) -> AsyncIterator[Listener]:
    """context: None for HTTP without TLS. path: of a Unix socket for every user."""
    place = UnixPath(path, 0o666) if path else ListenAddress("127.0.0.1", 0)
    settings = ListenerSettings(LONGEST, most=most, most_of_peer=most_of_peer, context=context)
    server = Listener(routes, place, settings)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


JSON = "Content-Type: application/json"


class Peer:
    """One TLS connection that writes what it is told."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, *lines: str, body: bytes = b"") -> None:
        self.writer.write("\r\n".join([*lines, "Host: x", "", ""]).encode() + body)
        await self.writer.drain()

    async def post(self, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        await self.send(f"POST {path} HTTP/1.1", JSON, f"Content-Length: {len(body)}", body=body)
        return await self.answer()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        status = int((await self.reader.readline()).split()[1])
        headers = {}
        while line := (await self.reader.readline()).decode().strip():
            name, value = line.split(":", 1)
            headers[name.lower()] = value.strip()
        return status, headers, await self.reader.readexactly(int(headers.get("content-length", 0)))

    async def is_closed(self, within_s: float) -> bool:
        try:
            async with asyncio.timeout(within_s):
                return not await self.reader.read(1)
        except TimeoutError:
            return False
        except OSError:
            return True


@asynccontextmanager
async def peer(server: Listener) -> AsyncIterator[Peer]:
    context = ssl.create_default_context(cadata=BUNDLE)
    found = Peer(
        *await asyncio.open_connection("127.0.0.1", server.port, ssl=context, server_hostname=NAME)
    )
    try:
        yield found
    finally:
        found.writer.close()


def play(scene: Callable[[Listener], Awaitable[None]]) -> None:
    async def main() -> None:
        async with running(context=server_context()) as server:
            await scene(server)

    asyncio.run(main())


def long(size: int) -> tuple[list[str], bytes]:
    return [JSON, f"Content-Length: {size}"], b"x" * size


ONE = "Content-Length: 1"
CHUNK = b"%x\r\n%s\r\n" % (60_000, b"x" * 60_000)


@pytest.mark.parametrize(
    ("line", "headers", "body", "status"),
    [
        ("POST /nowhere", [], b"", 404),
        ("HEAD /x", [], b"", 404),
        ("GET /echo", [], b"", 405),
        ("DELETE /readyz", [], b"", 405),
        ("POST /echo", ["Content-Type: application/jsonx", ONE], b"1", 415),
        ("POST /echo", ["Content-Type: application/json; charset=utf-8", ONE], b"1", 200),
        ("POST /echo", *long(LONGEST), 200),
        ("POST /echo", *long(LONGEST + 1), 413),
        ("POST /echo", *long(LONGEST * 20), 413),
        ("POST /echo", [JSON, "Transfer-Encoding: chunked"], CHUNK * 2 + b"0\r\n\r\n", 413),
        ("POST /echo", [JSON, "Content-Length: 100"], b"half", 408),
        ("POST /echo", ["X-Long: " + "x" * 20_000], b"", 400),
    ],
)
def test_what_is_not_served_is_refused(
    line: str, headers: list[str], body: bytes, status: int
) -> None:
    async def scene(server: Listener) -> None:
        async with peer(server) as one, asyncio.timeout(DEADLINE_S):
            await one.send(f"{line} HTTP/1.1", *headers, body=body)
            assert int((await one.reader.readline()).split()[1]) == status
            if status in {404, 405}:  # who asks for what is not here keeps no connection
                await one.reader.read()

    play(scene)


def test_a_fault_of_ours_costs_one_request_and_shows_nothing() -> None:
    async def scene(server: Listener) -> None:
        async with peer(server) as one:
            status, _headers, body = await one.post("/broken", b"")
            assert status == 500
            assert b"a fault" not in body
            for number in range(2):
                status, headers, body = await one.post("/echo", b"%d" % number)
                assert (status, body) == (200, b"%d" % number)
                assert headers.get("connection") != "close"

    play(scene)


@pytest.mark.parametrize(
    "rubbish", [b"\x00\xff\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST\r\n\r\n", b"{}\n\n"]
)
def test_what_is_no_http_is_refused_and_no_error_of_ours(rubbish: bytes) -> None:
    async def scene(server: Listener) -> None:
        async with peer(server) as one:
            one.writer.write(rubbish)
            status = (await one.reader.readline()).split()
            assert not status or 400 <= int(status[1]) < 500

    play(scene)


def test_a_peer_that_never_ends_its_first_request_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "_FIRST_REQUEST_S", 0.3)

    async def scene(server: Listener) -> None:
        async with peer(server) as silent, peer(server) as dripping, peer(server) as good:
            dripping.writer.write(b"POST /echo HTTP/1.1\r\nHost:")
            await good.post("/echo", b"1")
            assert await silent.is_closed(2)
            assert await dripping.is_closed(2)
            assert (await good.post("/echo", b"2"))[0] == 200

    play(scene)


def test_a_port_that_is_taken_says_so() -> None:
    async def scene(server: Listener) -> None:
        with pytest.raises(CannotListen, match=f"cannot listen on 127.0.0.1:{server.port}"):
            await Listener(ROUTES, ListenAddress("127.0.0.1", server.port)).start()

    play(scene)


def is_refused(port: int) -> bool:
    with socket.socket() as stranger:
        return stranger.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED


def test_a_stop_finishes_what_is_under_way_and_takes_nobody_new() -> None:
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def slow(_request: web.Request) -> web.Response:
        asked.set()
        await may_answer.wait()
        return web.Response(text="late")

    async def main() -> None:
        async with (
            running({**ROUTES, "POST /slow": slow}, server_context()) as server,
            peer(server) as busy,
            peer(server) as idle,
            asyncio.timeout(DEADLINE_S),
        ):
            await idle.post("/echo", b"1")
            under_way = asyncio.create_task(busy.post("/slow", b""))
            await asked.wait()
            port = server.port
            stopping = asyncio.create_task(server.stop())
            await until(lambda: is_refused(port), DEADLINE_S, "nobody new is taken")
            may_answer.set()
            status, _headers, body = await under_way
            assert (status, body) == (200, b"late")
            await stopping
            assert await idle.is_closed(1)

    asyncio.run(main())


def test_a_server_is_reached_with_the_right_authorities_and_name_only() -> None:
    async def scene(server: Listener) -> None:
        stranger = new_authority("stranger", time.time(), 60).certificate.decode()
        assert await trouble_reaching("127.0.0.1", server.port, NAME, BUNDLE, 2) == ""
        assert "CERTIFICATE_VERIFY_FAILED" in await trouble_reaching(
            "127.0.0.1", server.port, NAME, stranger, 2
        )
        assert "Hostname mismatch" in await trouble_reaching(
            "127.0.0.1", server.port, "other", BUNDLE, 2
        )
        assert "cannot reach itself" in await trouble_reaching("127.0.0.1", 1, NAME, BUNDLE, 2)

    play(scene)


# How many connections a listener takes, in all and of each peer; and what it knows of a peer on a
# Unix socket.


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
    return await is_answered(
        *await asyncio.open_connection("127.0.0.1", port, local_addr=(from_where, 0))
    )


async def reached_over_tls(port: int) -> bool:
    return not await trouble_reaching("127.0.0.1", port, NAME, BUNDLE, DEADLINE_S)


@pytest.mark.parametrize("limits", [(2, 9), (9, 2)])
# with TLS, they hold their connections by handshakes
@pytest.mark.parametrize(
    ("is_reached", "context"), [(plainly_reached, lambda: None), (reached_over_tls, server_context)]
)
def test_who_comes_while_there_are_as_many_connections_as_may_be_is_hung_up_on(
    is_reached: Callable[[int], Awaitable[bool]],
    context: Callable[[], ssl.SSLContext | None],
    limits: tuple[int, int],
) -> None:
    async def main() -> None:
        async with running(ROUTES, context(), *limits) as server:
            peers = [await asyncio.open_connection("127.0.0.1", server.port) for _peer in range(2)]
            assert not await is_reached(server.port)
            peers.pop()[1].close()
            async with asyncio.timeout(DEADLINE_S):
                while not await is_reached(server.port):
                    pass
            for _reader, writer in peers:
                writer.close()

    asyncio.run(main())


def test_two_addresses_that_hold_all_connections_keep_no_third_out() -> None:
    async def main() -> None:
        async with running(ROUTES, None, 6, 3) as server:
            froms = [(f"127.0.0.{number}", 0) for number in (1, 1, 1, 2, 2, 2)]
            peers = [
                await asyncio.open_connection("127.0.0.1", server.port, local_addr=one)
                for one in froms
            ]
            assert await plainly_reached(server.port, "127.0.0.3")
            async with asyncio.timeout(DEADLINE_S):
                assert await peers[0][0].read() == b"", "the oldest of the first of them"
            assert not any(reader.at_eof() for reader, _writer in peers[1:])
            again = [await asyncio.open_connection("127.0.0.1", server.port) for _peer in range(2)]
            closed = [asyncio.create_task(reader.read()) for reader, _writer in again]
            assert (
                await asyncio.wait(closed, timeout=DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
            )[0]
            assert [n for n, (reader, _writer) in enumerate(peers) if reader.at_eof()] == [0]
            for _reader, writer in (*peers, *again):
                writer.close()

    asyncio.run(main())


def test_a_user_has_so_many_connections_to_a_unix_socket_and_one_that_asks_nothing_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "socket"
    monkeypatch.setattr(listener, "_FIRST_REQUEST_S", 0.3)

    async def main() -> None:
        async with running(ROUTES, None, 9, 2, path):
            peers = [await asyncio.open_unix_connection(path) for _peer in range(2)]
            assert not await is_answered(*await asyncio.open_unix_connection(path))
            async with asyncio.timeout(DEADLINE_S):
                for reader, writer in peers:
                    assert await reader.read() == b""
                    writer.close()
            assert await is_answered(*await asyncio.open_unix_connection(path))

    asyncio.run(main())


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can be another user")
def test_users_who_hold_all_connections_of_a_unix_socket_do_not_keep_root_out() -> None:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    path = folder / "socket"

    async def main() -> None:
        async with running(ROUTES, None, 4, 2, path):
            holders = []
            for uid in (65533, 65534):
                os.seteuid(uid)  # which is what the kernel tells of a peer
                try:
                    holders += [await asyncio.open_unix_connection(path) for _twice in range(2)]
                    # taken in the order of their coming, so after the two are counted
                    assert not await is_answered(*await asyncio.open_unix_connection(path))
                finally:
                    os.seteuid(0)
            assert await is_answered(*await asyncio.open_unix_connection(path))
            for _reader, writer in holders:
                writer.close()

    try:
        asyncio.run(main())
    finally:
        shutil.rmtree(folder)


def test_a_peer_gets_an_eighth_of_the_files_of_the_process_at_most() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def main() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
        async with running(ROUTES) as server:
            peers = [await asyncio.open_connection("127.0.0.1", server.port) for _peer in range(8)]
            assert not await plainly_reached(server.port)
            assert await plainly_reached(server.port, "127.0.0.2")
            for _reader, writer in peers:
                writer.close()

    try:
        asyncio.run(main())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_request_that_fails_for_want_of_descriptors_is_answered_so_and_logged_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def short(_request: web.Request) -> web.Response:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/proc/1/stat")

    async def main() -> None:
        async with running({"GET /short": short}, server_context()) as server, peer(server) as one:
            for _time in range(3):
                await one.send("GET /short HTTP/1.1")
                status, _headers, body = await one.answer()
                assert (status, b"Too many open files" in body) == (503, True)

    asyncio.run(main())
    said = capsys.readouterr()
    assert (said.out + said.err).count("tried again later") == 1


# -- Unix sockets


def serve_while(path: Path, act: Callable[[], object]) -> object:
    """What `act` gives in another thread while a server answers on the socket."""

    async def who(request: web.Request) -> web.Response:
        asker = listener.peer(request)
        return json_answer(asker and asker.pid)

    async def main() -> object:
        async with running({"GET /who": who}, path=path):
            return await asyncio.to_thread(act)

    return asyncio.run(main())


def test_any_user_may_ask_and_the_kernel_says_who(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    assert serve_while(path, lambda: path.stat().st_mode & 0o777) == 0o666
    assert serve_while(path, lambda: local_api.ask(path, "GET", "/who")) == (
        200,
        f"{os.getpid()}\n".encode(),
    )
    assert not path.exists()


def test_a_second_server_is_refused_and_a_dead_ones_socket_replaced(tmp_path: Path) -> None:
    path = tmp_path / "socket"

    def second() -> None:
        with pytest.raises(CannotListen, match=str(path)):
            serve_while(path, lambda: None)
        assert local_api.ask(path, "GET", "/who")[0] == 200

    path.touch()
    serve_while(path, second)
