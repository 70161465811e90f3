"""Counts of kubelet's calls to the device plugin, by outcome. Every pair is there from the start,
with 0."""

from collections.abc import Callable, Sequence
from enum import StrEnum

from mpsd.model.metrics import CALL_BOUNDS_S, no_durations

HELD_BACK_S = 360.0  # kubelet tries a start that was refused again after 5 minutes at most


class Call(StrEnum):
    """A call, by its name in kubelet's API."""

    PREFER = "GetPreferredAllocation"
    ALLOCATE = "Allocate"
    PRE_START = "PreStartContainer"


class CallOutcome(StrEnum):
    """The result of a call. REFUSED: for good, for what was asked. HELD_BACK: for now; kubelet
    retries. LATE: no answer in time. FAILED: by a fault of mpsd's own; its log says which."""

    ANSWERED = "answered"
    REFUSED = "refused"
    HELD_BACK = "held-back"
    LATE = "late"
    FAILED = "failed"


class PluginCalls:
    """The counts and times since the agent started. now: a monotonic clock, in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.counts = {(call, outcome): 0 for call in Call for outcome in CallOutcome}
        self.times = dict.fromkeys(Call, no_durations(CALL_BOUNDS_S))
        # by the devices of the container, when it was refused
        self._held_back: dict[tuple[str, ...], float] = {}

    def note(self, call: Call, ids: Sequence[str], outcome: CallOutcome, took_s: float) -> None:
        self.counts[call, outcome] += 1
        self.times[call] = self.times[call].with_one(took_s, CALL_BOUNDS_S)
        if call is Call.PRE_START:
            container = tuple(sorted(ids))
            if outcome is CallOutcome.ANSWERED:
                self._held_back.pop(container, None)
            else:
                self._held_back[container] = self._now()

    @property
    def held_back(self) -> int:
        """Containers whose last start was refused and that kubelet still retries."""
        oldest = self._now() - HELD_BACK_S
        self._held_back = {
            container: at for container, at in self._held_back.items() if at >= oldest
        }
        return len(self._held_back)
