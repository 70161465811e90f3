"""How long daemons took to answer, and what kubelet called the device plugin for, as samples.

One rule: as in `metrics_samples`: what is not known has no sample, and no sample is there twice.
"""

from collections.abc import Iterator, Mapping, Sequence

from mpsd.kubelet.rules.plugin_calls import PluginCalls
from mpsd.model import metrics_names as names
from mpsd.model.metric import Metric
from mpsd.model.times_taken import CALL_BOUNDS_S, COMMAND_BOUNDS_S, CommandTimes, Durations
from mpsd.status.metrics.rules.metrics_samples import Labels, Sample, as_label

_INFINITY = "+Inf"


def command_samples(times: Mapping[str, CommandTimes]) -> Iterator[Sample]:
    """times: by domain."""
    for domain, one in times.items():
        labels = {"domain": as_label(domain)}
        yield from _histogram(names.DOMAIN_COMMAND_SECONDS, labels, one.answered, COMMAND_BOUNDS_S)
        yield Sample(names.DOMAIN_UNANSWERED.name, labels, one.unanswered)


def plugin_samples(calls: PluginCalls | None) -> Iterator[Sample]:
    """calls: None without a kubelet."""
    if calls is None:
        return
    for (call, outcome), count in calls.counts.items():
        yield Sample(names.PLUGIN_CALLS.name, {"call": call.value, "outcome": outcome.value}, count)
    for call, durations in calls.times.items():
        yield from _histogram(names.PLUGIN_SECONDS, {"call": call.value}, durations, CALL_BOUNDS_S)
    yield Sample(names.PLUGIN_HELD_BACK.name, {}, calls.held_back)


def _histogram(metric: Metric, labels: Labels, seen: Durations, bounds_s: Sequence[float]) -> Iterator[Sample]:
    bucket, total, count = metric.series
    found = [*seen.up_to(bounds_s)]
    if found:  # else an mpsd control of another version counts by other bounds
        for bound, so_far in found:
            yield Sample(bucket, {**labels, "le": _INFINITY if bound == float("inf") else repr(bound)}, so_far)
        yield Sample(total, labels, seen.sum_s)
        yield Sample(count, labels, seen.count)
