"""A listener of a few routes, with TLS, for tests that speak to it as peers."""

import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from mpsd.platform.certificates import issue, load_into, new_authority
from mpsd.platform.listener import BodyRefused, Listener, ListenerSettings, read_json, tls_context
from mpsd.platform.settings import ListenAddress

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
) -> AsyncIterator[Listener]:
    """context: None for HTTP without TLS."""
    settings = ListenerSettings(LONGEST, most=most, most_of_peer=most_of_peer, context=context)
    server = Listener(routes, ListenAddress("127.0.0.1", 0), settings)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
