"""Which of the candidate nodes have room for a pod, and why the others have none.

Up to _FEW nodes each get a reason that names what their GPUs lack. More get one that can be
counted: the scheduler counts equal reasons into one event, and cuts that at 1 kB.
"""

from collections.abc import Mapping
from itertools import compress
from typing import Any, NamedTuple

from mpsd.grants.rules.placement import find_gpus, needs, wanted, what_lacks
from mpsd.kubelet.rules.gpu_choice import SharedPod, shared_pod
from mpsd.model.grants import Request
from mpsd.model.pod import pod_in
from mpsd.model.policy import Policy
from mpsd.model.quantity import gib
from mpsd.model.request import read_allocated
from mpsd.scheduler.rules.capacity import NodeCapacity, has_domain
from mpsd.scheduler.rules.gpu_table import BEST, GpuTable, Lack

UNKNOWN_NODE = "mpsd knows no GPU of this node"  # of one that has no MPSNode


def why_not(request: Request, ledger: NodeCapacity | None) -> str:
    """Why nothing of this node fits; empty where something does. ledger None: the node has no
    MPSNode."""
    if ledger is None:
        return UNKNOWN_NODE
    if ledger.shut or find_gpus(request, ledger.rooms, ledger.policy):
        return ledger.shut
    if not has_domain(request, ledger):
        return f"no domain of this node has {request.gpus} GPUs"
    closed = {one.gpu.label: one.reason for one in ledger.closed}
    return what_lacks(request, ledger.rooms, ledger.policy, closed)


_FEW = 16
_NEVER = frozenset({Lack.UNKNOWN, Lack.SIZE})  # preemption does not help there
# which look the same in columns as a silent node
_MAYBE_SHUT = frozenset({Lack.SIZE, Lack.SERVING})


class UnreadablePod(Exception):
    """A pod whose request for GPUs cannot be read."""


def read_asking(thing: Mapping[str, Any], policy: Policy) -> SharedPod | None:
    """None for one that asks for no GPU. UnreadablePod."""
    pod = pod_in(thing)
    if pod is None:
        return None
    share = read_allocated(pod, policy.resources)
    if share.problems:
        raise UnreadablePod(
            f"mpsd cannot read the requests of this pod: {', and '.join(map(str, share.problems))}"
        )
    found = shared_pod(pod, share)
    if found is None and share.requests:
        raise UnreadablePod(
            "mpsd cannot read this pod: it has no namespace, name, uid or time of creation"
        )
    return found


class Filtered(NamedTuple):
    """passing: in the order of the candidates. failed: why not, by name. never: those of `failed`
    where the pod would not fit on an empty node either."""

    passing: tuple[str, ...]
    failed: Mapping[str, str]
    never: Mapping[str, str]


def filtered(
    request: Request, nodes: tuple[str, ...], table: GpuTable, own: Mapping[str, NodeCapacity]
) -> Filtered:
    """own: the capacity without the reservation for this very pod, of the nodes where it has
    one."""
    passing = table.passing(request, nodes)
    kept = {node for node, ledger in own.items() if node in nodes and not why_not(request, ledger)}
    if kept:
        both = kept.union(passing)
        passing = tuple(node for node in nodes if node in both)
    if len(passing) == len(nodes):
        return Filtered(passing, {}, {})
    lacks = table.lacks(request, table.slots(nodes)).tolist()
    failing = dict(compress(zip(nodes, lacks, strict=True), lacks))
    for node in kept & failing.keys():
        del failing[node]
    if len(failing) > _FEW:
        failed = _in_short(request, table, failing)
    else:
        failed = {node: why_not(request, table.ledger(node)) for node in failing}
    never = {node: failed[node] for node, lack in failing.items() if lack in _NEVER}
    return Filtered(passing, failed, never)


def scores(
    request: Request, nodes: tuple[str, ...], table: GpuTable, own: Mapping[str, NodeCapacity]
) -> list[int]:
    """From 0 to BEST for each node, the best where the pod has a reservation already."""
    found: list[int] = table.scores(request, table.slots(nodes)).tolist()
    for node in own.keys() & set(nodes) if own else ():
        found[nodes.index(node)] = BEST
    return found


def _in_short(request: Request, table: GpuTable, failing: Mapping[str, int]) -> dict[str, str]:
    words = _words(request)
    failed = {node: words[Lack(lack)] for node, lack in failing.items()}
    shut = table.shut.items()
    return failed | {node: why for node, why in shut if failing.get(node) in _MAYBE_SHUT}


def _words(request: Request) -> Mapping[Lack, str]:
    none, has, is_ = "no GPU", "has", "is"
    if request.gpus > 1:
        none, has, is_ = f"fewer than {request.gpus} GPUs", "have", "are"
    memory = f"{gib(request.memory_mib)} GiB"
    both = wanted(request)
    return {
        Lack.UNKNOWN: UNKNOWN_NODE,
        Lack.SIZE: f"{none} {is_} as large as {memory}",
        Lack.SERVING: "every GPU is cordoned or not ready",
        Lack.MEMORY: f"{none} {has} {memory} free",
        Lack.THREADS: f"{none} {has} {both} free",
        Lack.CLIENTS: f"{none} {has} {both} and enough clients free",
        Lack.TOGETHER: f"{needs(request)}, and those with room are used apart",
    }
