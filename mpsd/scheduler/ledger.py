"""The capacity of all GPUs of a cluster, kept up to date by watches on MPSNodes, Nodes and pods.

A row of the table is written when something of its node changes, not when it is read.

Rights: list and watch mpsnodes, nodes and pods.
"""

import asyncio
import heapq
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mpsd.kubelet.rules.gpu_choice import SharedPod, read_shared_pod
from mpsd.model.policy import Policy
from mpsd.model.times import lasting
from mpsd.platform.kube import MPS_NODES, NODES, PODS, Kube, Object
from mpsd.platform.kube_mirror import Mirror, Selection
from mpsd.platform.limits_files import PinnedResources
from mpsd.platform.logs import logger
from mpsd.platform.rules.kubernetes_objects import read_kubernetes_node
from mpsd.scheduler.node import KnownNode, ReportedNode, read_reported
from mpsd.scheduler.rules.capacity import PLACEMENT_LABEL, NodeCapacity, Terms
from mpsd.scheduler.rules.gpu_table import GpuTable
from mpsd.scheduler.rules.reservations import LONGEST_S, Reservation, ReservationFate


class KnownPods:
    """The pods of a cluster that request GPUs, and those that have ended. remembered_s: how long an end is remembered.

    A pod has ended only if it was there and is gone; one that was never seen may still come.
    """

    def __init__(self, remembered_s: float) -> None:
        self._remembered_s = remembered_s
        self._pods: dict[tuple[str, str], SharedPod] = {}
        self._ended: set[str] = set()  # uids
        self._ends: deque[tuple[float, str]] = deque()

    def pod(self, namespace: str, name: str) -> SharedPod | None:
        """None for an unknown pod."""
        return self._pods.get((namespace, name))

    def changed(self, before: SharedPod | None, now: SharedPod | None, at: float) -> None:
        """Takes a pod as it was and is; None: not there."""
        if before:
            del self._pods[before.name.namespace, before.name.name]
        if now:
            self._pods[now.name.namespace, now.name.name] = now
        if before and (now is None or now.name.uid != before.name.uid):
            self._ended.add(before.name.uid)
            self._ends.append((at, before.name.uid))
        while self._ends and at - self._ends[0][0] > self._remembered_s:
            self._ended.discard(self._ends.popleft()[1])

    def fate(self, reservation: Reservation, node: str) -> ReservationFate:
        """What is known of the pod of this node's reservation, from the watch on pods."""
        if reservation.pod.uid in self._ended:
            return ReservationFate.ENDED
        pod = self.pod(reservation.pod.namespace, reservation.pod.name)
        if pod is None or pod.name.uid != reservation.pod.uid:
            return ReservationFate.UNSEEN
        if not pod.node:
            return ReservationFate.WAITING
        return ReservationFate.BOUND if pod.node == node else ReservationFate.ELSEWHERE


_COARSE_S = 1.0  # that a row may be late where only time has passed


class Rows:
    """The rows of a table that have to be written. Each is written once for all changes, before it is read or soon.

    write: writes one row, and returns when it changes if nothing else happens; None: never. now: of the same clock.
    """

    def __init__(self, write: Callable[[str], float | None], now: Callable[[], float]) -> None:
        self._write = write
        self._now = now
        self._changed: set[str] = set()
        self._due: list[tuple[float, str]] = []  # a heap
        self._due_at: dict[str, float] = {}  # what of the heap counts

    def mark(self, name: str) -> None:
        """Marks a row as changed."""
        if not self._changed:
            asyncio.get_running_loop().call_soon(self.settle)
        self._changed.add(name)

    def settle(self) -> None:
        """Writes what has changed."""
        self._take_due()
        changed, self._changed = self._changed, set()
        for name in changed:
            at = self._write(name)
            if at is not None and at < self._due_at.get(name, math.inf) - _COARSE_S:
                self._due_at[name] = at
                heapq.heappush(self._due, (at, name))

    def _take_due(self) -> None:
        now = self._now()
        while self._due and self._due[0][0] <= now:
            at, name = heapq.heappop(self._due)
            if self._due_at.get(name) == at:
                del self._due_at[name]
                self._changed.add(name)


@dataclass(frozen=True, slots=True)
class Patience:
    """reservation_s: how long a reservation lasts for a pod not seen bound. out_of_sync_s: how long a watch may be
    broken before the ledger cannot be used.
    """

    reservation_s: float = LONGEST_S
    out_of_sync_s: float = 20.0


PATIENCE = Patience()


@dataclass(frozen=True, slots=True)
class _NodeFacts:
    """What is read of a Node. placement: its label, empty where it has none."""

    name: str
    placement: str


class ClusterLedger:
    """The ledger of one scheduler, with its own reservations.

    clients: of a GPU whose node does not report how many it serves. now: the clock by which reservations end.
    """

    def __init__(
        self,
        kube: Kube,
        policy: Callable[[], Policy],
        clients: int,
        *,
        patience: Patience = PATIENCE,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy = PinnedResources(policy, logger(role="scheduler"))
        self._terms = Terms.of(self._policy(), clients)
        self.patience = patience
        self.now = now
        self._table = GpuTable()
        self._nodes: dict[str, KnownNode] = {}
        self._pods = KnownPods(
            2 * patience.reservation_s
        )  # so that a reservation seen after its pod's end never counts
        self._reserved: dict[str, set[str]] = {}  # by uid of a pod, the nodes with a reservation for it
        self._rows = Rows(self._write, now)
        self._mirrors: Sequence[Mirror[Any]] = (
            Mirror(kube, Selection(MPS_NODES), read_reported, each=self._mpsnode_changed),
            Mirror(kube, Selection(NODES), _read_node, each=self._node_changed),
            Mirror(kube, Selection(PODS), self._read_pod, each=self._pod_changed),
        )

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for mirror in self._mirrors:
                tasks.create_task(mirror.run())

    @property
    def table(self) -> GpuTable:
        """As last heard."""
        self._rows.settle()
        return self._table

    @property
    def policy(self) -> Policy:
        """The one in force, with the resources that this process began with."""
        return self._policy()

    def policy_changed(self) -> None:
        """Writes every row again, by the policy that is in force now."""
        self._terms = Terms.of(self._policy(), self._terms.clients)
        for name in self._nodes:
            self._rows.mark(name)

    @property
    def trouble(self) -> str:
        """Why the ledger cannot be used now, a sentence; empty where it can."""
        unheard = [mirror.plural for mirror in self._mirrors if not mirror.synced]
        if unheard:
            return f"the cluster's {' and '.join(unheard)} have not been listed yet"
        for mirror in self._mirrors:
            age_s = _out_of_sync_s(mirror)
            if age_s > self.patience.out_of_sync_s:
                why = mirror.trouble or "its watch broke"
                return f"no news of the cluster's {mirror.plural} for {lasting(age_s)}: {why}"
        return ""

    @property
    def out_of_sync_s(self) -> float:
        """For how long the watch that broke first has been broken; 0 where none is."""
        return max(map(_out_of_sync_s, self._mirrors))

    def pod(self, namespace: str, name: str) -> SharedPod | None:
        """One that asks for GPUs and has not finished; None for any other, and for one not heard of yet."""
        return self._pods.pod(namespace, name)

    def pods_on(self, node: str) -> Sequence[SharedPod]:
        """Those bound there that have not finished, the oldest first."""
        known = self._nodes.get(node)
        return sorted(known.pods.values(), key=lambda pod: (pod.created, pod.name.uid)) if known else ()

    def reserved_for(self, uid: str) -> Mapping[str, NodeCapacity]:
        """By node with a reservation for this pod, the capacity without it: an interrupted bind may have left it."""
        found = ((name, self.without(self._nodes[name], uid)) for name in self._reserved.get(uid, ()))
        return {name: ledger for name, ledger in found if ledger}

    # -- for whoever binds -----------------------------------------------------------------------------------------

    def known(self, node: str) -> KnownNode | None:
        """None for a node of which nothing has been heard."""
        return self._nodes.get(node)

    def without(self, known: KnownNode, uid: str) -> NodeCapacity | None:
        """The node's capacity now, without the reservation for one pod. None where it has no MPSNode."""
        return known.ledger(self._terms, (one for one in self.reservations(known) if one.pod.uid != uid))

    def reservations(self, known: KnownNode) -> tuple[Reservation, ...]:
        """The node's reservations that count."""
        return tuple(known.reservations.counting(partial(self._fate, known), self.now()))

    def take_answer(self, known: KnownNode, thing: Object, refused: str = "") -> None:
        """Takes an MPSNode from an answer of the server, ahead of the watch. refused: the version with which the server
        refused a write.
        """
        if known.take_answer(read_reported(thing), self.now(), refused):
            self.reservations_changed(known)

    def reservations_changed(self, known: KnownNode) -> None:
        """Updates the index and the row after a change of a node's reservations."""
        before, known.indexed = known.indexed, known.reservations.uids
        for uid in known.indexed - before:
            self._reserved.setdefault(uid, set()).add(known.name)
        for uid in before - known.indexed:
            self._reserved[uid].discard(known.name)
            if not self._reserved[uid]:
                del self._reserved[uid]
        self._rows.mark(known.name)

    # -- what is heard ---------------------------------------------------------------------------------------------

    def _read_pod(self, thing: Object) -> SharedPod | None:
        pod = read_shared_pod(thing, self._policy())
        return None if pod is None or pod.finished else pod

    def _mpsnode_changed(self, before: ReportedNode | None, now: ReportedNode | None) -> None:
        either = now or before
        assert either, "something has changed"
        known = self._node(either.node.name)
        if known.take_watched(now, self.now()):
            self.reservations_changed(known)

    def _node_changed(self, before: _NodeFacts | None, now: _NodeFacts | None) -> None:
        facts = now or before
        assert facts, "something has changed"
        known = self._node(facts.name)
        known.placement = now.placement if now else ""
        self._rows.mark(known.name)

    def _pod_changed(self, before: SharedPod | None, now: SharedPod | None) -> None:
        self._pods.changed(before, now, self.now())
        if before and before.node:
            self._node(before.node).pods.pop(before.name.uid, None)
        if now and now.node:
            self._node(now.node).pods[now.name.uid] = now
        for pod in filter(None, (before, now)):
            for name in {pod.node, *self._reserved.get(pod.name.uid, ())} - {""}:
                self._rows.mark(name)

    def _fate(self, known: KnownNode, reservation: Reservation) -> ReservationFate:
        return (
            ReservationFate.GRANTED if known.is_granted(reservation.pod) else self._pods.fate(reservation, known.name)
        )

    # -- the rows --------------------------------------------------------------------------------------------------

    def _node(self, name: str) -> KnownNode:
        known = self._nodes.get(name)
        if known is None:
            known = self._nodes[name] = KnownNode(name, self.patience.reservation_s)
        return known

    def _write(self, name: str) -> float | None:
        """Writes a node's row, and returns when it changes by itself."""
        known = self._nodes.get(name)
        if known is None:
            return None
        ledger = known.ledger(self._terms, self.reservations(known))
        if ledger:
            self._table.put(ledger)
        else:
            self._table.drop(name)
        if not known.is_known:
            del self._nodes[name]
        return known.changes_at(partial(self._fate, known), self.now())


def _out_of_sync_s(mirror: Mirror[Any]) -> float:
    since = mirror.out_of_sync_since
    return 0.0 if since is None else max(0.0, time.time() - since)


def _read_node(thing: Object) -> _NodeFacts | None:
    """None for a Node without GPUs of ours: no selector of Kubernetes knows one label or the other."""
    node = read_kubernetes_node(thing)
    return _NodeFacts(node.name, node.labels.get(PLACEMENT_LABEL, "")) if node.is_labelled else None
