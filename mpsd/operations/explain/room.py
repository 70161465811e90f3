"""The free capacity of a cluster's GPUs, read once from outside: the ledger of its nodes.

A missing right leaves out what it is for, and that is reported; without MPSNodes there is no answer.

Rights of whoever asks: get and list of mpsnodes.mpsd.io, list of nodes and of pods in all namespaces.
"""

import asyncio
import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mpsd.kubelet.rules.gpu_choice import SharedPod, read_shared_pod
from mpsd.model.cluster_status import ClusterNode
from mpsd.model.mpsnode_reading import read_mpsnode
from mpsd.platform.kube import NODES, PODS, Forbidden, Kube, Object
from mpsd.platform.rules.kubernetes_objects import KubernetesNode, read_kubernetes_node
from mpsd.scheduler.rules.capacity import PLACEMENT_LABEL, NodeCapacity, Terms, node_capacity
from mpsd.scheduler.rules.reservations import KEY, Reservation, read_reservations
from mpsd.status.cluster import PolicyInForce, mpsnodes

# What kubelet gave stands in the MPSNodes within a second or two of the pod's start: only the others are asked for.
_PENDING = {"fieldSelector": "status.phase=Pending"}
Found = TypeVar("Found")
Other = TypeVar("Other")


@dataclass(frozen=True, slots=True)
class ClusterCapacity:
    """What was read. told, ledger: by name of node. pending: pods that request GPUs and have not started. machines: the
    Nodes by name; None where the right is missing. unseen: what could not be read, a sentence each.
    """

    now: float
    told: Mapping[str, ClusterNode]
    ledger: Mapping[str, NodeCapacity]
    pending: tuple[SharedPod, ...]
    machines: Mapping[str, KubernetesNode] | None
    unseen: tuple[str, ...]


async def look_for_room(kube: Kube, names: Sequence[str], in_force: PolicyInForce) -> ClusterCapacity:
    """The capacity of these nodes, of all where none is named. Raises as `mpsnodes` does."""
    unseen: list[str] = []
    things, (machines, pending) = await both(
        mpsnodes(kube, names),
        both(
            allowed(_machines(kube), "nodes are not read", unseen),
            allowed(_pods(kube, _PENDING, in_force), "pods that kubelet has given nothing yet are not counted", unseen),
        ),
    )
    return _room(things, machines, pending, in_force, unseen)


async def both(first: Awaitable[Found], second: Awaitable[Other]) -> tuple[Found, Other]:
    """Both answers, asked at once. An error is raised when both have ended, so that the connection can be closed."""
    one, other = await asyncio.gather(first, second, return_exceptions=True)
    if isinstance(one, BaseException):
        raise one
    if isinstance(other, BaseException):
        raise other
    return one, other


async def allowed(asked: Awaitable[Found], without: str, unseen: list[str]) -> Found | None:
    """The answer; None where a right is missing, which `unseen` then says."""
    try:
        return await asked
    except Forbidden as error:
        unseen.append(f"{without}: {error}")
        return None


async def _machines(kube: Kube) -> Mapping[str, KubernetesNode]:
    pages = [page.items async for page in kube.pages(NODES)]
    return {one.name: one for items in pages for one in map(read_kubernetes_node, items)}


async def _pods(kube: Kube, query: Mapping[str, str], in_force: PolicyInForce) -> tuple[SharedPod, ...]:
    pages = kube.pages(PODS, query=query)
    found = [read_shared_pod(thing, in_force.policy) async for page in pages for thing in page.items]
    return tuple(pod for pod in found if pod)


def _room(
    things: Iterable[Object],
    machines: Mapping[str, KubernetesNode] | None,
    pending: tuple[SharedPod, ...] | None,
    in_force: PolicyInForce,
    unseen: Iterable[str],
) -> ClusterCapacity:
    now, terms = time.time(), Terms.of(in_force.policy, in_force.clients)
    bound: dict[str, list[SharedPod]] = {}
    for pod in pending or ():
        bound.setdefault(pod.node, []).append(pod)
    told, ledger = {}, {}
    for thing in things:
        node = read_mpsnode(thing, now)
        machine = (machines or {}).get(node.name)
        placement = machine.labels.get(PLACEMENT_LABEL, "") if machine else ""
        reserved = _reservations(thing, node.name, pending)
        told[node.name] = node
        ledger[node.name] = node_capacity(node, placement, bound.get(node.name, ()), reserved, terms)
    return ClusterCapacity(now, told, ledger, pending or (), machines, tuple(unseen))


def _reservations(thing: Object, node: str, pending: tuple[SharedPod, ...] | None) -> tuple[Reservation, ...]:
    """Reservations of pods that wait, for any node or for this one's kubelet; the others are only not removed yet.

    All of them where pods may not be read.
    """
    written = (thing["metadata"].get("annotations") or {}).get(KEY, "")
    reserved = read_reservations(written) if isinstance(written, str) else ()
    if pending is None or not reserved:
        return reserved
    waiting = {pod.name.uid for pod in pending if pod.node in ("", node)}
    return tuple(one for one in reserved if one.pod.uid in waiting)
