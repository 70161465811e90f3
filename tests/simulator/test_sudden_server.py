"""A server that goes down as a machine does leaves nobody's connection open, however far that had
come."""

import asyncio
import ssl
from contextlib import suppress

import pytest
from aiohttp import web

from mpsd.simulator.api_server.server import SuddenServer, new_certificate

DEADLINE_S = 20.0
SHOWN = new_certificate()
CLIENTS = 4


async def never(_request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def _hear_the_end(port: int, authority: str) -> None:
    """As a client that asks and waits for what never comes."""
    context = ssl.create_default_context(cadata=authority)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    except OSError:
        return
    with suppress(OSError):
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.read()
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


# A handshake takes some 20 turns of a loop that both sides share, and a request a few more.
@pytest.mark.parametrize("turns", range(40))
def test_whoever_is_connecting_while_it_stops_hears_of_the_end(turns: int) -> None:
    async def main() -> None:
        server = SuddenServer(never, SHOWN.context, 0, 1024)
        await server.start()
        clients = [
            asyncio.create_task(_hear_the_end(server.port, SHOWN.authority.decode()))
            for _ in range(CLIENTS)
        ]
        for _turn in range(turns):
            await asyncio.sleep(0)
        await server.stop()
        assert asyncio.all_tasks() - {asyncio.current_task()} <= set(clients), (
            "nothing of the server goes on"
        )
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*clients)

    asyncio.run(main())


def test_a_peer_that_never_speaks_is_let_go() -> None:
    async def main() -> None:
        server = SuddenServer(never, SHOWN.context, 0, 1024)
        await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        await server.stop()
        async with asyncio.timeout(DEADLINE_S):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()
        with suppress(ConnectionResetError):
            await writer.wait_closed()

    asyncio.run(main())
