"""The webhook's metrics.

One rule: labels come from closed sets (rules, modes, parts, statuses), never from what somebody sent.
"""

from enum import StrEnum
from functools import cache, cached_property

from prometheus_client import Gauge

from mpsd.admission.rules.review import AdmissionAnswer
from mpsd.model import metrics as names
from mpsd.platform.server_metrics import ServerMetrics


class Lookup(StrEnum):
    """What is asked of the Kubernetes API."""

    NAMESPACE = "namespace"
    CONFIG_MAP = "config map"


_ANSWERED, _UNKNOWN = "answered", "unknown"


class WebhookMetrics(ServerMetrics):
    def __init__(self) -> None:
        super().__init__()
        self._reviews = self.counter(names.ADMISSION_REVIEWS)
        self._findings = self.counter(names.ADMISSION_FINDINGS)
        self._refused = self.counter(names.ADMISSION_REFUSED)
        self._seconds = self.histogram(names.ADMISSION_SECONDS)
        # Finding a metric by its labels costs more than counting; there are few labels, so each is found once.
        self._reviews_of = cache(self._reviews.labels)
        self._seconds_of = cache(self._seconds.labels)
        self._findings_of = cache(self._findings.labels)
        self._lookups = self.counter(names.ADMISSION_LOOKUPS)
        for what in Lookup:
            for outcome in (_ANSWERED, _UNKNOWN):  # from the beginning, so that the first one is seen as an increase
                self._lookups.labels(what.value, outcome)

    def reviewed(self, webhook: str, answer: AdmissionAnswer, took_s: float) -> None:
        self._reviews_of(webhook, _verdict(answer)).inc()
        self._seconds_of(webhook).observe(took_s)
        for rule, mode in answer.verdicts:
            self._findings_of(rule, mode).inc()

    def refused(self, webhook: str, status: int) -> None:
        self._refused.labels(webhook, str(status)).inc()

    def looked_up(self, what: Lookup, *, found: bool) -> None:
        """found: whether the API answered, were it only that there is no such object."""
        self._lookups.labels(what.value, _ANSWERED if found else _UNKNOWN).inc()

    @cached_property
    def _registered(self) -> Gauge:
        """From when it is told on: a webhook that registers nowhere tells nothing of it, which is no alarm."""
        return self.gauge(names.ADMISSION_REGISTERED)

    def registered(self, *, well: bool) -> None:
        self._registered.set(well)


def _verdict(answer: AdmissionAnswer) -> str:
    if not answer.allowed:
        return "refused"
    if answer.patch:
        return "patched"
    return "warned" if answer.warnings else "allowed"
