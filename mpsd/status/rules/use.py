"""Who uses what of the GPUs now, and what is left: `GET /v1/use` and `mpsd smi -o json`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from msgspec.structs import replace as changed

from mpsd.model.grants import rooms
from mpsd.model.node_report import CardReport, NodeReport, total
from mpsd.model.node_view import NodeView
from mpsd.model.policy import Policy
from mpsd.status.rules.node_report import node_report

Samples = Mapping[int, int | None]  # by pid, in percent; None: NVML gave a number that cannot be


def sm_percent(grant: str, gpu: str, view: NodeView, samples: Samples | None) -> int | None:
    """How busy a grant keeps the SMs of a GPU, in percent of the time; who has no sample is idle.
    NVML counts what a client of MPS computes as its server's (docs/mps-observed.md, section 7), so
    it is the grant's only where it can be nobody else's. None: NVML could not say, knows no process
    of the grant, or counts several grants as one.
    """
    here = [client for client in view.clients if client.gpu == gpu]
    counted = {client.pid for client in here if client.grant == grant}
    if samples is None or not counted:
        return None
    servers = set[int]()
    for domain in view.domains:
        if gpu in domain.record.gpus:
            servers.update(domain.record.servers)
    on_mps = {client.grant for client in here if client.on_mps}
    if grant in on_mps and not servers.isdisjoint(samples):
        known = servers.union([client.pid for client in here])
        if on_mps != {grant} or not known.issuperset(samples):
            return None
        counted |= servers
    percent = total([samples.get(pid, 0) for pid in counted])
    # of times in which a kernel ran, which overlap
    return None if percent is None else min(100, percent)


@dataclass(frozen=True, slots=True)
class Busy:
    """How much of the time a kernel runs on a GPU, in percent, and whose."""

    percent: int
    samples: Samples


def use_report(
    view: NodeView, policy: Policy, busy: Mapping[str, Busy], unknown: Iterable[str] = ()
) -> NodeReport:
    """busy: by UUID, without the GPUs of which NVML did not report it. unknown: why, of those."""
    report = node_report(replace(view, waiting=()), policy)
    domains = dict.fromkeys(report.labels, "")
    rooms_left = rooms(view.gpus, domains, [held.grant for held in view.grants], policy)
    gpus = []
    for gpu, room in zip(report.gpus, rooms_left, strict=True):
        compute = policy.compute.of(room.gpu.ordinal)
        used = changed(gpu, compute_policy=compute.policy, max_inst=compute.max_inst)
        if view.grants_known and gpu.uuid not in view.ungrantable:
            used = changed(
                used,
                free_mib=max(0, room.memory_mib),
                free_percent=max(0, room.thread_percent),
                free_weight=room.weight,
            )
        if gpu.uuid in busy:
            used = changed(used, sm_percent=busy[gpu.uuid].percent)
        gpus.append(used)
    grants = []
    for grant in report.grants or ():
        cards = tuple([_card(grant.id, card, view, busy) for card in grant.cards])
        grants.append(changed(grant, cards=cards))
    return changed(
        report, gpus=tuple(gpus), grants=tuple(grants), unknown=(*report.unknown, *unknown)
    )


def _card(grant: str, card: CardReport, view: NodeView, busy: Mapping[str, Busy]) -> CardReport:
    samples = busy[card.gpu].samples if card.gpu in busy else None
    return changed(card, sm_percent=sm_percent(grant, card.gpu, view, samples))
