"""The samples of the agent's metrics, made of a status of its node, and their text. What is not
known has no sample."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from mpsd.model import metrics as names
from mpsd.model.domain import State
from mpsd.model.metrics import CommandTimes, Durations, HolderKind, Metric, MetricUnit, PluginCalls
from mpsd.model.node_report import (
    CardReport,
    GpuReport,
    GrantReport,
    NodeReport,
    ViolationCount,
    ViolationsReport,
    total,
)
from mpsd.model.policy import Response
from mpsd.model.times import epoch
from mpsd.model.violations import ViolationKind

Labels = Mapping[str, str]
_Part = tuple[GrantReport, CardReport]
_NONE: Labels = {}
# to find a member in its enum costs as much as a sample
_BYTES = MetricUnit.BYTES
_RATIO = MetricUnit.RATIO
_POD = HolderKind.POD
_PROGRAM = HolderKind.PROGRAM
_CONTAINER = HolderKind.CONTAINER


# there are thousands at each scrape, and a dataclass takes three times as long to make
class Sample(NamedTuple):
    name: str
    labels: Labels
    value: float


class _Samples(list[Sample]):
    def add(self, metric: Metric, value: float | None, labels: Labels = _NONE) -> None:
        """value: as in a status, MiB where the metric has bytes, percent where it is a ratio."""
        if value is None:
            return
        if metric.unit is _BYTES:
            value *= 1024**2
        elif metric.unit is _RATIO:
            value /= 100
        self.append(Sample(metric.name, labels, value))


def samples(
    status: NodeReport | None, *, limits_wrong: bool, upgrade_state: str = ""
) -> list[Sample]:
    """status: None before the first look at the node. upgrade_state: of an upgrade of its driver,
    empty without one. Samples of one holder, domain or GPU share their labels."""
    found = _Samples()
    found.add(names.LIMITS_WRONG, limits_wrong)
    if status is None:
        return found
    found.add(names.DRIVER, 1, {"version": as_label(status.driver)})
    found.add(names.DRIVER_UPGRADE, upgrade_state != "", {"state": as_label(upgrade_state)})
    found.add(names.LOOKED_AT, status.now)
    found.add(names.UNKNOWN, len(status.unknown))
    found.add(names.WAITING, len(status.waiting))
    for domain in status.domains:
        labels = {"domain": as_label(domain.name)}
        for state in State:
            found.add(names.DOMAIN_STATE, state == domain.state, {**labels, "state": state.value})
        found.add(names.DOMAIN_SINCE, epoch(domain.since), labels)
        found.add(names.DOMAIN_RESTARTS, domain.restarts, labels)
        found.add(names.DOMAIN_SERVERS, len(domain.servers), labels)
        found.add(names.DOMAIN_UNWATCHED, domain.unwatched, labels)
        found.add(names.DOMAIN_FAULTS, domain.faults.count, labels)
        found.add(names.DOMAIN_FAULT_AT, epoch(domain.faults.last), labels)
        if domain.canary:
            found.add(names.DOMAIN_CANARY, not domain.canary.problem, labels)
    for gpu in status.gpus:
        _add_gpu(found, gpu, status)
    _add_grants(found, status)
    if status.violations:
        _add_watchdog(found, status.violations)
    return found


def as_label(value: str) -> str:
    """A label's value as UTF-8 can have it; names of containers are whatever somebody wrote."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


_OF_GPU = (
    (names.GPU_MEMORY, "memory_mib"),
    (names.GPU_PROMISED, "promised_mib"),
    (names.GPU_USED, "used_mib"),
    (names.GPU_UNEXPLAINED, "unexplained_mib"),
    (names.GPU_PROMISED_THREADS, "promised_percent"),
    (names.GPU_PROMISED_CLIENTS, "promised_clients"),
    (names.GPU_CLIENTS, "clients"),
)


def _add_gpu(found: _Samples, gpu: GpuReport, status: NodeReport) -> None:
    labels = {"gpu": as_label(gpu.label), "uuid": as_label(gpu.uuid)}
    about = {
        "domain": as_label(gpu.domain),
        "model": as_label(gpu.model),
        "mig_profile": gpu.mig_profile,
    }
    found.add(names.GPU, 1, {**labels, **about})
    for metric, field in _OF_GPU:
        found.add(metric, getattr(gpu, field), labels)
    found.add(names.GPU_SICK, gpu.sick_cause != "", {**labels, "cause": as_label(gpu.sick_cause)})
    for one in gpu.xids:
        found.add(names.XIDS, one.count, {**labels, "xid": str(one.xid)})
    if status.grants_known:
        found.add(names.GPU_GRANTED, gpu.granted_mib, labels)
        found.add(names.GPU_GRANTED_THREADS, gpu.granted_percent, labels)
        holders = Counter(_holder(grant) for grant in status.grants or () if gpu.uuid in grant.gpus)
        for holder in HolderKind:
            found.add(names.GRANTS, holders[holder], {**labels, "holder": holder.value})
    if gpu.clients is not None:
        here = [client for client in status.clients or () if client.gpu == gpu.uuid]
        found.add(names.GPU_OUTSIDE, sum(not client.on_mps for client in here), labels)
        if status.grants_known:
            found.add(names.GPU_FOREIGN, sum(client.grant is None for client in here), labels)


def _holder(grant: GrantReport) -> HolderKind:
    if grant.pod:
        return _POD
    return _CONTAINER if grant.container else _PROGRAM


def _add_grants(found: _Samples, status: NodeReport) -> None:
    """A pod and a container by its name, as long as it lives; containers without one together, as
    programs are."""
    gpus = {gpu.uuid: (as_label(gpu.label), as_label(gpu.uuid)) for gpu in status.gpus}
    clients = Counter([(client.grant, client.gpu) for client in status.clients or ()])
    seen = {gpu.uuid for gpu in status.gpus if gpu.clients is not None}
    shares: defaultdict[tuple[str, ...], list[_Part]] = defaultdict(list)
    for grant in status.grants or ():
        holder = _holder(grant)
        if holder is _PROGRAM or not grant.ended:
            who = [*map(as_label, (grant.namespace, grant.name, grant.container_name))]
            for card in grant.cards:
                gpu = gpus.get(card.gpu) or (as_label(card.gpu),) * 2
                shares[*gpu, holder.value, *who].append((grant, card))
    for claimed in dict.fromkeys(_claims(status.grants or ())):
        found.add(names.GRANT_CLAIM, 1, dict(zip(names.GRANT_CLAIM.labels, claimed, strict=True)))
    for held, own in shares.items():
        labels = dict(zip(names.SHARE_LIMIT.labels, held, strict=True))
        _add_share(found, labels, own)
        if own[0][1].gpu in seen:  # all of a share are on one GPU
            number = sum([clients[grant.id, card.gpu] for grant, card in own])
            found.add(names.SHARE_CLIENTS, number, labels)


def _claims(grants: Iterable[GrantReport]) -> Iterator[tuple[str, ...]]:
    for grant in grants:
        if grant.claim and not grant.ended:
            claim = grant.claim.rpartition("/")[2]
            for pod in grant.pods:
                yield tuple(map(as_label, (pod.namespace, pod.name, claim)))


_OF_SHARE = (
    (names.SHARE_LIMIT, "memory_mib"),
    (names.SHARE_RESERVED, "reserved_percent"),
    (names.SHARE_USED, "used_mib"),
)


def _add_share(found: _Samples, labels: Labels, own: Sequence[_Part]) -> None:
    grants, cards = zip(*own, strict=True)
    for metric, field in _OF_SHARE:
        found.add(metric, total([getattr(card, field) for card in cards]), labels)
    found.add(names.SHARE_CAPPED, {grant.memory_cap for grant in grants} == {"cgroup"}, labels)
    if labels["holder"] != _PROGRAM:
        percents = [grant.thread_percent or 0 for grant in grants]
        found.add(names.SHARE_THREADS, max(percents), labels)
        found.add(names.SHARE_BELOW_NORMAL, all(grant.priority for grant in grants), labels)
    if None not in [card.used_mib for card in cards]:
        found.add(names.SHARE_OVER, any(card.over for card in cards), labels)


def _add_watchdog(found: _Samples, seen: ViolationsReport) -> None:
    """Every kind and action, so that the first is seen as an increase; what has not happened is
    known to be 0."""
    happened = {(one.kind, one.action): one for one in seen.counts}
    none = ViolationCount(count=0, ended=0)
    for kind in ViolationKind:
        for action in Response:
            labels = {"kind": kind.value, "action": action.value}
            one = happened.get((kind, action), none)
            found.add(names.VIOLATIONS, one.count, labels)
            found.add(names.VIOLATIONS_ENDED, one.ended, labels)
    found.add(names.JUDGING, not seen.unjudged)
    found.add(names.LOOKS, seen.looks)
    found.add(names.LATE_LOOKS, seen.late_looks)
    found.add(names.LONGEST_PAUSE, seen.longest_pause_s)
    found.add(names.NVML_SECONDS, seen.nvml_s)


def log_samples(dropped: Mapping[str, int]) -> Iterator[Sample]:
    """dropped: lines of the log, by process."""
    for process, lines in dropped.items():
        yield Sample(names.LOG_LINES_DROPPED.name, {"process": process}, lines)


def command_samples(times: Mapping[str, CommandTimes]) -> Iterator[Sample]:
    seconds = names.DOMAIN_COMMAND_SECONDS
    for domain, one in times.items():
        labels = {"domain": as_label(domain)}
        yield from _histogram(seconds, labels, one.answered, names.COMMAND_BOUNDS_S)
        yield Sample(names.DOMAIN_UNANSWERED.name, labels, one.unanswered)


def plugin_samples(calls: PluginCalls | None) -> Iterator[Sample]:
    if calls is None:  # without a kubelet
        return
    for (call, outcome), count in calls.counts.items():
        yield Sample(names.PLUGIN_CALLS.name, {"call": call.value, "outcome": outcome.value}, count)
    for call, durations in calls.times.items():
        labels = {"call": call.value}
        yield from _histogram(names.PLUGIN_SECONDS, labels, durations, names.CALL_BOUNDS_S)
    yield Sample(names.PLUGIN_HELD_BACK.name, {}, calls.held_back)


def _histogram(
    metric: Metric, labels: Labels, seen: Durations, bounds_s: Sequence[float]
) -> Iterator[Sample]:
    bucket, total, count = metric.series
    found = [*seen.up_to(bounds_s)]
    if found:  # else an mpsd control of another version counts by other bounds
        for bound, so_far in found:
            written = repr(bound)
            written = _WRITTEN.get(written, written)
            yield Sample(bucket, {**labels, "le": written}, so_far)
        yield Sample(total, labels, seen.sum_s)
        yield Sample(count, labels, seen.count)


# Prometheus' text format and OpenMetrics. prometheus_client's own writer takes 24 µs a sample where
# this takes one: 52 ms for a node with 320 pods, in which the agent could do nothing else.

_OURS = names.exported_by(names.Exporter.AGENT)
_OF = {series: metric.name for metric in _OURS for series in metric.series}
# what Python writes otherwise
_WRITTEN = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN", "True": "1", "False": "0"}


def text(found: Sequence[Sample], *, openmetrics: bool) -> str:
    # by where they are kept, for most are shared; `found` keeps them there
    labels: dict[int, str] = {}
    lines: defaultdict[str, list[str]] = defaultdict(list)
    for name, own, value in found:  # thousands of times at each scrape, so that a call less is seen
        where = id(own)
        number = repr(value)
        shown = labels.get(where)
        if shown is None:
            shown = labels[where] = _labels(tuple(own.items()))
        lines[_OF[name]].append(f"{name}{shown} {_WRITTEN.get(number, number)}\n")
    parts = []
    for metric in _OURS:
        if metric.name in lines:
            parts += [*_head(metric, openmetrics=openmetrics), *lines[metric.name]]
    return "".join(parts)


def _head(metric: Metric, *, openmetrics: bool) -> Iterator[str]:
    if not openmetrics:
        kind = names.Type.GAUGE if metric.type is names.Type.INFO else metric.type
        yield f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {kind}\n"
        return
    name = metric.family
    yield f"# HELP {name} {_escaped(metric.help)}\n# TYPE {name} {metric.type}\n"
    if metric.unit is not MetricUnit.NONE:
        yield f"# UNIT {name} {metric.unit}\n"


@lru_cache(4096)  # the same come again at each scrape
def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    if not labels:
        return ""
    pairs = ",".join([f'{name}="{_escaped(value)}"' for name, value in labels])
    return f"{{{pairs}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
