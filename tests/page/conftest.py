"""A real Chromium for all tests of the page; skipped where none can be fetched."""

from collections.abc import Iterator

import pytest

from tests.page.browser import Browser, browser, why_not


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    if missing := why_not():
        pytest.skip(missing)
    with browser() as opened:
        yield opened


@pytest.fixture
def window(chromium: Browser) -> Browser:
    """As big as a desk's, light, in English, and with nothing complained of before."""
    chromium.as_new()
    return chromium
