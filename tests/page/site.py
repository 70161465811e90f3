"""The page of a view that a test says, served by this process on a thread of its own."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager

from mpsd.platform.listener import Handler, Listener, ListenerSettings
from mpsd.platform.settings import ListenAddress
from mpsd.status.page.rules.view import PageView
from mpsd.status.page.server import PageApi
from tests.page_worlds import Played

_DEADLINE_S = 30.0


class PlayedSite:
    """url: where it is. show: the next view."""

    def __init__(self, source: Played, server: Listener, loop: asyncio.AbstractEventLoop) -> None:
        self._source = source
        self._loop = loop
        self.url = f"http://127.0.0.1:{server.port}/"

    def show(self, page: PageView) -> None:
        self._loop.call_soon_threadsafe(self._source.show, page)


@contextmanager
def played(
    first: PageView | None, beside: Mapping[str, Handler] | None = None
) -> Iterator[PlayedSite]:
    """beside: more routes of the same server."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def do(what: Callable[[], Awaitable[None]]) -> None:
        async def done() -> None:
            await what()

        asyncio.run_coroutine_threadsafe(done(), loop).result(_DEADLINE_S)

    source = Played(first)
    api = PageApi(source)
    server = Listener(
        {**api.routes, **(beside or {})},
        ListenAddress("127.0.0.1", 0),
        ListenerSettings(4096, cancels=True),
    )
    try:
        do(server.start)
        yield PlayedSite(source, server, loop)
        do(api.stop)
        do(server.stop)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_DEADLINE_S)
        loop.close()
