"""Which of the candidate nodes have room for a pod, and why the others have none.

Up to _FEW nodes each get a reason that names what their GPUs lack. More get one that can be counted: the scheduler
counts equal reasons into one event, and cuts that at 1 kB.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

from mpsd.grants.rules.placement import InsufficientResources, place
from mpsd.kubelet.rules.gpu_choice import SharedPod, read_shared_pod
from mpsd.kubelet.rules.node_pods import request_problems
from mpsd.model.grants import GpuCapacity, Request
from mpsd.model.policy import Policy
from mpsd.model.quantity import gib, is_zero
from mpsd.scheduler.rules.capacity import NodeCapacity, has_domain
from mpsd.scheduler.rules.gpu_table import BEST, GpuTable, Lack

UNKNOWN_NODE = "mpsd knows no GPU of this node"  # of one that has no MPSNode


def why_not(request: Request, ledger: NodeCapacity) -> str:
    """Why nothing of this node fits; empty where something does."""
    if ledger.shut:
        return ledger.shut
    found = place(request, ledger.rooms, ledger.policy)
    if not isinstance(found, InsufficientResources):
        return ""
    if not has_domain(request, ledger):
        return f"no domain of this node has {request.gpus} GPUs"
    lacks = [
        *_lacks(request, ledger.rooms, ledger),
        *((one.gpu.label, f"is {one.reason}", "") for one in ledger.closed),
    ]
    if request.gpus > 1 and not any(words for _label, words, _short in lacks):
        return f"no domain of this node has {request.gpus} GPUs with room"
    reasons = _joined((label, words, short) for label, words, short in lacks if words)
    return f"{reasons}; wanted are {request.gpus} GPUs of one domain" if request.gpus > 1 else reasons


def _lacks(request: Request, rooms: Iterable[GpuCapacity], ledger: NodeCapacity) -> Iterator[tuple[str, str, str]]:
    """Of each GPU its label, what it lacks, and the same after another GPU that lacks the like; empty for nothing."""
    clients = ledger.policy.requests.clients_per_grant
    for room in rooms:
        label = room.gpu.label
        if room.memory_mib < request.memory_mib:
            free = gib(max(0, room.memory_mib))
            yield label, f"has {free} of {gib(request.memory_mib)} GiB free", free
        elif room.thread_percent < (request.thread_percent or 0):
            percent = str(max(0, room.thread_percent))
            yield label, f"has {percent} of {request.thread_percent} % of the threads free", percent
        elif room.clients < clients:
            left = str(max(0, room.clients))
            yield label, f"has {left} of {clients} clients free", left
        else:
            yield label, "", ""


def _joined(lacks: Iterable[tuple[str, str, str]]) -> str:
    """`gpu0 has 3 of 7 GiB free, gpu1 4, gpu2 is cordoned`."""
    parts: list[str] = []
    kind = ""
    for label, words, short in lacks:
        now = words.replace(short, "", 1) if short else ""
        parts.append(f"{label} {short}" if short and now == kind else f"{label} {words}")
        kind = now
    return ", ".join(parts)


_FEW = 16
_NEVER = frozenset({Lack.UNKNOWN, Lack.SIZE})  # preemption does not help there
_MAYBE_SHUT = frozenset({Lack.SIZE, Lack.SERVING})  # which look the same in columns as a silent node


class UnreadablePod(Exception):
    """A pod whose request for GPUs cannot be read."""


def read_asking(pod: Mapping[str, Any], policy: Policy) -> SharedPod | None:
    """None for one that asks for no GPU. UnreadablePod."""
    if problems := request_problems(pod, policy):
        raise UnreadablePod(f"mpsd cannot read the requests of this pod: {', and '.join(map(str, problems))}")
    found = read_shared_pod(pod, policy)
    if found is None and _names_ours(pod, policy):
        raise UnreadablePod("mpsd cannot read this pod: it has no namespace, name, uid or time of creation")
    return found


def _names_ours(pod: Mapping[str, Any], policy: Policy) -> bool:
    """Whether it requests our resources at all; reads nothing else, since that may be what cannot be read."""
    spec = pod.get("spec")
    lists = [spec.get(key) for key in ("containers", "initContainers")] if isinstance(spec, dict) else []
    for container in (one for each in lists if isinstance(each, list) for one in each if isinstance(one, dict)):
        resources = container.get("resources")
        limits = resources.get("limits") if isinstance(resources, dict) else None
        for name in (policy.resources.memory, policy.resources.percent):
            if isinstance(limits, dict) and name in limits and not is_zero(limits[name]):
                return True
    return False


@dataclass(frozen=True, slots=True)
class Filtered:
    """passing: in the order of the candidates. failed: why not, by name. never: those of `failed` where the pod would
    not fit on an empty node either.
    """

    passing: tuple[str, ...]
    failed: Mapping[str, str] = field(default_factory=dict)
    never: Mapping[str, str] = field(default_factory=dict)


def filtered(request: Request, nodes: tuple[str, ...], table: GpuTable, own: Mapping[str, NodeCapacity]) -> Filtered:
    """own: the capacity without the reservation for this very pod, of the nodes where it has one."""
    passing = table.passing(request, nodes)
    kept = {node for node, ledger in own.items() if node in nodes and not why_not(request, ledger)}
    if kept:
        both = kept.union(passing)
        passing = tuple(node for node in nodes if node in both)
    if len(passing) == len(nodes):
        return Filtered(passing)
    lacks = table.lacks(request, table.slots(nodes)).tolist()
    failing = dict(compress(zip(nodes, lacks, strict=True), lacks))
    for node in kept & failing.keys():
        del failing[node]
    failed = _in_detail(request, table, failing) if len(failing) <= _FEW else _in_short(request, table, failing)
    never = {node: failed[node] for node, lack in failing.items() if lack in _NEVER}
    return Filtered(passing, failed, never)


def scores(request: Request, nodes: tuple[str, ...], table: GpuTable, own: Mapping[str, NodeCapacity]) -> list[int]:
    """From 0 to BEST for each node, the best where the pod has a reservation already."""
    found: list[int] = table.scores(request, table.slots(nodes)).tolist()
    return [BEST if node in own else score for node, score in zip(nodes, found, strict=True)] if own else found


def _in_detail(request: Request, table: GpuTable, failing: Iterable[str]) -> dict[str, str]:
    found = {node: table.ledger(node) for node in failing}
    return {node: why_not(request, ledger) if ledger else UNKNOWN_NODE for node, ledger in found.items()}


def _in_short(request: Request, table: GpuTable, failing: Mapping[str, int]) -> dict[str, str]:
    """failing: what each lacks."""
    words = {lack: _words(request, Lack(lack)) for lack in set(failing.values())}
    failed = {node: words[lack] for node, lack in failing.items()}
    if not _MAYBE_SHUT.isdisjoint(words):
        found = ((node, table.ledger(node)) for node, lack in failing.items() if lack in _MAYBE_SHUT)
        failed.update((node, ledger.shut) for node, ledger in found if ledger and ledger.shut)
    return failed


def _words(request: Request, lack: Lack) -> str:
    """The same for every node that lacks this."""
    one = request.gpus == 1
    none, has, is_ = ("no GPU", "has", "is") if one else (f"fewer than {request.gpus} GPUs", "have", "are")
    memory = f"{gib(request.memory_mib)} GiB"
    threads = [f"{request.thread_percent} % of its threads"] if request.thread_percent else []
    both = " and ".join([memory] * bool(request.memory_mib) + threads)
    match lack:
        case Lack.UNKNOWN:
            return UNKNOWN_NODE
        case Lack.SIZE:
            return f"{none} {is_} as large as {memory}"
        case Lack.SERVING:
            return "every GPU is cordoned or not ready"
        case Lack.MEMORY:
            return f"{none} {has} {memory} free"
        case Lack.THREADS:
            return f"{none} {has} {both} free"
        case Lack.CLIENTS:
            return f"{none} {has} {both} and enough clients free"
        case _:
            return f"no domain has {request.gpus} GPUs with room"
