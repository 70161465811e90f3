"""A listener of a few routes, with TLS, for tests that speak to it as peers."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from mpsd.platform.certificates import issue, load_into, new_authority
from mpsd.platform.listener import (
    BodyRefused,
    ConnectionLimits,
    Listener,
    ListenerSettings,
    TcpAddress,
    read_body,
    tls_context,
)

NAME = "webhook.mpsd.svc"
AUTHORITY = new_authority("test", time.time(), 3600)
BUNDLE = AUTHORITY.certificate.decode()
LONGEST = 100_000
DEADLINE_S = 30.0


async def echo(request: web.Request) -> web.Response:
    try:
        body = await read_body(request, "application/json", LONGEST, 0.3)
    except BodyRefused as refused:
        return web.Response(status=refused.status, text=str(refused))
    return web.Response(body=body)


async def slow(_request: web.Request) -> web.Response:
    await asyncio.sleep(0.5)
    return web.Response(text="late")


async def ready(_request: web.Request) -> web.Response:
    return web.Response(text="ok")


async def broken(_request: web.Request) -> web.Response:
    raise ValueError("a fault of ours")


ROUTES = {"POST /echo": echo, "POST /slow": slow, "POST /broken": broken, "GET /readyz": ready}


def server_context() -> ssl.SSLContext:
    context = tls_context()
    load_into(context, issue(AUTHORITY, [NAME], time.time(), 600))
    return context


@asynccontextmanager
async def running(
    routes: dict[str, Any] = ROUTES,
    context: ssl.SSLContext | None = None,
    limits: ConnectionLimits | None = None,
) -> AsyncIterator[Listener]:
    """context: None for HTTP without TLS."""
    settings = ListenerSettings(LONGEST, limits=limits or ConnectionLimits())
    server = Listener(routes, TcpAddress("127.0.0.1", 0, context), settings)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
