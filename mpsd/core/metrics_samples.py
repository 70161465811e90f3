"""What the agent's metrics are now, of a status of its node.

One rule: what is not known has no sample, for unknown is never zero; no sample is there twice.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from mpsd.core import metrics_names as names
from mpsd.core.domain_states import State
from mpsd.core.metrics_names import Holder, Metric, Unit
from mpsd.core.node_status import CardStatus, DomainStatus, GpuStatus, GrantStatus, NodeStatus, ViolationsStatus
from mpsd.core.policy import Response
from mpsd.core.violations import Kind

Labels = Mapping[str, str]
_NONE: Labels = {}
_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of the metric of this name; labels as the table has them."""

    name: str
    labels: Labels
    value: float


@dataclass(frozen=True, slots=True)
class _Held:
    """Who holds a share of which GPU, as its labels say. A program's pid is no label: programs are told together."""

    gpu: str
    holder: Holder
    namespace: str = ""
    pod: str = ""
    container: str = ""


_Share = tuple[GrantStatus, CardStatus]


def samples(status: NodeStatus | None, *, limits_wrong: bool) -> Iterator[Sample]:
    """status: None before the first look at the node."""
    yield from _known(names.LIMITS_WRONG, limits_wrong)
    if status is None:
        return
    yield from _known(names.DRIVER, 1, {"version": _text(status.driver)})
    yield from _known(names.LOOKED_AT, status.now)
    yield from _known(names.UNKNOWN, len(status.unknown))
    yield from _known(names.WAITING, len(status.waiting))
    for domain in status.domains:
        yield from _of_domain(domain)
    for gpu in status.gpus:
        yield from _of_gpu(gpu, status)
    yield from _of_grants(status)
    if status.violations:
        yield from _of_watchdog(status.violations)


def _known(metric: Metric, value: float | None, labels: Labels = _NONE) -> Iterator[Sample]:
    """value: as it is in a status; a metric in bytes has MiB there, and one that is a ratio a percentage."""
    if value is not None:
        yield Sample(metric.name, labels, _in_base_unit(metric.unit, value))


def _in_base_unit(unit: Unit, value: float) -> float:
    match unit:
        case Unit.BYTES:
            return value * _MIB
        case Unit.RATIO:
            return value / 100
        case Unit.SECONDS | Unit.NONE:
            return value


def _text(value: str) -> str:
    """A label's value as UTF-8 can have it; names of containers are whatever somebody wrote."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def _of_domain(domain: DomainStatus) -> Iterator[Sample]:
    labels = {"domain": _text(domain.name)}
    for state in State:
        yield from _known(names.DOMAIN_STATE, state is domain.state, {**labels, "state": state.value})
    yield from _known(names.DOMAIN_SINCE, domain.since, labels)
    yield from _known(names.DOMAIN_RESTARTS, domain.restarts, labels)
    yield from _known(names.DOMAIN_SERVERS, len(domain.servers), labels)
    yield from _known(names.DOMAIN_FAULTS, domain.faults.count, labels)
    yield from _known(names.DOMAIN_FAULT_AT, domain.faults.last, labels)
    yield from _known(names.DOMAIN_CANARY, None if domain.canary is None else not domain.canary.problem, labels)


def _of_gpu(gpu: GpuStatus, status: NodeStatus) -> Iterator[Sample]:
    labels = {"gpu": _text(gpu.label), "uuid": _text(gpu.uuid)}
    about = {"domain": _text(gpu.domain or ""), "model": _text(gpu.name)}
    yield from _known(names.GPU, 1, {**labels, **about})
    yield from _known(names.GPU_MEMORY, gpu.memory_mib, labels)
    yield from _known(names.GPU_PROMISED, gpu.promised_mib, labels)
    yield from _known(names.GPU_USED, gpu.used_mib, labels)
    yield from _known(names.GPU_PROMISED_THREADS, gpu.promised_percent, labels)
    yield from _known(names.GPU_PROMISED_CLIENTS, gpu.promised_clients, labels)
    yield from _known(names.GPU_CLIENTS, gpu.clients, labels)
    if status.grants_known:
        yield from _known(names.GPU_GRANTED, gpu.granted_mib, labels)
        yield from _known(names.GPU_GRANTED_THREADS, gpu.granted_percent, labels)
        for holder, count in _holders(gpu.uuid, status.grants).items():
            yield from _known(names.GRANTS, count, {**labels, "holder": holder.value})
    if status.clients is not None:
        here = [client for client in status.clients if client.gpu == gpu.uuid]
        yield from _known(names.GPU_OUTSIDE, sum(not client.on_mps for client in here), labels)
        if status.grants_known:
            yield from _known(names.GPU_STRANGERS, sum(client.grant is None for client in here), labels)


def _holders(gpu: str, grants: Iterable[GrantStatus]) -> Mapping[Holder, int]:
    found = Counter(_holder(grant) for grant in grants if gpu in grant.gpus)
    return {holder: found[holder] for holder in Holder}


def _holder(grant: GrantStatus) -> Holder:
    if grant.pod is not None:
        return Holder.POD
    return Holder.PROGRAM if grant.container is None else Holder.CONTAINER


def _of_grants(status: NodeStatus) -> Iterator[Sample]:
    """A pod and a container by its name, as long as it lives; containers without one together, as programs are."""
    gpus = {_text(gpu.uuid): _text(gpu.label) for gpu in status.gpus}
    clients = None if status.clients is None else Counter((client.grant, client.gpu) for client in status.clients)
    shares: defaultdict[_Held, list[_Share]] = defaultdict(list)
    for grant in status.grants:
        holder = _holder(grant)
        if holder is Holder.PROGRAM or grant.holder_alive:
            for card in grant.cards:
                shares[_held(grant, holder, card.gpu)].append((grant, card))
    for held, own in shares.items():
        yield from _of_share(held, own, gpus.get(held.gpu, held.gpu), clients)


def _held(grant: GrantStatus, holder: Holder, gpu: str) -> _Held:
    match holder:
        case Holder.POD:
            return _Held(_text(gpu), holder, _text(grant.namespace or ""), _text(grant.pod or ""))
        case Holder.CONTAINER:
            return _Held(_text(gpu), holder, container=_text(grant.container_name or ""))
        case Holder.PROGRAM:
            return _Held(_text(gpu), holder)


def _of_share(
    held: _Held, own: list[_Share], gpu: str, clients: Mapping[tuple[str | None, str], int] | None
) -> Iterator[Sample]:
    labels = {
        "gpu": gpu,
        "uuid": held.gpu,
        "holder": held.holder.value,
        "namespace": held.namespace,
        "pod": held.pod,
        "container": held.container,
    }
    used = [card.used_mib for _grant, card in own if card.used_mib is not None]
    yield from _known(names.SHARE_LIMIT, sum(card.memory_mib for _grant, card in own), labels)
    yield from _known(names.SHARE_RESERVED, sum(card.reserved_percent for _grant, card in own), labels)
    if held.holder is not Holder.PROGRAM:
        yield from _known(names.SHARE_THREADS, max(grant.thread_percent for grant, _card in own), labels)
    if len(used) == len(own):
        yield from _known(names.SHARE_USED, sum(used), labels)
        yield from _known(names.SHARE_OVER, any(card.over for _grant, card in own), labels)
    if clients is not None:
        yield from _known(names.SHARE_CLIENTS, sum(clients[grant.id, card.gpu] for grant, card in own), labels)


def _of_watchdog(seen: ViolationsStatus) -> Iterator[Sample]:
    """Every kind and action, so that the first is seen as an increase; what has not happened is known to be 0."""
    happened = {(one.kind, one.action): one for one in seen.counts}
    for kind in Kind:
        for action in Response:
            labels = {"kind": kind.value, "action": action.value}
            one = happened.get((kind, action))
            yield from _known(names.VIOLATIONS, one.count if one else 0, labels)
            yield from _known(names.VIOLATIONS_ENDED, one.ended if one else 0, labels)
    yield from _known(names.JUDGING, not seen.unjudged)
    yield from _known(names.LOOKS, seen.looks)
    yield from _known(names.LATE_LOOKS, seen.late_looks)
    yield from _known(names.LONGEST_PAUSE, seen.longest_pause_s)
    yield from _known(names.NVML_SECONDS, seen.nvml_s)
