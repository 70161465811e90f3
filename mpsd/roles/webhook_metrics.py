"""The webhook's metrics.

One rule: labels come from closed sets (rules, modes, parts, statuses), never from what somebody sent.
"""

from functools import cache

from prometheus_client import Counter, Gauge, Histogram

from mpsd.core.admission_review import AdmissionAnswer
from mpsd.roles.server_metrics import SECONDS, ServerMetrics


class WebhookMetrics(ServerMetrics):
    def __init__(self) -> None:
        super().__init__()
        registry = self.registry
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
            buckets=SECONDS,
            registry=registry,
        )
        # Finding a metric by its labels costs more than counting; there are few labels, so each is found once.
        self._reviews_of = cache(self._reviews.labels)
        self._seconds_of = cache(self._seconds.labels)
        self._findings_of = cache(self._findings.labels)
        self._lookups = Counter(
            "mpsd_admission_lookups", "Questions to the Kubernetes API.", ["what", "outcome"], registry=registry
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

    def registered(self, *, well: bool) -> None:
        self._registered.set(well)


def _verdict(answer: AdmissionAnswer) -> str:
    if not answer.allowed:
        return "refused"
    if answer.patch:
        return "patched"
    return "warned" if answer.warnings else "allowed"
