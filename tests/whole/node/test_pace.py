"""What is asked for again and again happens now and then, and once more in the end."""

import asyncio

from mpsd.platform.event_loop import Throttle, until


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
