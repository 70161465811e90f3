"""The metrics that every server of a cluster has, as `model.metrics` names them."""

from collections.abc import Mapping

from aiohttp import web
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from mpsd.model import metrics as names
from mpsd.model.metrics import Exporter, Metric
from mpsd.platform import logs

# of a request
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class ServerMetrics:
    """Each has a registry of its own: several servers fit into one process."""

    def __init__(self, process: Exporter) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._expiry = self.gauge(names.CERTIFICATE_EXPIRY)
        self._wrong_limits = self.gauge(names.LIMITS_WRONG)
        self._dropped = self.counter(names.LOG_LINES_DROPPED).labels(process.value)
        self._counted = 0  # of the lines dropped

    def counter(self, metric: Metric) -> Counter:
        return Counter(metric.family, metric.help, metric.labels, registry=self.registry)

    def gauge(self, metric: Metric) -> Gauge:
        return Gauge(metric.name, metric.help, metric.labels, registry=self.registry)

    def histogram(self, metric: Metric) -> Histogram:
        return Histogram(
            metric.name, metric.help, metric.labels, buckets=_SECONDS, registry=self.registry
        )

    def certificates(self, expiries: Mapping[str, float]) -> None:
        """expiries: in seconds since 1970, by part."""
        self._expiry.clear()
        for part, not_after in expiries.items():
            self._expiry.labels(part).set(not_after)

    def limits(self, *, wrong: bool) -> None:
        self._wrong_limits.set(wrong)

    async def show(self, _request: web.Request) -> web.Response:
        dropped = logs.dropped()
        self._dropped.inc(dropped - self._counted)
        self._counted = dropped
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=generate_latest(self.registry), headers=headers)
