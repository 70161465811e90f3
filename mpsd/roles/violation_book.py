"""What the watchdog has seen so far: how often it looked, how often what happened, and the last of it.

One rule: it begins with the agent and knows nothing of before; what is told of it says since when.
"""

from collections import Counter, deque
from dataclasses import dataclass

from mpsd.core.node_status import ViolationCount, ViolationsStatus, ViolationStatus
from mpsd.core.policy import Response
from mpsd.core.violations import Kind, Violation

_LAST = 20
_LATE_S = 0.25  # four looks a second are what is promised


@dataclass(slots=True)
class Entry:
    """at: seconds since 1970. outcome: how it ended; empty until it is known. told: what became of it, as told last."""

    violation: Violation
    at: float
    outcome: str = ""
    told: str = ""


class ViolationBook:
    """since: seconds since 1970 when the watch began."""

    def __init__(self, since: float) -> None:
        self._since = since
        self._counts: Counter[tuple[Kind, Response]] = Counter()
        self._last: deque[Entry] = deque(maxlen=_LAST)
        self._looks = 0
        self._looked_at: float | None = None  # None before the first look
        self._longest_pause_s = 0.0
        self._late_looks = 0

    def looked(self, began: float) -> None:
        """began: when, by a clock that never goes back."""
        if self._looked_at is not None:
            pause_s = began - self._looked_at
            self._longest_pause_s = max(self._longest_pause_s, pause_s)
            self._late_looks += pause_s > _LATE_S
        self._looks, self._looked_at = self._looks + 1, began

    def add(self, violation: Violation, at: float) -> Entry:
        """One that is there again is the one that was there, and is not counted again."""
        if violation.again:
            for entry in reversed(self._last):
                if (entry.violation.kind, entry.violation.client.process) == (violation.kind, violation.client.process):
                    entry.violation = violation
                    return entry
        self._counts[violation.kind, violation.response] += 1
        entry = Entry(violation, at)
        self._last.append(entry)
        return entry

    def status(self, nvml_s: float, unjudged: str) -> ViolationsStatus:
        return ViolationsStatus(
            since=self._since,
            looks=self._looks,
            longest_pause_s=round(self._longest_pause_s, 3),
            late_looks=self._late_looks,
            nvml_s=round(nvml_s, 3),
            counts=tuple(ViolationCount(kind, response, n) for (kind, response), n in sorted(self._counts.items())),
            last=tuple(map(_status, self._last)),
            unjudged=unjudged,
        )


def _status(entry: Entry) -> ViolationStatus:
    one = entry.violation
    return ViolationStatus(
        at=entry.at,
        kind=one.kind,
        action=one.response,
        gpu=one.gpu,
        pid=one.client.pid,
        command=one.client.command,
        grant=one.grant,
        namespace=one.pod.namespace if one.pod else None,
        pod=one.pod.name if one.pod else None,
        message=str(one),
        outcome=entry.outcome,
    )
