"""What readers of the page are told over HTTP, and what they may cost."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest

from mpsd.platform.listener import Listener, ListenerSettings
from mpsd.platform.settings import ListenAddress
from mpsd.status.page import server
from mpsd.status.page.rules.view import PageView
from mpsd.status.page.server import MOST_OF_ASKER, PageApi
from tests.model.worlds import GPUS
from tests.page_worlds import GIB, Played, crowd, granted, node, page_of

DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def tag(self) -> str:
        return self.headers["ETag"]

    @property
    def gpus(self) -> list[str]:
        return [gpu["label"] for gpu in json.loads(self.text)["gpus"]]


class Site:
    def __init__(self, source: Played, session: aiohttp.ClientSession) -> None:
        self.source = source
        self.session = session
        self.api = PageApi(source)
        self._server = Listener(
            self.api.routes, ListenAddress("127.0.0.1", 0), ListenerSettings(4096, cancels=True)
        )

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self.api.stop()
        await self._server.stop()

    @property
    def port(self) -> int:
        return self._server.port

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def ask(self, tag: str = "") -> Answer:
        headers = {"If-None-Match": tag} if tag else {}
        async with self.session.get(self.url("/v1/page"), headers=headers) as answer:
            return Answer(answer.status, answer.headers, await answer.text())


@asynccontextmanager
async def on_site(first: PageView | None) -> AsyncIterator[Site]:
    async with asyncio.timeout(2 * DEADLINE_S), aiohttp.ClientSession() as session:
        site = Site(Played(first), session)
        await site.start()
        try:
            yield site
        finally:
            await site.stop()


async def until(condition: Callable[[], object], what: str) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < DEADLINE_S, what
        await asyncio.sleep(0.02)


async def test_a_change_is_seen_by_its_tag_and_the_very_same_view_is_not_sent_again() -> None:
    async with on_site(page_of(node(GPUS, [granted(GPUS[0], "train", GIB)]))) as site:
        first = await site.ask()
        assert (first.status, first.gpus) == (200, ["gpu0", "gpu1"])
        assert (await site.ask(first.tag)).status == 304
        site.source.show(page_of(node(GPUS[:1], [])))
        second = first
        while second.tag == first.tag:
            second = await site.ask(first.tag)
        assert (second.status, second.gpus) == (200, ["gpu0"])


async def test_all_readers_share_one_look_and_it_ends_with_the_last_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with on_site(page_of(crowd(2, 4))) as site:
        assert site.source.looks == 0
        firsts = await asyncio.gather(*(site.ask() for _reader in range(MOST_OF_ASKER)))
        assert {one.tag for one in firsts} == {firsts[0].tag}
        assert site.source.is_open
        began, looks = time.monotonic(), site.source.looks
        await until(lambda: site.source.looks > looks + 1, "it goes on looking")
        passed_s = time.monotonic() - began
        assert site.source.looks - looks <= 2 * passed_s + 2  # twice a second, whoever reads
        monkeypatch.setattr("mpsd.status.page.feed._LINGER_S", 0.1)
        await until(lambda: not site.source.is_open, "nobody reads, so nobody looks")


async def test_who_waits_for_many_answers_gets_no_more_until_one_is_there() -> None:
    async with on_site(None) as site:
        asked = [asyncio.create_task(site.ask()) for _reader in range(MOST_OF_ASKER + 1)]
        done, waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        (refused,) = [one.result() for one in done]
        assert refused.status == 429
        assert refused.text.startswith(f"this machine waits for {MOST_OF_ASKER} answers already")
        # its place is for those who read metrics
        assert refused.headers["Connection"] == "close"
        site.source.show(page_of(node(GPUS, [])))
        assert {one.status for one in await asyncio.gather(*waiting)} == {200}
        assert (await site.ask()).status == 200


async def test_a_stop_ends_what_waits_for_a_view() -> None:
    async with on_site(None) as site:
        waiting = asyncio.create_task(site.ask())
        await until(lambda: site.source.is_open, "it waits")
        await site.stop()
        assert (await waiting).status == 503
        assert not site.source.is_open


async def test_readers_who_take_nothing_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_SLOW_S", 0.5)

    # megabytes, of which the kernel takes but a part
    async with on_site(page_of(crowd(64, 200))) as site:
        assert (await site.ask()).status == 200
        with ExitStack() as opened:
            for _place in range(MOST_OF_ASKER):
                lazy = opened.enter_context(socket.socket())
                lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                lazy.connect(("127.0.0.1", site.port))
                lazy.sendall(b"GET /v1/page HTTP/1.1\r\nHost: localhost\r\n\r\n")
            statuses = [(await site.ask()).status]
            while statuses[-1] != 200 or 429 not in statuses:
                statuses.append((await site.ask()).status)


async def test_the_page_is_one_file_that_no_cache_keeps_and_that_may_ask_nobody_else() -> None:
    async with on_site(None) as site:
        async with site.session.get(site.url("/")) as answer:
            assert answer.status == 200
            assert answer.content_type == "text/html"
            assert answer.headers["Cache-Control"] == "no-store"
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Content-Security-Policy"] == server.page().policy
            html = await answer.text()
        async with site.session.get(
            site.url("/"), headers={"Accept-Encoding": "identity"}
        ) as plain:
            assert await plain.text() == html
