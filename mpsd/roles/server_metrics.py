"""The metrics that every server of a cluster has: its process, its certificates, its limits.

One rule: a metric that several have is named and explained here alone.
"""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)  # of a request


class ServerMetrics:
    """A registry of its own, so that several servers fit into one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._expiry = Gauge(
            "mpsd_certificate_expiry_timestamp_seconds",
            "When each certificate in use ends.",
            ["certificate"],
            registry=self.registry,
        )
        self._wrong_limits = Gauge(
            "mpsd_limits_wrong",
            "1 while the limits files cannot be used and older ones are in force.",
            registry=self.registry,
        )

    def certificates(self, expiries: Mapping[str, float]) -> None:
        """expiries: by what the certificate is for, seconds since 1970."""
        self._expiry.clear()
        for part, not_after in expiries.items():
            self._expiry.labels(part).set(not_after)

    def limits(self, *, wrong: bool) -> None:
        self._wrong_limits.set(wrong)

    def text(self) -> bytes:
        return generate_latest(self.registry)
