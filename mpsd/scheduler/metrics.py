"""The scheduler's metrics.

One rule: labels come from closed sets (verbs, verdicts), never from what somebody sent.
"""

from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from typing import NamedTuple

from mpsd.model import metrics as names
from mpsd.platform.server_metrics import ServerMetrics
from mpsd.scheduler.rules.capacity import AssignmentSource, NodeCapacity


class ExtenderVerb(StrEnum):
    """What an extender can be asked."""

    FILTER = "filter"
    PRIORITIZE = "prioritize"
    PREEMPT = "preempt"
    BIND = "bind"


class RequestVerdict(StrEnum):
    """What came of a request."""

    DONE = "done"  # a node has room, the pod is bound, somebody can be stopped
    NO_NODE = "no-node"  # no node has room, or none would if pods were stopped
    REFUSED = "refused"  # not bound
    NOT_OURS = "not-ours"  # a pod that asks for no GPU
    TROUBLE = "trouble"  # the ledger must not be asked now
    MALFORMED = "malformed"  # no request that could be read


class SchedulerMetrics(ServerMetrics):
    def __init__(self) -> None:
        super().__init__()
        self._requests_of = cache(self.counter(names.SCHEDULER_REQUESTS).labels)
        self._seconds_of = cache(self.histogram(names.SCHEDULER_SECONDS).labels)
        self._nodes = self.gauge(names.SCHEDULER_NODES)
        self._gpus = self.gauge(names.SCHEDULER_GPUS)
        self._open = self.gauge(names.SCHEDULER_OPEN)
        self._promises = self.gauge(names.SCHEDULER_PROMISES)
        self._usable = self.gauge(names.SCHEDULER_USABLE)

    def answered(self, verb: ExtenderVerb, verdict: RequestVerdict, took_s: float) -> None:
        self._requests_of(verb.value, verdict.value).inc()
        self._seconds_of(verb.value).observe(took_s)

    def known(self, nodes: Sequence["Numbers"]) -> None:
        """What the ledger of each node hold now."""
        self._nodes.set(len(nodes))
        for gauge, column in ((self._gpus, 0), (self._open, 1), (self._promises, 2)):
            gauge.set(sum(each[column] for each in nodes))

    def usable(self, for_s: float) -> None:
        """For how long the ledger may have been asked; 0 while they may not."""
        self._usable.set(for_s)


class Numbers(NamedTuple):
    """Of one node: its GPUs, those that take pods now, and pods with a promise of some."""

    gpus: int
    open: int
    promises: int

    @classmethod
    def of(cls, ledger: NodeCapacity) -> "Numbers":
        promises = sum(one.source is AssignmentSource.RESERVED for one in ledger.taken)
        return cls(len(ledger.totals), len(ledger.rooms), promises)
