"""The policy in force, with the resources that this process began with.

One rule: what kubelet was offered under a name and in a unit is worth the same for as long as this process runs. Were
it counted anew while pods hold it, every one of them could be over its grant from one look to the next.
"""

from collections.abc import Callable
from dataclasses import replace

from mpsd.model.policy import Policy
from mpsd.platform.logs import Logger


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
