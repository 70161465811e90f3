"""Waiting: until it is so, or until the deadline, which says what was waited for."""

import asyncio

import pytest

from mpsd.platform.event_loop import until


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
