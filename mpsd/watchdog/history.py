"""The watchdog's history since the agent began: how often it scanned, how often what happened, and the last of it."""

from collections import Counter, OrderedDict, deque
from collections.abc import Collection
from dataclasses import dataclass, field

from mpsd.model.identity import ProcessIdentity
from mpsd.model.node_status import ViolationCount, ViolationsStatus, ViolationStatus
from mpsd.model.policy import Response
from mpsd.model.violations import Violation, ViolationKind
from mpsd.watchdog.rules.reported import MOST_LAST, LastViolation, NodeViolations, Tally

_LAST = 20
_REMEMBERED = 1024  # processes that may be there again; one that is, is seen every two seconds
_LATE_S = 0.25  # at least four scans a second are documented


@dataclass(slots=True)
class ViolationRecord:
    """at: seconds since 1970. outcome: how it ended; empty until it is known. reported: its fate, as reported last.

    response: the policy's at the time; a policy that has changed since changes no count.
    """

    violation: Violation
    at: float
    response: Response
    outcome: str = ""
    reported: str = ""
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
        self._scans = 0
        self._scanned_at: float | None = None  # None before the first scan
        self._longest_pause_s = 0.0
        self._late_scans = 0

    def scanned(self, began: float) -> None:
        """began: monotonic seconds."""
        if self._scanned_at is not None:
            pause_s = began - self._scanned_at
            self._longest_pause_s = max(self._longest_pause_s, pause_s)
            self._late_scans += pause_s > _LATE_S
        self._scans, self._scanned_at = self._scans + 1, began

    def add(self, violation: Violation, at: float) -> ViolationRecord:
        """One that is still there is the same entry, and is not counted again."""
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
        if violation.ends:  # only these are seen again
            self._known[key] = entry
            self._known.move_to_end(key)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return entry

    def keep(self, grants: Collection[str]) -> None:
        """Drops the counts of all other grants; the node's own counts keep them."""
        for gone in [one for one in self._of_grants if one not in grants]:
            del self._of_grants[gone]

    def ended(self, entry: ViolationRecord, took_s: float) -> None:
        """Its process and its memory are gone after so many seconds."""
        entry.outcome = f"ended, its memory back {took_s:g} s after it was seen"
        self._ended[entry.violation.kind, entry.response] += not entry.is_ended
        entry.is_ended = True

    def status(self, nvml_s: float, unjudged: str) -> ViolationsStatus:
        return ViolationsStatus(
            since=self._since,
            looks=self._scans,
            longest_pause_s=round(self._longest_pause_s, 3),
            late_looks=self._late_scans,
            nvml_s=round(nvml_s, 3),
            counts=tuple(ViolationCount(*what, n, self._ended[what]) for what, n in sorted(self._counts.items())),
            last=tuple(map(_status, self._last)),
            unjudged=unjudged,
        )

    def violations(self) -> NodeViolations:
        """For the MPSNode, which names pods and no processes."""
        counts = Counter[ViolationKind]()
        for (kind, _response), count in self._counts.items():
            counts[kind] += count
        return NodeViolations(
            since=self._since,
            counts=counts,
            last=tuple(_last(entry) for entry in [*self._last][-MOST_LAST:]),
            grants={one: Tally(Counter(own.counts), _last(own.last)) for one, own in self._of_grants.items()},
        )


def _last(entry: ViolationRecord) -> LastViolation:
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
