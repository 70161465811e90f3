"""Takes the pictures of docs/page.md, of a simulated node and a simulated cluster: `python -m
tests.page.screenshots`.

One rule: what is in a picture is what the page shows of these views; nothing in it is painted.
"""

import time
from pathlib import Path

from mpsd.status.page.rules.view import PageView
from tests.page.browser import PHONE, Browser, browser
from tests.page.site import played
from tests.page.worlds import cluster, troubled

FOLDER = Path(__file__).parents[2] / "docs" / "images"
DESK, LONGEST_BYTES = (1280, 900), 200_000
_PICTURES = (
    ("page-light.png", "light", DESK, "en"),
    ("page-dark.png", "dark", DESK, "en"),
    ("page-chinese.png", "light", DESK, "zh"),
    ("page-phone.png", "dark", PHONE, "en"),
)


def take(
    window: Browser, name: str, page: PageView, scheme: str, size: tuple[int, int], language: str
) -> None:
    with played(page) as site:
        window.size(*size)
        window.colours(scheme)
        window.open(site.url)
        window.script(f"document.querySelector('[data-language={language}]').click()")
        window.until(
            "return document.querySelector('.gpu') && document.body.className === 'live'",
            "it is drawn",
        )
        window.until(
            "return document.getAnimations().every((one) => one.playState !== 'running')",
            "nothing moves",
        )
        there = FOLDER / name
        window.shoot(there)
        assert there.stat().st_size < LONGEST_BYTES, f"{there} is too large"
        print(f"{there}: {there.stat().st_size // 1000} kB")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with browser() as window:
        for name, scheme, size, language in _PICTURES:
            take(window, name, troubled(time.time()), scheme, size, language)
        take(window, "page-cluster.png", cluster(time.time()), "light", DESK, "en")


if __name__ == "__main__":
    main()
