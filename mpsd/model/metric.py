"""What a metric is: its name, its type, its labels, what it counts in, and who tells it.

One rule: what follows from these is said here alone: the names of its family and of its series.
Source: https://prometheus.io/docs/specs/om/open_metrics_spec/
"""

from dataclasses import dataclass
from enum import StrEnum


class Type(StrEnum):
    """As OpenMetrics calls them. A counter's name ends in `_total`, that of an info in `_info`."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


class Unit(StrEnum):
    """What a metric counts in; names end in it. NONE: things."""

    BYTES = "bytes"
    SECONDS = "seconds"
    RATIO = "ratio"
    NONE = ""


class Holder(StrEnum):
    """Values of the label `holder`: who was given a share."""

    POD = "pod"
    CONTAINER = "container"
    PROGRAM = "program"


class Teller(StrEnum):
    """A process of mpsd that has metrics. AGENT: `mpsd up` too."""

    AGENT = "agent"
    WEBHOOK = "webhook"
    SCHEDULER = "scheduler"


@dataclass(frozen=True, slots=True)
class Metric:
    """name: as it is asked for, but for a histogram, which is asked for by `_bucket`, `_sum` and `_count` behind it."""

    name: str
    type: Type
    labels: tuple[str, ...]
    help: str
    unit: Unit = Unit.NONE
    tellers: tuple[Teller, ...] = (Teller.AGENT,)

    @property
    def family(self) -> str:
        """The name without what its type puts behind it."""
        return self.name.removesuffix("_total").removesuffix("_info")

    @property
    def series(self) -> tuple[str, ...]:
        """The names of its samples."""
        if self.type is Type.HISTOGRAM:
            return f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count"
        return (self.name,)
