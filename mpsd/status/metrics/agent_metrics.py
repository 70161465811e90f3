"""The agent's metrics as Prometheus reads them: those of the node, and those of the agent's process.

One rule: it knows no name, label or value of its own; `model.metrics_names` and `status.metrics.rules.metrics_samples` say them all.
"""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from mpsd.status.metrics.rules.metrics_samples import Sample
from mpsd.status.metrics.rules.metrics_text import text

_OPENMETRICS = "application/openmetrics-text"


class Exposition:
    """What every client of Prometheus tells of its process is prometheus_client's, and so is the choice of a format."""

    def __init__(self) -> None:
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)

    def text(self, samples: Sequence[Sample], accept: str) -> tuple[bytes, str]:
        """The metrics in the format that the header Accept asks for, and its content type."""
        encode, content_type = choose_encoder(accept)
        openmetrics = content_type.startswith(_OPENMETRICS)
        if openmetrics and "version=1." not in content_type:  # a later one, whose rules nobody here has read
            encode, content_type = choose_encoder(f"{_OPENMETRICS}; version=1.0.0")
        return text(samples, openmetrics=openmetrics).encode() + encode(self._process), content_type
