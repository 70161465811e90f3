"""`GET /`, the page, and `GET /v1/page`, which it asks again and again. A reader who is gone, slow
or one too many costs nobody else anything."""

import asyncio
import base64
import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from aiohttp import web

from mpsd.model.problem import shown_name
from mpsd.platform.listener import Handler, asker
from mpsd.status.page.feed import PageFeed, ViewSource

_LANGUAGES = ("en", "zh")
# in this order
SCRIPTS = ("words", "elements", "known", "connection", "top", "lines", "gpus", "nodes", "drawing")


@dataclass(frozen=True, slots=True)
class Page:
    """The page as browsers get it: one file, made of those in `static`. policy: its
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
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)};"
        " connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors"
        " 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return Page(html.encode(), gzip.compress(html.encode()), policy)


def by_language(words: dict[str, list[str]]) -> dict[str, dict[str, str]]:
    columns = zip(*words.values(), strict=True)
    each = [dict(zip(words, column, strict=True)) for column in columns]
    return dict(zip(_LANGUAGES, each, strict=True))


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


MOST_ANSWERS = 32  # under way at a time
MOST_OF_ASKER = 8  # of these, so that nobody keeps all others out
_SLOW_S = 10.0  # that a reader may need to take what it is sent
_FIRST_VIEW_S = 10.0
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Vary": "Accept-Encoding",
}


class PageApi:
    def __init__(self, source: ViewSource) -> None:
        self._feed = PageFeed(source)
        self._under_way: Counter[str] = Counter()  # answers, by who asked

    @property
    def routes(self) -> Mapping[str, Handler]:
        return {"GET /": self._page, "GET /v1/page": self._view}

    async def start(self) -> None:
        """Nothing is done before somebody reads."""

    async def stop(self) -> None:
        await self._feed.close()

    async def _page(self, request: web.Request) -> web.StreamResponse:
        file = page()
        policy = {"Content-Security-Policy": file.policy}
        return await _sent(request, "text/html", file.html, file.zipped, policy)

    async def _view(self, request: web.Request) -> web.StreamResponse:
        """304 where the reader has it; 429 or 503 where too many ask, 503 where nothing is known
        within the deadline."""
        who = asker(request)
        if self._under_way[who] >= MOST_OF_ASKER:
            why = f"{shown_name(who)} waits for {MOST_OF_ASKER} answers already"
            return _refused(f"{why}; close a page that nobody looks at, or try again later", 429)
        if self._under_way.total() >= MOST_ANSWERS:
            return _refused(f"{MOST_ANSWERS} answers are under way already; try again later")
        self._under_way[who] += 1
        try:
            view = await self._feed.latest(_FIRST_VIEW_S)
            if view is None:
                return _refused("nothing is known yet")
            tag = {"ETag": view.tag}
            if request.headers.get("If-None-Match") == view.tag:
                return web.Response(status=304, headers=_HEADERS | tag)
            return await _sent(request, "application/json", view.text, view.zipped, tag)
        finally:
            self._under_way[who] -= 1
            self._under_way += Counter()  # forgets who has none


async def _sent(
    request: web.Request, kind: str, text: bytes, zipped: bytes, headers: Mapping[str, str]
) -> web.StreamResponse:
    answer = web.StreamResponse(headers={**_HEADERS, **headers})
    answer.content_type = kind
    answer.charset = "utf-8"
    body = text
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        body = zipped
        answer.headers["Content-Encoding"] = "gzip"
    answer.content_length = len(body)
    try:
        async with asyncio.timeout(_SLOW_S):
            await answer.prepare(request)
            await answer.write(body)
            await answer.write_eof()
    except (ConnectionError, TimeoutError):
        if request.transport:
            request.transport.abort()  # what it has not taken yet is not kept for it
    return answer


def _refused(why: str, status: int = 503) -> web.Response:
    """It keeps no connection, and leaves its place on the port to those who read metrics."""
    answer = web.Response(status=status, text=f"{why}\n", headers=_HEADERS | {"Retry-After": "10"})
    answer.force_close()
    return answer
