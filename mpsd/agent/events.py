"""What an agent remembers of what happened on its node, for whoever looks at its page.

One rule: it is bounded and begins with the agent; neither programs that are told no or break their limits again and
again nor what kubelet tries again and again push anything else out.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from mpsd.agent.rules.node_events import OF_VIOLATIONS, REFUSED, PastEvent, happenings
from mpsd.model.events import Event
from mpsd.model.node_view import NodeView
from mpsd.platform.kube_time import stamp

_KEPT, _VIOLATIONS_KEPT, _REFUSALS_KEPT = 80, 20, 20


class EventHistory:
    """since: seconds since 1970 when it began."""

    def __init__(self) -> None:
        self.since = time.time()
        self._kept: deque[PastEvent] = deque(maxlen=_KEPT)
        self._violations: deque[PastEvent] = deque(maxlen=_VIOLATIONS_KEPT)
        self._refusals: deque[PastEvent] = deque(maxlen=_REFUSALS_KEPT)

    def see(self, before: NodeView | None, now: NodeView) -> None:
        """Two looks that follow each other. before: None for the first look."""
        for happening in happenings(before, now, "", stamp):
            self._kept.append(_happened(happening))

    def note(self, happening: Event) -> None:
        """What one look does not tell; the same once more is remembered as of now alone."""
        new = _happened(happening)
        kept = self._violations if new.what in OF_VIOLATIONS else self._kept
        again = next((one for one in kept if replace(one, at=new.at) == new), None)
        if again:
            kept.remove(again)
        kept.append(new)

    def refused(self, command: str, reason: str) -> None:
        self._refusals.append(PastEvent(time.time(), REFUSED, command, reason))

    def all(self) -> Sequence[PastEvent]:
        return (*self._kept, *self._violations, *self._refusals)


def _happened(happening: Event) -> PastEvent:
    subject = happening.subject
    where = f"{subject.namespace}/{subject.name}" if subject.namespace else subject.name
    at = time.time() if happening.at is None else happening.at
    return PastEvent(at, happening.reason.value, where, happening.message, subject.uid)
