"""The page, and what it shows: `GET /`, `GET /v1/page` and, as it changes, `GET /v1/page/changes`.

It only looks, and a reader who is gone, slow or one too many costs nobody else anything.
"""

import asyncio
import base64
import contextlib
import gzip
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

import msgspec
from aiohttp import web

from mpsd.model.problem import shown_name
from mpsd.platform.listener import Handler, asker
from mpsd.status.page.feed import MOST_READERS, PageFeed, Shown, TooManyReaders, ViewSource
from mpsd.status.page.rules.view import PageView

_LANGUAGES = ("en", "zh")
# in this order
SCRIPTS = ("words", "elements", "known", "connection", "top", "lines", "gpus", "nodes", "drawing")


@dataclass(frozen=True, slots=True)
class Page:
    """The page as browsers get it: one file, made of those in mpsd/status/page/static. policy: its
    Content-Security-Policy, by which a browser runs these scripts and no others."""

    html: bytes
    zipped: bytes
    policy: str


@cache
def page() -> Page:
    folder = resources.files("mpsd") / "status" / "page" / "static"

    def read(name: str) -> str:
        return (folder / name).read_text("utf-8")

    style = read("page.css")
    words = read("words.json")
    script = "\n".join(read(f"{name}.js") for name in SCRIPTS)
    packed = json.dumps(by_language(json.loads(words)), ensure_ascii=False, separators=(",", ":"))
    packed = packed.replace("<", "\\u003c")  # it would end the element that the words are in
    html = read("page.html")
    for place, text in (("/* page.css */", style), ("/* page.js */", script), ("{}", packed)):
        before, found, after = html.partition(f">{place}<")
        if not found:
            raise ValueError(f"mpsd/status/page/static/page.html has no place for {place}")
        html = f"{before}>{text}<{after}"
    own = (
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors"
        " 'none'"
    )
    trusted = "require-trusted-types-for 'script'; trusted-types 'none'"
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; {own};"
        f" {trusted}"
    )
    return Page(html.encode(), gzip.compress(html.encode()), policy)


def by_language(words: dict[str, list[str]]) -> dict[str, dict[str, str]]:
    """words: by key, the word in each of the languages."""
    return {
        language: {key: row[place] for key, row in words.items()}
        for place, language in enumerate(_LANGUAGES)
    }


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


BEAT_S = 15.0  # between two signs of life on a stream
_LOOK_S = 1.0  # how soon a reader who has gone is noticed
_SLOW_S = 10.0  # that a reader may need to take what it is sent
_FIRST_VIEW_S = 10.0
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class PageApi:
    """Started and stopped with the servers that serve its routes, and stopped before them."""

    def __init__(self, source: ViewSource) -> None:
        self._feed = PageFeed(source)

    @property
    def routes(self) -> Mapping[str, Handler]:
        return {
            "GET /": self._page,
            "GET /v1/page": self._view,
            "GET /v1/page/changes": self._changes,
        }

    @property
    def readers(self) -> int:
        return self._feed.readers

    @property
    def shown(self) -> PageView | None:
        return self._feed.view

    async def start(self) -> None:
        """Nothing is done before somebody reads."""

    async def stop(self) -> None:
        await self._feed.close()

    async def _page(self, request: web.Request) -> web.Response:
        zipped = "gzip" in request.headers.get("Accept-Encoding", "")
        file = page()
        headers = _HEADERS | {"Content-Security-Policy": file.policy, "Vary": "Accept-Encoding"}
        headers |= {"Content-Encoding": "gzip"} if zipped else {}
        body = file.zipped if zipped else file.html
        return web.Response(body=body, content_type="text/html", charset="utf-8", headers=headers)

    async def _view(self, request: web.Request) -> web.Response:
        """429 or 503 where too many read, 503 where nothing is known within the deadline."""
        reader = asker(request)
        try:
            async with self._feed.reading(reader):
                await self._feed.news(None, _FIRST_VIEW_S)
                view = self._feed.view
        except TooManyReaders as full:
            return _too_many(reader, full.own)
        if view is None:
            return _refused("nothing is known yet")
        answer = web.Response(
            body=msgspec.json.encode(view) + b"\n",
            content_type="application/json",
            headers=_HEADERS,
        )
        answer.enable_compression()
        return answer

    async def _changes(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events: `page` with everything or what has changed, and `beat` where nothing
        has."""
        stream = web.StreamResponse(headers=_HEADERS | {"X-Accel-Buffering": "no"})
        stream.content_type = "text/event-stream"
        reader = asker(request)
        transport = request.transport
        try:
            async with self._feed.reading(reader, transport.abort if transport else None):
                await stream.prepare(request)
                with contextlib.suppress(ConnectionError, TimeoutError):
                    await self._tell(stream, request)
        except TooManyReaders as full:
            return _too_many(reader, full.own)
        if request.transport and not self._feed.closed:
            request.transport.abort()  # what a slow reader has not taken yet is not kept for it
        return stream

    async def _tell(self, stream: web.StreamResponse, request: web.Request) -> None:
        """Until the reader has gone or the feed ends. TimeoutError for a reader that is too
        slow."""
        shown: Shown | None = None  # what it was sent last
        sent_at = 0.0
        while (
            not self._feed.closed
            and request.transport is not None
            and not request.transport.is_closing()
        ):
            news = await self._feed.news(shown, _LOOK_S)
            if news is not None:
                shown, text = news
                await _write(stream, b"page", text)
            elif time.monotonic() - sent_at >= BEAT_S:
                await _write(
                    stream,
                    b"beat",
                    msgspec.json.encode(self._feed.view.head if self._feed.view else None),
                )
            else:
                continue
            sent_at = time.monotonic()


async def _write(stream: web.StreamResponse, event: bytes, text: bytes) -> None:
    async with asyncio.timeout(_SLOW_S):
        await stream.write(b"event: " + event + b"\ndata: " + text + b"\n\n")


def _too_many(reader: str, own: int) -> web.Response:
    """429 for a reader who has places already. Who has fewer than another gets one of those."""
    if own:
        times = "once" if own == 1 else f"{own} times"
        said = (
            f"{shown_name(reader)} reads the page {times} already, of {MOST_READERS} that may"
            " in all"
        )
        return _refused(f"{said}; close a page that nobody looks at, or try again later", 429)
    return _refused(f"{MOST_READERS} read the page already; close one of them, or try again later")


def _refused(why: str, status: int = 503) -> web.Response:
    """It keeps no connection, so that readers one too many leave places on the port for those who
    read metrics."""
    answer = web.Response(status=status, text=f"{why}\n", headers=_HEADERS | {"Retry-After": "10"})
    answer.force_close()
    return answer
