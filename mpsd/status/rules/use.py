"""Who uses what of the GPUs now, and what is left: the report of `GET /v1/use` and of `mpsd smi -o
json`."""

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
    it is the grant's only where it can be nobody else's: all of the server's clients on that GPU
    are the grant's, or none computes. None: NVML could not say, knows no process of the grant, or
    counts several grants as one.
    """
    here = [client for client in view.clients or () if client.gpu == gpu]
    own = [client for client in here if client.grant == grant]
    if samples is None or not own:
        return None
    servers = {
        pid for domain in view.domains if gpu in domain.record.gpus for pid in domain.record.servers
    }
    counted = {client.pid for client in own}
    if any(client.on_mps for client in own) and not servers.isdisjoint(samples):
        known = servers | {client.pid for client in here}
        if not known.issuperset(samples) or any(
            client.on_mps and client.grant != grant for client in here
        ):
            return None
        counted |= servers
    percent = total(samples.get(pid, 0) for pid in counted)
    # of times in which a kernel ran, which overlap
    return None if percent is None else min(100, percent)


@dataclass(frozen=True, slots=True)
class Busy:
    """What NVML reports of one GPU: how much of the time a kernel runs there, in percent, and
    whose."""

    percent: int
    samples: Samples


def use_report(
    view: NodeView, policy: Policy, busy: Mapping[str, Busy], unknown: Iterable[str] = ()
) -> NodeReport:
    """busy: by UUID, without the GPUs of which NVML did not report it. unknown: why, of those."""
    report = node_report(replace(view, waiting=()), policy)
    known = (
        {gpu.uuid for gpu in view.gpus} - view.ungrantable.keys() if view.grants_known else set()
    )
    domains = dict.fromkeys((gpu.uuid for gpu in view.gpus), "")
    rooms_left = rooms(view.gpus, domains, [held.grant for held in view.grants], policy)
    left = {room.gpu.uuid: room for room in rooms_left}
    gpus = []
    for gpu in report.gpus:
        room = left[gpu.uuid]
        compute = policy.compute.of(room.gpu.ordinal)
        used = changed(gpu, compute_policy=compute.policy, max_inst=compute.max_inst)
        if gpu.uuid in known:
            free = {
                "free_mib": max(0, room.memory_mib),
                "free_percent": max(0, room.thread_percent),
            }
            used = changed(used, **free, free_weight=room.weight)
        if gpu.uuid in busy:
            used = changed(used, sm_percent=busy[gpu.uuid].percent)
        gpus.append(used)
    grants = []
    for grant in report.grants or ():
        cards = tuple([_card(grant.id, card, view, busy) for card in grant.cards])
        grants.append(changed(grant, cards=cards))
    return changed(
        report, gpus=tuple(gpus), grants=tuple(grants), unknown=(*view.unknown, *unknown)
    )


def _card(grant: str, card: CardReport, view: NodeView, busy: Mapping[str, Busy]) -> CardReport:
    samples = busy[card.gpu].samples if card.gpu in busy else None
    return changed(card, sm_percent=sm_percent(grant, card.gpu, view, samples))
