"""The samples of the agent's metrics, made of a status of its node, and their text.

What is not known has no sample, for unknown is never zero; no sample is there twice.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from mpsd.kubelet.rules.plugin_calls import PluginCalls
from mpsd.model import metrics as names
from mpsd.model.domain import State
from mpsd.model.metrics import (
    CALL_BOUNDS_S,
    COMMAND_BOUNDS_S,
    CommandTimes,
    Durations,
    HolderKind,
    Metric,
    MetricUnit,
    Teller,
    Type,
    told_by,
)
from mpsd.model.node_status import CardStatus, DomainStatus, GpuStatus, GrantStatus, NodeStatus, ViolationsStatus
from mpsd.model.policy import Response
from mpsd.model.violations import ViolationKind

Labels = Mapping[str, str]
_NONE: Labels = {}
_MIB = 1024**2
# To find a member in its enum costs as much as the rest of a sample.
_BYTES, _RATIO = MetricUnit.BYTES, MetricUnit.RATIO


class Sample(NamedTuple):  # there are thousands at each scrape, and a dataclass takes three times as long to make
    """One value of the metric of this name; labels as the table has them."""

    name: str
    labels: Labels
    value: float


class _HolderLabels(NamedTuple):
    """Who holds a share of which GPU, as its labels say. A program's pid is no label: programs are counted together."""

    gpu: str
    holder: HolderKind
    namespace: str = ""
    pod: str = ""
    container: str = ""


_Share = tuple[GrantStatus, CardStatus]


class _Samples(list[Sample]):
    """The samples so far."""

    def add(self, metric: Metric, value: float | None, labels: Labels = _NONE) -> None:
        """value: as it is in a status; a metric in bytes has MiB there, and one that is a ratio a percentage."""
        if value is None:
            return
        if metric.unit is _BYTES:
            value *= _MIB
        elif metric.unit is _RATIO:
            value /= 100
        self.append(Sample(metric.name, labels, value))


def samples(status: NodeStatus | None, *, limits_wrong: bool) -> list[Sample]:
    """status: None before the first look at the node. Samples of one holder, domain or GPU share their labels."""
    found = _Samples()
    found.add(names.LIMITS_WRONG, limits_wrong)
    if status is None:
        return found
    found.add(names.DRIVER, 1, {"version": as_label(status.driver)})
    found.add(names.LOOKED_AT, status.now)
    found.add(names.UNKNOWN, len(status.unknown))
    found.add(names.WAITING, len(status.waiting))
    for domain in status.domains:
        _add_domain(found, domain)
    for gpu in status.gpus:
        _add_gpu(found, gpu, status)
    _add_grants(found, status)
    if status.violations:
        _add_watchdog(found, status.violations)
    return found


def as_label(value: str) -> str:
    """A label's value as UTF-8 can have it; names of containers are whatever somebody wrote."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def _add_domain(found: _Samples, domain: DomainStatus) -> None:
    labels = {"domain": as_label(domain.name)}
    for state in State:
        found.add(names.DOMAIN_STATE, state is domain.state, {**labels, "state": state.value})
    found.add(names.DOMAIN_SINCE, domain.since, labels)
    found.add(names.DOMAIN_RESTARTS, domain.restarts, labels)
    found.add(names.DOMAIN_SERVERS, len(domain.servers), labels)
    found.add(names.DOMAIN_FAULTS, domain.faults.count, labels)
    found.add(names.DOMAIN_FAULT_AT, domain.faults.last, labels)
    found.add(names.DOMAIN_CANARY, None if domain.canary is None else not domain.canary.problem, labels)


def _add_gpu(found: _Samples, gpu: GpuStatus, status: NodeStatus) -> None:
    labels = {"gpu": as_label(gpu.label), "uuid": as_label(gpu.uuid)}
    about = {"domain": as_label(gpu.domain or ""), "model": as_label(gpu.name)}
    found.add(names.GPU, 1, {**labels, **about})
    found.add(names.GPU_MEMORY, gpu.memory_mib, labels)
    found.add(names.GPU_PROMISED, gpu.promised_mib, labels)
    found.add(names.GPU_USED, gpu.used_mib, labels)
    found.add(names.GPU_PROMISED_THREADS, gpu.promised_percent, labels)
    found.add(names.GPU_PROMISED_CLIENTS, gpu.promised_clients, labels)
    found.add(names.GPU_CLIENTS, gpu.clients, labels)
    if status.grants_known:
        found.add(names.GPU_GRANTED, gpu.granted_mib, labels)
        found.add(names.GPU_GRANTED_THREADS, gpu.granted_percent, labels)
        for holder, count in _holders(gpu.uuid, status.grants).items():
            found.add(names.GRANTS, count, {**labels, "holder": holder.value})
    if status.clients is not None:
        here = [client for client in status.clients if client.gpu == gpu.uuid]
        found.add(names.GPU_OUTSIDE, sum(not client.on_mps for client in here), labels)
        if status.grants_known:
            found.add(names.GPU_STRANGERS, sum(client.grant is None for client in here), labels)


def _holders(gpu: str, grants: Iterable[GrantStatus]) -> Mapping[HolderKind, int]:
    counts = Counter(_holder(grant) for grant in grants if gpu in grant.gpus)
    return {holder: counts[holder] for holder in HolderKind}


def _holder(grant: GrantStatus) -> HolderKind:
    if grant.pod is not None:
        return HolderKind.POD
    return HolderKind.PROGRAM if grant.container is None else HolderKind.CONTAINER


def _add_grants(found: _Samples, status: NodeStatus) -> None:
    """A pod and a container by its name, as long as it lives; containers without one together, as programs are."""
    gpus = {as_label(gpu.uuid): as_label(gpu.label) for gpu in status.gpus}
    clients = None if status.clients is None else Counter((client.grant, client.gpu) for client in status.clients)
    shares: defaultdict[_HolderLabels, list[_Share]] = defaultdict(list)
    for grant in status.grants:
        holder = _holder(grant)
        if holder is HolderKind.PROGRAM or grant.holder_alive:
            for card in grant.cards:
                shares[_held(grant, holder, card.gpu)].append((grant, card))
    for held, own in shares.items():
        _add_share(found, held, own, gpus.get(held.gpu, held.gpu), clients)


def _held(grant: GrantStatus, holder: HolderKind, gpu: str) -> _HolderLabels:
    match holder:
        case HolderKind.POD:
            return _HolderLabels(as_label(gpu), holder, as_label(grant.namespace or ""), as_label(grant.pod or ""))
        case HolderKind.CONTAINER:
            return _HolderLabels(as_label(gpu), holder, container=as_label(grant.container_name or ""))
        case HolderKind.PROGRAM:
            return _HolderLabels(as_label(gpu), holder)


def _add_share(
    found: _Samples,
    held: _HolderLabels,
    own: list[_Share],
    gpu: str,
    clients: Mapping[tuple[str | None, str], int] | None,
) -> None:
    labels = {
        "gpu": gpu,
        "uuid": held.gpu,
        "holder": held.holder.value,
        "namespace": held.namespace,
        "pod": held.pod,
        "container": held.container,
    }
    limit_mib = reserved = threads = processes = known_mib = known = 0
    over = False
    for grant, card in own:
        limit_mib += card.memory_mib
        reserved += card.reserved_percent
        threads = max(threads, grant.thread_percent)
        over = over or card.over
        if card.used_mib is not None:
            known_mib += card.used_mib
            known += 1
        if clients is not None:
            processes += clients.get((grant.id, card.gpu), 0)
    found.add(names.SHARE_LIMIT, limit_mib, labels)
    found.add(names.SHARE_RESERVED, reserved, labels)
    if held.holder is not HolderKind.PROGRAM:
        found.add(names.SHARE_THREADS, threads, labels)
    if known == len(own):
        found.add(names.SHARE_USED, known_mib, labels)
        found.add(names.SHARE_OVER, over, labels)
    if clients is not None:
        found.add(names.SHARE_CLIENTS, processes, labels)


def _add_watchdog(found: _Samples, seen: ViolationsStatus) -> None:
    """Every kind and action, so that the first is seen as an increase; what has not happened is known to be 0."""
    happened = {(one.kind, one.action): one for one in seen.counts}
    for kind in ViolationKind:
        for action in Response:
            labels = {"kind": kind.value, "action": action.value}
            one = happened.get((kind, action))
            found.add(names.VIOLATIONS, one.count if one else 0, labels)
            found.add(names.VIOLATIONS_ENDED, one.ended if one else 0, labels)
    found.add(names.JUDGING, not seen.unjudged)
    found.add(names.LOOKS, seen.looks)
    found.add(names.LATE_LOOKS, seen.late_looks)
    found.add(names.LONGEST_PAUSE, seen.longest_pause_s)
    found.add(names.NVML_SECONDS, seen.nvml_s)


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


# The two formats that Prometheus reads, its text format and OpenMetrics. prometheus_client's own writer takes 24 µs a
# sample where this takes one: 52 ms for a node with 320 pods, in which the agent could do nothing else.

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
    if openmetrics and metric.unit is not MetricUnit.NONE:
        yield f"# UNIT {name} {metric.unit}\n"


@lru_cache(4096)  # the same come again at each scrape
def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
