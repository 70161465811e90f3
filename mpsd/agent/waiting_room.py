"""The programs that asked for a grant and have no answer yet, in the order they came.

One rule: every one of them gets exactly one answer, or has gone.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from mpsd.agent.rules.decide import Admit, Refuse
from mpsd.model.identity import process_of
from mpsd.model.node_view import Waiting
from mpsd.platform.event_loop import DeathWatch


@dataclass(slots=True)
class _Seat:
    waiting: Waiting
    answer: asyncio.Future[Admit | Refuse]
    watch: DeathWatch


class WaitingRoom:
    """wake: called when somebody comes or goes."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._seats: dict[str, _Seat] = {}

    async def wait(self, waiting: Waiting) -> Admit | Refuse:
        """The answer, once there is one; when the caller is cancelled, the seat is free."""
        answer: asyncio.Future[Admit | Refuse] = asyncio.get_running_loop().create_future()
        watch = DeathWatch(process_of(waiting.holder), self._wake)
        self._seats[waiting.id] = _Seat(waiting, answer, watch)
        self._wake()
        try:
            return await answer
        finally:
            self._seats.pop(waiting.id, None)
            watch.close()
            self._wake()

    def everyone(self) -> tuple[Waiting, ...]:
        return tuple(
            replace(seat.waiting, holder_alive=seat.watch.alive)
            for seat in self._seats.values()
            if not seat.answer.done()
        )

    def expects(self, waiting_id: str) -> bool:
        """Whether somebody still waits for this answer."""
        seat = self._seats.get(waiting_id)
        return seat is not None and not seat.answer.done()

    def command(self, waiting_id: str) -> str:
        """Of the program; empty where nobody waits for an answer any more."""
        return self._seats[waiting_id].waiting.command if self.expects(waiting_id) else ""

    def answer(self, answer: Admit | Refuse) -> None:
        """Nothing happens when nobody waits for it any more."""
        waiting_id = answer.grant.id if isinstance(answer, Admit) else answer.id
        if self.expects(waiting_id):
            self._seats[waiting_id].answer.set_result(answer)

    def forget(self, waiting_id: str) -> None:
        seat = self._seats.pop(waiting_id, None)
        if seat:
            seat.answer.cancel()
