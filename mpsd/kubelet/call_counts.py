"""Counts kubelet's calls to the device plugin, and the containers that it holds back.

One rule: a container is held back from the refusal of its start until it is let start, or is asked for no more.
"""

import time
from collections.abc import Callable, Sequence

from mpsd.kubelet.rules.plugin_calls import HELD_BACK_S, Call, CallOutcome, PluginCalls
from mpsd.model.metrics import CALL_BOUNDS_S, no_durations


class PluginCallCounts:
    """now: seconds of a clock that is never set."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._counts = {(call, outcome): 0 for call in Call for outcome in CallOutcome}
        self._times = dict.fromkeys(Call, no_durations(CALL_BOUNDS_S))
        self._held_back: dict[tuple[str, ...], float] = {}  # by the devices of the container, when it was refused

    def note(self, call: Call, ids: Sequence[str], outcome: CallOutcome, took_s: float) -> None:
        """ids: of the container's devices."""
        self._counts[call, outcome] += 1
        self._times[call] = self._times[call].with_one(took_s, CALL_BOUNDS_S)
        if call is Call.PRE_START:
            container = tuple(sorted(ids))
            if outcome is CallOutcome.ANSWERED:
                self._held_back.pop(container, None)
            else:
                self._held_back[container] = self._now()

    @property
    def now(self) -> PluginCalls:
        oldest = self._now() - HELD_BACK_S
        self._held_back = {container: at for container, at in self._held_back.items() if at >= oldest}
        return PluginCalls(dict(self._counts), dict(self._times), len(self._held_back))
