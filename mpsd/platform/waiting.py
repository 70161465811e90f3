"""Waits until something is true, always with a deadline; the error names what was waited for."""

from collections.abc import Callable
from typing import Any

from tenacity import AsyncRetrying, RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

_LOOK_AGAIN_S = 0.002


async def until(
    condition: Callable[[], object], deadline_s: float, what: str, look_again_s: float = _LOOK_AGAIN_S
) -> None:
    """Returns once `condition()` is true; TimeoutError saying `what` after `deadline_s` seconds."""

    async def look() -> bool:
        return bool(condition())

    try:
        await AsyncRetrying(**_while_false(deadline_s, look_again_s))(look)
    except RetryError:
        raise _too_long(deadline_s, what) from None


def wait_until(
    condition: Callable[[], object], deadline_s: float, what: str, look_again_s: float = _LOOK_AGAIN_S
) -> None:
    """As `until`, where there is no event loop."""
    try:
        Retrying(**_while_false(deadline_s, look_again_s))(lambda: bool(condition()))
    except RetryError:
        raise _too_long(deadline_s, what) from None


def _while_false(deadline_s: float, look_again_s: float) -> dict[str, Any]:
    return {
        "stop": stop_after_delay(deadline_s),
        "wait": wait_fixed(look_again_s),
        "retry": retry_if_result(lambda seen: not seen),
    }


def _too_long(deadline_s: float, what: str) -> TimeoutError:
    return TimeoutError(f"waited {deadline_s:g} s until {what}")
