"""Waits for what must come true, with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_LOOK_EVERY_S = 0.1


def eventually(look: Callable[[], T], what: str, *, within_s: float = 30.0) -> T:
    """What `look` gives once it is true; an AssertionError of `look` counts as not yet."""
    deadline = time.monotonic() + within_s
    last: object = None
    while time.monotonic() < deadline:
        try:
            last = found = look()
            if found:
                return found
        except AssertionError as error:
            last = error
        time.sleep(_LOOK_EVERY_S)
    raise AssertionError(f"not within {within_s:g} s: {what}; last seen: {last!r}")


def never(look: Callable[[], bool], what: str, *, for_s: float) -> None:
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        assert not look(), what
        time.sleep(_LOOK_EVERY_S)
