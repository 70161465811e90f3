"""Which events are written, and when: the same thing is counted, not repeated.

No more than BURST + seconds / EVERY_S writes leave within any number of seconds; memory is bounded;
and the last count of everything that is remembered is written in the end.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace

from mpsd.model.events import Event, EventCount

BURST = 60  # a daemon that ends takes up to 60 clients with it, and each of their pods gets one
EVERY_S = 1.0  # between two writes once that is used up
REPEAT_S = 10.0  # from the first write of something to its first repetition, doubled each time
LONGEST_REPEAT_S = 600.0
REMEMBERED = 1000  # events
FORGET_S = 3600.0  # as long as the API server keeps an event by default
# different messages of one reason about one object; further ones are counted as one
MESSAGES = 10
SIMILAR = "(combined from similar events) "


@dataclass(frozen=True, slots=True)
class Writing:
    """written: the count that the API server knows. due: when the next write may be, and the one
    after it repeat_s later. noted: when it happened last; both as `now` of EventAggregator."""

    seen: EventCount
    written: int
    due: float
    repeat_s: float
    noted: float

    @property
    def is_unwritten(self) -> bool:
        return self.seen.count > self.written

    @property
    def is_new(self) -> bool:
        return self.written == 0


class EventAggregator:
    """now: of a clock that nobody sets."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Event, Writing] = OrderedDict()  # what happened last is last
        self._tokens = float(BURST)
        self._counted_at = float("-inf")
        self.dropped = 0  # events that are lost, because too much happened

    def note(self, event: Event, now: float, at: float) -> None:
        """at: when it happened, in seconds since 1970."""
        self._forget(now)
        event = self._combined(event)
        entry = self._entries.pop(event, None)
        if entry:
            seen = replace(entry.seen, last=max(at, entry.seen.last), count=entry.seen.count + 1)
            self._entries[event] = replace(entry, seen=seen, noted=now)
        else:
            self._entries[event] = Writing(EventCount(event, at, at, 1), 0, now, REPEAT_S, now)
        if len(self._entries) > REMEMBERED:
            self._drop()

    def next_due(self, now: float) -> float | None:
        """When the next write may be; None where everything is written."""
        if entry := self._next:
            return max(entry.due, now + max(0.0, 1.0 - self._tokens_at(now)) * EVERY_S)
        return None

    @property
    def _next(self) -> Writing | None:
        unwritten = [entry for entry in self._entries.values() if entry.is_unwritten]
        return min(unwritten, key=lambda entry: entry.due, default=None)

    def take(self, now: float) -> Writing | None:
        """The write that is to be made now; None where none may be."""
        entry = self._next
        # for the rounding of fractions that add up to one write
        if entry is None or entry.due > now or self._tokens_at(now) < 1.0 - 1e-6:
            return None
        self._tokens = self._tokens_at(now) - 1.0
        self._counted_at = now
        return entry

    def wrote(self, written: EventCount, now: float, known: int | None = None) -> None:
        """known: the count that the API server has now, where that is another than ours."""
        entry = self._entries.get(written.event)
        if entry is None:  # it was dropped in the meantime
            return
        ahead = (known or written.count) - written.count  # what an earlier agent had counted
        seen = replace(entry.seen, count=entry.seen.count + ahead)
        longer = min(LONGEST_REPEAT_S, entry.repeat_s * 2)
        self._entries[written.event] = Writing(
            seen, written.count + ahead, now + entry.repeat_s, longer, entry.noted
        )

    def gone(self, written: EventCount) -> None:
        entry = self._entries.get(written.event)
        if entry:
            self._entries[written.event] = replace(entry, written=0)

    def refused(self, written: EventCount) -> None:
        self._entries.pop(written.event, None)
        self.dropped += 1

    def _tokens_at(self, now: float) -> float:
        since = now - self._counted_at
        return min(float(BURST), self._tokens + since / EVERY_S)

    def _combined(self, event: Event) -> Event:
        """What stands for it where its object has had too many of this reason."""
        if event in self._entries:
            return event
        key = (event.subject, event.reason)
        others = sum((other.subject, other.reason) == key for other in self._entries)
        return event if others < MESSAGES else replace(event, message=SIMILAR + event.reason)

    def _forget(self, now: float) -> None:
        while self._entries:
            oldest = next(iter(self._entries.values()))
            if oldest.is_unwritten or now - oldest.noted < FORGET_S:
                return
            self._entries.popitem(last=False)

    def _drop(self) -> None:
        for event, entry in self._entries.items():
            if not entry.is_unwritten:
                del self._entries[event]
                return
        _event, oldest = self._entries.popitem(last=False)
        self.dropped += oldest.seen.count
