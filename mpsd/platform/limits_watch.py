"""Keeps the limits in force as they are on disk, while a process runs.

One rule: a changed policy counts within seconds; a bad one leaves the last good one in force, and is said once.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from mpsd.model.policy import Policy
from mpsd.platform.limits_files import LimitsFiles
from mpsd.platform.logs import Logger

_LOOK_S = 2.0


async def watch_limits(files: LimitsFiles, log: Logger, looked: Callable[[], None] = lambda: None) -> None:
    """Until it is cancelled. looked: called after every look."""
    while True:
        await asyncio.sleep(_LOOK_S)
        wrong = files.read_again()
        looked()
        if wrong:
            log.error("limits kept", reason=str(wrong))


# The policy in force, with the resources that this process began with.
#
# One rule: what kubelet was offered under a name and in a unit is worth the same for as long as this process runs. Were
# it counted anew while pods hold it, every one of them could be over its grant from one look to the next.


class PinnedResources:
    """To be called for the policy; the very same as before while nothing has changed."""

    def __init__(self, policy: Callable[[], Policy], log: Logger) -> None:
        self._policy = policy
        self._log = log
        self._seen = self._pinned = policy()

    def __call__(self) -> Policy:
        now = self._policy()
        if now is not self._seen:
            before, self._seen, self._pinned = self._seen, now, replace(now, resources=self._pinned.resources)
            if now.resources not in (before.resources, self._pinned.resources):
                self._log.warning("resources kept", reason="others count when the agent starts again, on an empty node")
        return self._pinned
