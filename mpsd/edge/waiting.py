"""Waiting for something to become true, with a deadline.

One rule: no wait without one, and what was waited for is in the error.
"""

from collections.abc import Callable

from tenacity import AsyncRetrying, RetryError, retry_if_result, stop_after_delay, wait_fixed


async def until(condition: Callable[[], object], deadline_s: float, what: str, look_again_s: float = 0.002) -> None:
    """Returns once `condition()` is true; TimeoutError saying `what` after `deadline_s` seconds."""

    async def look() -> bool:
        return bool(condition())

    waiting = AsyncRetrying(
        stop=stop_after_delay(deadline_s), wait=wait_fixed(look_again_s), retry=retry_if_result(lambda seen: not seen)
    )
    try:
        await waiting(look)
    except RetryError:
        raise TimeoutError(f"waited {deadline_s:g} s until {what}") from None
