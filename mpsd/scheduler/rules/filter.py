"""Which of the nodes that kube-scheduler asks about have room for a pod, and why the others have none.

One rule: few nodes are each told what their own GPUs lack; many are told what can be counted, since the scheduler
counts equal reasons into one event, and cuts that at 1 kB.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

from mpsd.kubelet.rules.gpu_choice import SharedPod, read_shared_pod
from mpsd.kubelet.rules.node_pods import request_problems
from mpsd.model.grants import Request
from mpsd.model.policy import Policy
from mpsd.model.quantity import gib, is_zero
from mpsd.scheduler.rules.capacity import NodeCapacity
from mpsd.scheduler.rules.gpu_table import BEST, GpuTable, Lack
from mpsd.scheduler.rules.shortage import NO_BOOKS, why_not

_FEW = 16
_NEVER = frozenset({Lack.BOOKS, Lack.SIZE})  # whoever is stopped there, it would not fit
_MAYBE_SHUT = frozenset({Lack.SIZE, Lack.SERVING})  # which look the same in columns as a node that tells nothing


class UnreadablePod(Exception):
    """A pod that asks for GPUs in a way that cannot be read, so that nobody knows what fits it."""


def read_asking(pod: Mapping[str, Any], policy: Policy) -> SharedPod | None:
    """None for one that asks for no GPU. UnreadablePod."""
    if problems := request_problems(pod, policy):
        raise UnreadablePod(f"mpsd cannot read what this pod asks for: {', and '.join(map(str, problems))}")
    found = read_shared_pod(pod, policy)
    if found is None and _names_ours(pod, policy):
        raise UnreadablePod("mpsd cannot read this pod: it has no namespace, name, uid or time of creation")
    return found


def _names_ours(pod: Mapping[str, Any], policy: Policy) -> bool:
    """Whether it asks for ours in any way, found without all the rest of it, which may be what cannot be read."""
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
    """passing: in the order in which they were asked about. failed: why not, by name. never: those of `failed` that
    would not fit either if nobody held anything.
    """

    passing: tuple[str, ...]
    failed: Mapping[str, str] = field(default_factory=dict)
    never: Mapping[str, str] = field(default_factory=dict)


def filtered(request: Request, nodes: tuple[str, ...], table: GpuTable, own: Mapping[str, NodeCapacity]) -> Filtered:
    """own: ledger without what is promised to this very pod, of the nodes where it has a promise."""
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
    """From 0 to BEST for each node, the best where the pod has a promise already."""
    found: list[int] = table.scores(request, table.slots(nodes)).tolist()
    return [BEST if node in own else score for node, score in zip(nodes, found, strict=True)] if own else found


def _in_detail(request: Request, table: GpuTable, failing: Iterable[str]) -> dict[str, str]:
    found = {node: table.ledger(node) for node in failing}
    return {node: why_not(request, ledger) if ledger else NO_BOOKS for node, ledger in found.items()}


def _in_short(request: Request, table: GpuTable, failing: Mapping[str, int]) -> dict[str, str]:
    """failing: what each lacks."""
    words = {lack: _words(request, Lack(lack)) for lack in set(failing.values())}
    failed = {node: words[lack] for node, lack in failing.items()}
    if not _MAYBE_SHUT.isdisjoint(words):
        found = ((node, table.ledger(node)) for node, lack in failing.items() if lack in _MAYBE_SHUT)
        failed.update((node, ledger.shut) for node, ledger in found if ledger and ledger.shut)
    return failed


def _words(request: Request, lack: Lack) -> str:
    """Alike for every node that lacks this."""
    one = request.gpus == 1
    none, has, is_ = ("no GPU", "has", "is") if one else (f"fewer than {request.gpus} GPUs", "have", "are")
    memory = f"{gib(request.memory_mib)} GiB"
    threads = [f"{request.thread_percent} % of its threads"] if request.thread_percent else []
    both = " and ".join([memory] * bool(request.memory_mib) + threads)
    match lack:
        case Lack.BOOKS:
            return NO_BOOKS
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
