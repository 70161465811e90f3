"""What a port answers to bytes that no client of ours sends, on a raw socket: the library below may
unpack, buffer and wait as it likes."""

import asyncio
import gc
import gzip
import re
import socket
import zlib
from collections.abc import Mapping
from contextlib import suppress

import pytest
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from mpsd.platform import listener
from mpsd.platform.event_loop import until
from mpsd.platform.listener import Handler, Listener
from tests.platform.test_listener import DEADLINE_S, JSON, LONGEST, ROUTES, running

MIB = 1024**2
BOMB = gzip.compress(bytes(16 * MIB))
LIE = "Content-Length: 100000000"


def talk(port: int, *sent: bytes) -> list[int]:
    """The statuses that come until the server closes, which it may before it has read all."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as one:
        with suppress(ConnectionError):
            for some in sent:
                one.sendall(some)
        with suppress(ConnectionError):  # the kernel gives what came before first
            while some := one.recv(65536):
                answer += some
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d+) ", answer)]


def head(line: str, *fields: str) -> bytes:
    return "\r\n".join([f"{line} HTTP/1.1", "Host: x", *fields, "", ""]).encode()


async def statuses(*sent: bytes, routes: Mapping[str, Handler] = ROUTES) -> list[int]:
    async with running(dict(routes)) as server:
        return await asyncio.to_thread(talk, server.port, *sent)


PACKED = {
    "gzip": BOMB,
    "x-gzip": BOMB,
    "deflate": zlib.compress(bytes(MIB)),
    "br": b"\x0b\x02\x80hello\x03",
    "zstd": b"\x28\xb5\x2f\xfd\x04\x00",
    "gzip, gzip": gzip.compress(BOMB),
    "identity": b"{}",
    "": b"{}",
    "GZIP": BOMB,
}


@pytest.mark.parametrize("packing", PACKED)
@pytest.mark.parametrize("line", ["GET /readyz", "POST /echo", "POST /nowhere", "DELETE /readyz"])
def test_a_packed_body_is_refused_unread(packing: str, line: str) -> None:
    """Whatever its name: less of it is sent than it says, so who reads it does not answer."""
    fields = [JSON, f"Content-Encoding: {packing}", LIE]
    body = PACKED[packing]
    assert asyncio.run(statuses(head(line, *fields), body)) == [415]


def test_a_packed_body_without_a_length_is_refused_unread() -> None:
    fields = [JSON, "Content-Encoding: gzip", "Transfer-Encoding: chunked"]
    chunk = b"%x\r\n%s\r\n" % (len(BOMB), BOMB)
    assert asyncio.run(statuses(head("POST /echo", *fields), chunk)) == [415]


def test_a_handler_gets_no_byte_more_than_was_sent() -> None:
    """Also where the names of what packs a body are others than ours."""
    seen = []

    async def count(request: web.Request) -> web.Response:
        seen.append(len(await request.read()))
        return web.Response()

    packed = gzip.compress(bytes(LONGEST * 10))
    fields = ["Transfer-Encoding: gzip, chunked", "Connection: close"]
    chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (len(packed), packed)
    found = asyncio.run(statuses(head("POST /", *fields), chunk, routes={"POST /": count}))
    assert found in ([200], [400])
    assert seen in ([len(packed)], [])


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("field", [LIE, "Transfer-Encoding: chunked"])
def test_a_body_where_none_belongs_ends_the_connection_unread(method: str, field: str) -> None:
    sent = head(f"{method} /readyz", field)
    assert asyncio.run(statuses(sent, b"1\r\nx\r\n")) == [400]


def test_what_follows_a_refused_body_is_never_a_request() -> None:
    inside = head("GET /readyz")
    sent = head("GET /readyz", f"Content-Length: {len(inside)}") + inside + inside
    assert asyncio.run(statuses(sent)) == [400]


def test_a_peer_that_says_no_more_of_a_refused_body_waits_for_nothing() -> None:
    """The answer and the end come while it still holds the connection."""

    async def scene(server: Listener) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head("POST /nowhere", LIE))
        async with asyncio.timeout(DEADLINE_S):
            assert (await reader.read()).startswith(b"HTTP/1.1 404")
        writer.close()

    async def main() -> None:
        async with running() as server:
            await scene(server)

    asyncio.run(main())


@pytest.mark.parametrize(
    "fields",
    [
        ["X: " + "x" * 9000],
        [f"X-{number}: x" for number in range(100)],
        ["x" * 9000 + ": x"],
        ["Content-Length: 1", "Content-Length: 2"],
        ["Content-Length: 1", "Transfer-Encoding: chunked"],
        ["Content-Length: -1"],
        ["Content-Length: 1e3"],
        ["Content-Length: " + "9" * 5000],
        ["Transfer-Encoding: chunked, gzip"],
        [" folded: x"],
        ["no colon"],
    ],
)
def test_a_header_that_is_too_much_or_lies_ends_the_connection(fields: list[str]) -> None:
    assert asyncio.run(statuses(head("POST /echo", JSON, *fields), b"{}")) == [400]


@pytest.mark.parametrize(
    "body", [b"zz\r\n", b"-1\r\n{}\r\n0\r\n\r\n", b"f" * 20 + b"\r\n{}", b"2;" + b"x" * 20_000]
)
def test_chunks_that_are_none_end_the_connection(body: bytes) -> None:
    sent = head("POST /echo", JSON, "Transfer-Encoding: chunked")
    found = asyncio.run(statuses(sent, body))
    assert all(400 <= status < 500 for status in found)
    assert len(found) <= 1


def test_requests_that_wait_for_no_answer_are_answered_in_turn() -> None:
    last = head("GET /readyz", "Connection: close")
    assert asyncio.run(statuses(head("GET /readyz") * 500 + last)) == [200] * 501


def test_who_takes_no_answer_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_SLOW_S", 0.2)

    asked: list[web.Request] = []

    async def long(request: web.Request) -> web.Response:
        asked.append(request)
        return web.Response(body=bytes(64 * MIB))

    async def main() -> None:
        async with running({"GET /long": long}) as server:
            with socket.create_connection(("127.0.0.1", server.port)) as one:
                one.sendall(head("GET /long"))
                gone = "its connection is gone"
                await until(lambda: asked and asked[0].transport is None, DEADLINE_S, gone)

    asyncio.run(main())


def test_nothing_is_kept_of_a_peer_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not until its first request would have been late."""
    monkeypatch.setattr(listener, "_FIRST_REQUEST_S", 3600.0)

    def protocols() -> int:
        gc.collect()
        return sum(isinstance(one, RequestHandler) for one in gc.get_objects())

    async def main() -> None:
        async with running() as server:
            before = protocols()
            for _peer in range(20):
                assert await asyncio.to_thread(talk, server.port, b"no HTTP\r\n\r\n") == [400]
            gone = "what they sent is forgotten"
            await until(lambda: protocols() <= before + 1, DEADLINE_S, gone)

    asyncio.run(main())
