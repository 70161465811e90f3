"""The webhook's metrics.

One rule: labels come from closed sets (rules, modes, parts, statuses), never from what somebody sent.
"""

from collections.abc import Mapping
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from mpsd.core.admission_review import AdmissionAnswer

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class WebhookMetrics:
    """A registry of its own, so that several webhooks fit into one process."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._reviews = Counter(
            "mpsd_admission_reviews", "Reviews answered.", ["webhook", "verdict"], registry=registry
        )
        self._findings = Counter(
            "mpsd_admission_findings", "Broken rules found, by what was done.", ["rule", "mode"], registry=registry
        )
        self._refused = Counter(
            "mpsd_admission_requests_refused", "Requests that were no review.", ["webhook", "status"], registry=registry
        )
        self._seconds = Histogram(
            "mpsd_admission_review_seconds",
            "From the first line of a request to its answer.",
            ["webhook"],
            buckets=_SECONDS,
            registry=registry,
        )
        # Finding a metric by its labels costs more than counting; there are few labels, so each is found once.
        self._reviews_of = cache(self._reviews.labels)
        self._seconds_of = cache(self._seconds.labels)
        self._findings_of = cache(self._findings.labels)
        self._lookups = Counter(
            "mpsd_admission_lookups", "Questions to the Kubernetes API.", ["what", "outcome"], registry=registry
        )
        self._expiry = Gauge(
            "mpsd_certificate_expiry_timestamp_seconds",
            "When each certificate in use ends.",
            ["certificate"],
            registry=registry,
        )
        self._wrong_limits = Gauge(
            "mpsd_limits_wrong",
            "1 while the limits files cannot be used and older ones are in force.",
            registry=registry,
        )
        self._registered = Gauge(
            "mpsd_admission_registered", "1 while API servers are known to ask this webhook.", registry=registry
        )

    def reviewed(self, webhook: str, answer: AdmissionAnswer, took_s: float) -> None:
        self._reviews_of(webhook, _verdict(answer)).inc()
        self._seconds_of(webhook).observe(took_s)
        for rule, mode in answer.verdicts:
            self._findings_of(rule, mode).inc()

    def refused(self, webhook: str, status: int) -> None:
        self._refused.labels(webhook, str(status)).inc()

    def looked_up(self, what: str, *, found: bool) -> None:
        """found: whether the API answered, were it only that there is no such object."""
        self._lookups.labels(what, "answered" if found else "unknown").inc()

    def certificates(self, expiries: Mapping[str, float]) -> None:
        self._expiry.clear()
        for part, not_after in expiries.items():
            self._expiry.labels(part).set(not_after)

    def limits(self, *, wrong: bool) -> None:
        self._wrong_limits.set(wrong)

    def registered(self, *, well: bool) -> None:
        self._registered.set(well)

    def text(self) -> bytes:
        return generate_latest(self._registry)


def _verdict(answer: AdmissionAnswer) -> str:
    if not answer.allowed:
        return "refused"
    if answer.patch:
        return "patched"
    return "warned" if answer.warnings else "allowed"
