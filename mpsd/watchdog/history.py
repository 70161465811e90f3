"""What the watchdog has seen so far: how often it looked, how often what happened, and the last of it.

One rule: it begins with the agent and knows nothing of before; what is told of it says since when.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Collection
from dataclasses import dataclass, field

from mpsd.model.identity import ProcessIdentity
from mpsd.model.node_status import ViolationCount, ViolationsStatus, ViolationStatus
from mpsd.model.policy import Response
from mpsd.model.violations import Violation, ViolationKind
from mpsd.watchdog.rules.reported import MOST_LAST, LastViolation, NodeViolations, Tally

_LAST = 20
_REMEMBERED = 1024  # that may be there again; one that is, is seen every two seconds
_LATE_S = 0.25  # four looks a second are what is promised


@dataclass(slots=True)
class ViolationRecord:
    """at: seconds since 1970. outcome: how it ended; empty until it is known. told: what became of it, as told last.

    response: what was to be done when it was counted; a policy that has changed since changes no count.
    """

    violation: Violation
    at: float
    response: Response
    outcome: str = ""
    told: str = ""
    is_ended: bool = False


@dataclass(slots=True)
class _OfGrant:
    last: ViolationRecord
    counts: Counter[ViolationKind] = field(default_factory=Counter)


class ViolationHistory:
    """since: seconds since 1970 when the watch began."""

    def __init__(self, since: float) -> None:
        self._since = since
        self._counts: Counter[tuple[ViolationKind, Response]] = Counter()
        self._ended: Counter[tuple[ViolationKind, Response]] = Counter()
        self._last: deque[ViolationRecord] = deque(maxlen=_LAST)
        self._of_grants: dict[str, _OfGrant] = {}
        self._known: OrderedDict[tuple[ViolationKind, ProcessIdentity], ViolationRecord] = (
            OrderedDict()
        )  # what was seen last is last
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

    def add(self, violation: Violation, at: float) -> ViolationRecord:
        """One that is there again is the one that was there, and is not counted again."""
        key = violation.kind, violation.client.process
        known = self._known.get(key)
        if violation.again and known:
            known.violation = violation
            self._known.move_to_end(key)
            return known
        self._counts[violation.kind, violation.response] += 1
        entry = ViolationRecord(violation, at, violation.response)
        self._last.append(entry)
        if violation.grant:
            own = self._of_grants.setdefault(violation.grant, _OfGrant(entry))
            own.last = entry
            own.counts[violation.kind] += 1
        if violation.ends:  # nothing else is there again
            self._known[key] = entry
            self._known.move_to_end(key)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return entry

    def keep(self, grants: Collection[str]) -> None:
        """Forgets what each other grant did, which the node's own counts go on telling."""
        for gone in [one for one in self._of_grants if one not in grants]:
            del self._of_grants[gone]

    def ended(self, entry: ViolationRecord, took_s: float) -> None:
        """Its process and its memory are gone, so long after it was seen."""
        entry.outcome = f"ended, its memory back {took_s:g} s after it was seen"
        self._ended[entry.violation.kind, entry.response] += not entry.is_ended
        entry.is_ended = True

    def status(self, nvml_s: float, unjudged: str) -> ViolationsStatus:
        return ViolationsStatus(
            since=self._since,
            looks=self._looks,
            longest_pause_s=round(self._longest_pause_s, 3),
            late_looks=self._late_looks,
            nvml_s=round(nvml_s, 3),
            counts=tuple(ViolationCount(*what, n, self._ended[what]) for what, n in sorted(self._counts.items())),
            last=tuple(map(_status, self._last)),
            unjudged=unjudged,
        )

    def seen(self) -> NodeViolations:
        """For a cluster, in which nobody hears of a node's processes."""
        counts = Counter[ViolationKind]()
        for (kind, _response), count in self._counts.items():
            counts[kind] += count
        return NodeViolations(
            since=self._since,
            counts=counts,
            last=tuple(_happened(entry) for entry in [*self._last][-MOST_LAST:]),
            grants={one: Tally(Counter(own.counts), _happened(own.last)) for one, own in self._of_grants.items()},
        )


def _happened(entry: ViolationRecord) -> LastViolation:
    return LastViolation(entry.at, entry.violation.kind, entry.response, entry.violation.pod)


def _status(entry: ViolationRecord) -> ViolationStatus:
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
