"""Waiting: until it is so, or until the deadline, which says what was waited for; and what is asked
for again and again."""

import asyncio

import pytest

from mpsd.platform.event_loop import Throttle, until


def test_a_wait_ends_when_it_is_so() -> None:
    answers = iter([False, False, True])
    asyncio.run(until(lambda: next(answers), 10, "the third answer"))
    assert list(answers) == []


def test_a_wait_ends_at_its_deadline_and_says_for_what() -> None:
    with pytest.raises(TimeoutError, match=r"waited 0.1 s until pigs fly"):
        asyncio.run(until(lambda: False, 0.1, "pigs fly"))


def test_what_goes_wrong_while_looking_is_not_taken_for_no() -> None:
    def broken() -> bool:
        raise OSError("no such socket")

    with pytest.raises(OSError, match="no such socket"):
        asyncio.run(until(broken, 1, "it is so"))


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
