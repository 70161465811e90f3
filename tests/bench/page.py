"""How soon a Chromium shows the page of 8 GPUs with 40 clients each, beside a blank page of the
same server, in turns.

Both are counted by the browser, from when it was told to open the address until the page's own
script marks a view: the blank page's only word is that mark. Skipped, with the reason, where no
Chromium can be had.
"""

import statistics
import sys
from collections.abc import Iterator

from aiohttp import web

from tests.bench.rows import Row, show
from tests.page.browser import Browser, browser, why_not
from tests.page.site import played
from tests.page_worlds import crowd, page_of

GPUS, CLIENTS_A_GPU, ROUNDS = 8, 40, 15
MOST_BLANKS = 12.0
_MARKED = "return performance.getEntriesByName('first view').length && "
_ALL = f"document.querySelectorAll('.bar:not(.threads) .slice').length === {GPUS * CLIENTS_A_GPU}"
_BLANK = (
    "<!doctype html><title>blank</title><p>blank<script>performance.mark('first view')</script>"
)


def page() -> Iterator[tuple[str, Row]]:
    """The median of the first view, and how many blank pages that is; nothing where there is no
    browser."""
    if missing := why_not():
        print(f"the page is not measured: {missing}", file=sys.stderr)
        return
    with (
        played(page_of(crowd(GPUS, CLIENTS_A_GPU)), {"GET /blank": _blank}) as site,
        browser() as window,
    ):
        views, blanks = [], []
        for _round in range(ROUNDS):
            views.append(_opened(window, site.url, _ALL))
            site.show(page_of(crowd(GPUS, CLIENTS_A_GPU)))
            blanks.append(_opened(window, f"{site.url}blank", "true"))
    view, blank = statistics.median(views), statistics.median(blanks)
    about = (
        f"first view of {GPUS} GPUs × {CLIENTS_A_GPU} clients in Chromium; baseline: a blank page"
    )
    yield (
        "page_first_view",
        Row(view, "ms", None, blank, f"{about}; {min(views):.0f} to {max(views):.0f} ms"),
    )
    yield "page_blanks", Row(view / blank, "blanks", MOST_BLANKS, 1.0, "the same, in blank pages")


async def _blank(_request: web.Request) -> web.Response:
    return web.Response(
        text=_BLANK, content_type="text/html", headers={"Cache-Control": "no-store"}
    )


def _opened(window: Browser, url: str, drawn: str) -> float:
    """Milliseconds until the mark."""
    window.as_new()
    window.open(url)
    window.until(f"{_MARKED}{drawn}", "the view is drawn")
    return float(window.script("return performance.getEntriesByName('first view')[0].startTime"))


if __name__ == "__main__":
    show(dict(page()))
