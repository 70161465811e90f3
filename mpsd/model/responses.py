"""What may be done about a violation, in the words of the policy.

One rule: whoever only shows what was done learns these words without the policy's reader, which takes a tenth of a
second to load.
"""

from collections.abc import Mapping
from enum import StrEnum


class Response(StrEnum):
    """What is done about a violation."""

    OBSERVE = "observe"
    WARN = "warn"
    KILL = "kill"
    EVICT = "evict"

    @property
    def ends(self) -> bool:
        """Whether a process is to be ended."""
        return self in {Response.KILL, Response.EVICT}

    @property
    def tells(self) -> bool:
        """Whether anybody but who looks hears of it."""
        return self is not Response.OBSERVE


# In the words of people, by the policy's.
DONE: Mapping[str, str] = {
    Response.OBSERVE: "only seen",
    Response.WARN: "told of",
    Response.KILL: "to be ended",
    Response.EVICT: "to be ended and evicted",
}
