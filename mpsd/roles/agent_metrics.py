"""The agent's metrics as Prometheus reads them.

One rule: it knows no name, label or value of its own; `core.metrics_names` and `core.metrics_samples` say them all.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample as Line

from mpsd.core.metrics_names import METRICS
from mpsd.core.metrics_samples import Sample


class NodeCollector(Collector):
    """samples: as they are now; asked at each scrape."""

    def __init__(self, samples: Callable[[], Iterable[Sample]]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        """The metrics in the table's order, but for those without a sample."""
        lines: defaultdict[str, list[Line]] = defaultdict(list)
        for one in self._samples():
            lines[one.name].append(Line(one.name, dict(one.labels), one.value))
        for row in METRICS:
            if row.name in lines:
                metric = Metric(row.family, row.help, row.type, row.unit)
                metric.samples = lines[row.name]
                yield metric


class Exposition:
    """The node's metrics, and those of this process that every client of Prometheus has."""

    def __init__(self, samples: Callable[[], Iterable[Sample]]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(NodeCollector(samples))
        ProcessCollector(registry=self._registry)

    def text(self, accept: str) -> tuple[bytes, str]:
        """The metrics in the format that the header Accept asks for, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type
