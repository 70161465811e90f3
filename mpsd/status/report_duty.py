"""One thing that the API server is kept informed of, told again and again until it is heard.

One rule: what is told is what is true at that moment; nothing waits in a queue for the API server to return.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from mpsd.platform.kube import Away, KubeError
from mpsd.platform.logs import logger

_BACK_OFF = wait_random_exponential(multiplier=0.5, max=30.0)


class Duty(Protocol):
    """changed: set when there may be something to tell."""

    name: str
    changed: asyncio.Event

    def due_in_s(self) -> float | None:
        """None: nothing until `changed` is set."""

    async def tell(self) -> None:
        """Tells what is due. KubeError where that failed, and it is tried again."""


class Reachability:
    """Says once that the API server is away, and once that it is back; other troubles each when they begin and end."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._log = logger(role="agent", part="report")
        self._away: set[str] = set()  # the duties that do not reach it
        self._troubles: dict[str, str] = {}
        self.away_since: float | None = None

    def failed(self, duty: str, error: BaseException | None) -> None:
        if isinstance(error, Away):
            self._away.add(duty)
            if self.away_since is None:
                self.away_since = self._now()
                self._log.warning("API server away", reason=str(error), until="what is true then is told on its return")
        elif self._troubles.get(duty) != str(error):
            self._troubles[duty] = str(error)
            self._log.warning("not told", what=duty, reason=str(error))

    def succeeded(self, duty: str) -> None:
        self._away.discard(duty)
        if self.away_since is not None and not self._away:
            self._log.info("API server back", after_s=round(self._now() - self.away_since))
            self.away_since = None
        if self._troubles.pop(duty, None):
            self._log.info("told again", what=duty)


async def keep(duty: Duty, reachability: Reachability) -> None:
    """Tells what is due when it is due, until it is cancelled."""

    def note(attempt: RetryCallState) -> None:
        reachability.failed(duty.name, attempt.outcome.exception() if attempt.outcome else None)

    retrying = AsyncRetrying(wait=_BACK_OFF, retry=retry_if_exception_type(KubeError), before_sleep=note)
    while True:
        await _until_due(duty)
        await retrying(duty.tell)
        reachability.succeeded(duty.name)


async def _until_due(duty: Duty) -> None:
    while True:
        duty.changed.clear()
        due_s = duty.due_in_s()
        if due_s is not None and due_s <= 0:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(due_s):
                await duty.changed.wait()
