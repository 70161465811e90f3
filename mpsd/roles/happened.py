"""What an agent remembers of what happened on its node, for whoever looks at its page.

One rule: it is bounded and begins with the agent; programs that are told no again and again push nothing else out.
"""

import time
from collections import deque
from collections.abc import Sequence

from mpsd.core.events import Happening
from mpsd.core.node_happenings import happenings
from mpsd.core.node_view import NodeView
from mpsd.core.page_lately import REFUSED, Happened
from mpsd.edge.kube_time import stamp

_KEPT, _REFUSALS_KEPT = 80, 20


class HappenedBook:
    """since: seconds since 1970 when it began."""

    def __init__(self) -> None:
        self.since = time.time()
        self._kept: deque[Happened] = deque(maxlen=_KEPT)
        self._refusals: deque[Happened] = deque(maxlen=_REFUSALS_KEPT)

    def see(self, before: NodeView | None, now: NodeView) -> None:
        """Two looks that follow each other. before: None for the first look."""
        for happening in happenings(before, now, "", stamp):
            self.note(happening)

    def note(self, happening: Happening) -> None:
        subject = happening.subject
        where = f"{subject.namespace}/{subject.name}" if subject.namespace else subject.name
        at = time.time() if happening.at is None else happening.at
        self._kept.append(Happened(at, happening.reason.value, where, happening.message, subject.uid))

    def refused(self, command: str, reason: str) -> None:
        self._refusals.append(Happened(time.time(), REFUSED, command, reason))

    def all(self) -> Sequence[Happened]:
        return (*self._kept, *self._refusals)
