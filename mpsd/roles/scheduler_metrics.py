"""The scheduler's metrics.

One rule: labels come from closed sets (verbs, verdicts), never from what somebody sent.
"""

from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from mpsd.core.node_books import NodeBooks, Source

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Verb(StrEnum):
    """What an extender can be asked."""

    FILTER = "filter"
    PRIORITIZE = "prioritize"
    PREEMPT = "preempt"
    BIND = "bind"


class Verdict(StrEnum):
    """What came of a request."""

    DONE = "done"  # a node has room, the pod is bound, somebody can be stopped
    NO_NODE = "no-node"  # no node has room, or none would if pods were stopped
    REFUSED = "refused"  # not bound
    NOT_OURS = "not-ours"  # a pod that asks for no GPU
    TROUBLE = "trouble"  # the books must not be asked now
    MALFORMED = "malformed"  # no request that could be read


class SchedulerMetrics:
    """A registry of its own, so that several schedulers fit into one process."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        requests = Counter(
            "mpsd_scheduler_requests",
            "Requests of kube-scheduler, by what came of them.",
            ["verb", "verdict"],
            registry=registry,
        )
        seconds = Histogram(
            "mpsd_scheduler_request_seconds",
            "From the first line of a request to its answer.",
            ["verb"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._requests_of = cache(requests.labels)
        self._seconds_of = cache(seconds.labels)
        self._nodes = Gauge("mpsd_scheduler_nodes", "Nodes that have books.", registry=registry)
        self._gpus = Gauge("mpsd_scheduler_gpus", "GPUs of these nodes.", registry=registry)
        self._open = Gauge("mpsd_scheduler_gpus_open", "GPUs that take pods now.", registry=registry)
        self._promises = Gauge(
            "mpsd_scheduler_promises", "Pods with a promise of GPUs that are not known to be bound.", registry=registry
        )
        self._usable = Gauge(
            "mpsd_scheduler_books_usable_seconds",
            "How long the books may have been asked without a break; 0 while they may not.",
            registry=registry,
        )
        self._wrong_limits = Gauge(
            "mpsd_limits_wrong",
            "1 while the limits files cannot be used and older ones are in force.",
            registry=registry,
        )
        self._expiry = Gauge(
            "mpsd_certificate_expiry_timestamp_seconds",
            "When each certificate in use ends.",
            ["certificate"],
            registry=registry,
        )

    def answered(self, verb: Verb, verdict: Verdict, took_s: float) -> None:
        self._requests_of(verb.value, verdict.value).inc()
        self._seconds_of(verb.value).observe(took_s)

    def certificate(self, not_after: float) -> None:
        self._expiry.labels("serving").set(not_after)

    def known(self, nodes: Sequence["Numbers"]) -> None:
        """What the books of each node hold now."""
        self._nodes.set(len(nodes))
        for gauge, column in ((self._gpus, 0), (self._open, 1), (self._promises, 2)):
            gauge.set(sum(each[column] for each in nodes))

    def usable(self, for_s: float) -> None:
        """For how long the books may have been asked; 0 while they may not."""
        self._usable.set(for_s)

    def limits(self, *, wrong: bool) -> None:
        self._wrong_limits.set(wrong)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class Numbers(NamedTuple):
    """Of one node: its GPUs, those that take pods now, and pods with a promise of some."""

    gpus: int
    open: int
    promises: int

    @classmethod
    def of(cls, books: NodeBooks) -> "Numbers":
        promises = sum(one.source is Source.RESERVED for one in books.taken)
        return cls(len(books.totals), len(books.rooms), promises)
