"""What readers of the page are told over HTTP, and what they may cost."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from mpsd.platform.listener import Listener, ListenerSettings
from mpsd.platform.settings import ListenAddress
from mpsd.status.page import server
from mpsd.status.page.feed import MOST_READERS
from mpsd.status.page.rules.view import PageView
from mpsd.status.page.server import PageApi
from tests.model.worlds import GPUS
from tests.page_worlds import GIB, Played, crowd, granted, node, page_of

DEADLINE_S = 30.0
Event = tuple[str, dict[str, Any]]


class Site:
    """The page of a source, served in this process."""

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

    async def open(self, opened: AsyncExitStack) -> aiohttp.ClientResponse:
        return await opened.enter_async_context(self.session.get(self.url("/v1/page/changes")))


def on_site(first: PageView | None, test: Callable[[Site], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(2 * DEADLINE_S), aiohttp.ClientSession() as session:
            site = Site(Played(first), session)
            await site.start()
            try:
                await test(site)
            finally:
                await site.stop()

    asyncio.run(main())


async def events(answer: aiohttp.ClientResponse) -> AsyncIterator[Event]:
    while line := await answer.content.readline():
        name = line.decode().removeprefix("event: ").strip()
        data = (await answer.content.readuntil(b"\n\n")).decode().removeprefix("data: ")
        yield name, json.loads(data)


async def until(condition: Callable[[], object], what: str) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < DEADLINE_S, what
        await asyncio.sleep(0.02)


def test_a_reader_is_told_everything_first_and_then_what_has_changed() -> None:
    async def test(site: Site) -> None:
        async with AsyncExitStack() as opened:
            told = events(await site.open(opened))
            name, whole = await anext(told)
            assert (name, whole["whole"], len(whole["put"]["gpus"])) == ("page", True, 2)

            site.source.show(
                page_of(
                    node(GPUS, [granted(GPUS[0], "train", GIB), granted(GPUS[1], "other", 2 * GIB)])
                )
            )
            name, change = await anext(told)

            assert (name, change["whole"], change["gone"]) == ("page", False, {})
            assert [gpu["label"] for gpu in change["put"]["gpus"]] == ["gpu1"]
            assert [one["name"] for one in change["put"]["gpus"][0]["slices"]] == ["default/other"]

    on_site(page_of(node(GPUS, [granted(GPUS[0], "train", GIB)])), test)


def test_what_is_gone_is_told_by_its_id() -> None:
    async def test(site: Site) -> None:
        async with AsyncExitStack() as opened:
            told = events(await site.open(opened))
            _name, whole = await anext(told)
            (note,) = whole["put"]["notes"]
            site.source.show(page_of(node(GPUS, [])))
            _name, change = await anext(told)
            assert change["gone"] == {"notes": [note["id"]]}

    on_site(page_of(replace(node(GPUS, []), unknown=("NVML says nothing",))), test)


def test_a_view_that_differs_in_nothing_but_the_time_is_not_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "BEAT_S", 1.0)
    first = page_of(node(GPUS, []))

    async def test(site: Site) -> None:
        async with AsyncExitStack() as opened:
            told = events(await site.open(opened))
            await anext(told)
            later = replace(first, head=replace(first.head, at=first.head.at + 7))
            site.source.show(later)
            name, head = await anext(told)
            while head["at"] == first.head.at:
                assert name == "beat"
                name, head = await anext(told)
            assert (name, head["at"]) == ("beat", later.head.at)

    on_site(first, test)


def test_who_comes_later_is_told_when_it_was_seen_last_though_nothing_has_changed() -> None:
    first = page_of(node(GPUS, []))
    later = replace(first, head=replace(first.head, at=first.head.at + 300))

    async def test(site: Site) -> None:
        async with AsyncExitStack() as opened:
            _name, whole = await anext(events(await site.open(opened)))
            assert whole["head"]["at"] == first.head.at
            site.source.show(later)
            await until(lambda: site.api.shown is later, "it is seen anew")
            _name, whole = await anext(events(await site.open(opened)))
            assert whole["head"]["at"] == later.head.at

    on_site(first, test)


def test_all_readers_share_one_look_and_it_ends_with_the_last_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mpsd.status.page.feed._LINGER_S", 0.1)

    async def test(site: Site) -> None:
        assert site.source.looks == 0
        async with AsyncExitStack() as opened:
            readers = [events(await site.open(opened)) for _reader in range(8)]
            firsts = [await anext(reader) for reader in readers]
            assert all(first == firsts[0] for first in firsts)
            assert site.source.is_open
            began, looks = time.monotonic(), site.source.looks
            await until(lambda: site.source.looks > looks + 1, "it goes on looking")
            passed_s = time.monotonic() - began
            assert site.source.looks - looks <= 2 * passed_s + 2  # twice a second, whoever reads
        await until(lambda: not site.source.is_open, "nobody reads, so nobody looks")

    on_site(page_of(crowd(2, 4)), test)


def test_one_reader_too_many_is_told_so_and_comes_in_when_another_has_gone() -> None:
    async def test(site: Site) -> None:
        async with AsyncExitStack() as opened:
            for _reader in range(MOST_READERS - 1):
                await anext(events(await site.open(opened)))
            last = await site.session.get(site.url("/v1/page/changes"))
            await anext(events(last))
            for path in ("/v1/page/changes", "/v1/page"):
                async with site.session.get(site.url(path)) as refused:
                    assert refused.status == 429
                    said = await refused.text()
                    assert said.startswith(
                        f"this machine reads the page {MOST_READERS} times already, of 32 that may"
                    )
                    assert "close a page that nobody looks at" in said
                    # its place is for those who read metrics
                    assert refused.headers["Connection"] == "close"
            last.close()
            while True:
                async with site.session.get(site.url("/v1/page")) as answer:
                    if answer.status == 200:
                        break
                await asyncio.sleep(0.05)

    on_site(page_of(node(GPUS, [])), test)


def test_a_stop_ends_every_stream_at_once() -> None:
    async def test(site: Site) -> None:
        async with AsyncExitStack() as opened:
            readers = [events(await site.open(opened)) for _reader in range(4)]
            for reader in readers:
                await anext(reader)
            await site.stop()
            for reader in readers:
                with pytest.raises(StopAsyncIteration):
                    await anext(reader)
            assert not site.source.is_open

    on_site(page_of(node(GPUS, [])), test)


def test_a_reader_who_takes_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_SLOW_S", 0.5)

    async def test(site: Site) -> None:
        with socket.socket() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.connect(("127.0.0.1", site.port))
            lazy.sendall(b"GET /v1/page/changes HTTP/1.1\r\nHost: localhost\r\n\r\n")
            # as fast as it is looked at; megabytes until the kernel takes no more
            for round_ in range(10_000):
                site.source.show(page_of(crowd(8, 40, used_mib=round_)))
                await asyncio.sleep(0.02)
                if not site.api.readers:
                    break
            assert site.api.readers == 0

    monkeypatch.setattr("mpsd.status.page.feed.SHORTEST_PAUSE_S", 0.01)
    on_site(page_of(crowd(8, 40)), test)


def test_the_page_is_one_file_that_no_cache_keeps_and_that_may_ask_nobody_else() -> None:
    async def test(site: Site) -> None:
        async with site.session.get(site.url("/")) as answer:
            assert answer.status == 200
            assert answer.content_type == "text/html"
            assert answer.headers["Cache-Control"] == "no-store"
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "connect-src 'self'" in policy
            assert "unsafe" not in policy
            html = await answer.text()
        async with site.session.get(
            site.url("/"), headers={"Accept-Encoding": "identity"}
        ) as plain:
            assert await plain.text() == html

    on_site(None, test)


def test_what_is_shown_can_be_had_as_json_and_nothing_known_is_no_empty_view() -> None:
    async def test(site: Site) -> None:
        async with site.session.get(site.url("/v1/page")) as answer:
            assert answer.status == 200
            told = await answer.json()
        assert told["version"] == "v1"
        assert [gpu["label"] for gpu in told["gpus"]] == ["gpu0", "gpu1"]

    async def nothing(site: Site) -> None:
        async with site.session.get(site.url("/v1/page")) as answer:
            assert answer.status == 503
            assert await answer.text() == "nothing is known yet\n"

    on_site(page_of(node(GPUS, [])), test)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "_FIRST_VIEW_S", 0.2)
        on_site(None, nothing)
