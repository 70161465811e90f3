"""Waiting: until it is so, or until the deadline, which says what was waited for; and what is asked
for again and again."""

import asyncio

import pytest

from mpsd.platform.event_loop import Throttle, until


def test_a_wait_ends_at_its_deadline_and_says_for_what() -> None:
    with pytest.raises(TimeoutError, match=r"waited 0.1 s until pigs fly"):
        asyncio.run(until(lambda: False, 0.1, "pigs fly"))


def test_the_first_is_at_once_and_all_that_follow_are_one() -> None:
    async def story() -> list[float]:
        loop, acted = asyncio.get_running_loop(), list[float]()
        pace = Throttle(lambda: acted.append(loop.time()), 0.2)
        pace.ask()
        for _turn_of_the_loop in range(2):
            await asyncio.sleep(0)
        assert len(acted) == 1
        for _ in range(5):
            pace.ask()
            await asyncio.sleep(0)
        await until(lambda: len(acted) == 2, 10, "it happens again")
        return acted

    first, second = asyncio.run(story())
    assert second - first >= 0.2
