"""The agent's metrics in the two formats that Prometheus reads: its text format and OpenMetrics.

One rule: what is written here is read back the same by the parsers of prometheus_client, whose own writer takes 24 µs a
sample where this takes one: 52 ms for a node with 320 pods, in which the agent could do nothing else.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache

from mpsd.model.metric import Metric, Teller, Type, Unit
from mpsd.model.metrics_names import told_by
from mpsd.status.metrics.rules.metrics_samples import Sample

_OURS = told_by(Teller.AGENT)
_OF = {series: metric.name for metric in _OURS for series in metric.series}
_WRITTEN = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN", "True": "1", "False": "0"}  # what Python writes otherwise


def text(found: Sequence[Sample], *, openmetrics: bool) -> str:
    """The metrics in the table's order, but for those without a sample. What ends OpenMetrics is not in it."""
    labels: dict[int, str] = {}  # by where they are kept, for most are shared; `found` keeps them there
    lines: defaultdict[str, list[str]] = defaultdict(list)
    for name, own, value in found:  # thousands of times at each scrape, so that a call less is seen
        where, number = id(own), repr(value)
        shown = labels.get(where)
        if shown is None:
            shown = labels[where] = _labels(tuple(own.items()))
        lines[_OF[name]].append(f"{name}{shown} {_WRITTEN.get(number, number)}\n")
    told = (metric for metric in _OURS if metric.name in lines)
    return "".join(part for metric in told for part in (*_head(metric, openmetrics=openmetrics), *lines[metric.name]))


def _head(metric: Metric, *, openmetrics: bool) -> Iterator[str]:
    """The text format knows no families, infos and units."""
    name = metric.family if openmetrics else metric.name
    kind = Type.GAUGE if metric.type is Type.INFO and not openmetrics else metric.type
    yield f"# HELP {name} {_escaped(metric.help) if openmetrics else metric.help}\n"
    yield f"# TYPE {name} {kind}\n"
    if openmetrics and metric.unit is not Unit.NONE:
        yield f"# UNIT {name} {metric.unit}\n"


@lru_cache(4096)  # the same come again at each scrape
def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
