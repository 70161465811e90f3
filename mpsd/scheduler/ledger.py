"""The capacity of all GPUs of a cluster, kept up to date by watches on MPSNodes, Nodes and pods.

A row of the table is written when something of its node changes, not when it is read. An answer to
a write of this scheduler is not undone by an older message of a watch.
"""

import asyncio
import heapq
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from sys import intern
from typing import Any, TypedDict

from mpsd.kubelet.rules.gpu_choice import SharedPod, read_shared_pod
from mpsd.model.identity import PodName
from mpsd.model.pod import Pod
from mpsd.model.policy import Policy
from mpsd.model.times import lasting
from mpsd.platform import life
from mpsd.platform.kube import MPS_NODES, NODES, PODS, Kube, Object
from mpsd.platform.kube_mirror import Mirror, Selection
from mpsd.platform.limits_files import PinnedResources
from mpsd.platform.logs import logger
from mpsd.platform.rules.kubernetes_objects import read_kubernetes_node
from mpsd.scheduler.known_node import KnownNode, ReportedNode, read_reported
from mpsd.scheduler.rules import reservations as rules
from mpsd.scheduler.rules.capacity import PLACEMENT_LABEL, NodeCapacity
from mpsd.scheduler.rules.gpu_table import GpuTable
from mpsd.scheduler.rules.reservations import PodState, Reservation


class KnownPods:
    """The pods of a cluster that request GPUs, and those that have ended, for remembered_s. A pod
    has ended only if it was there and is gone; one that was never seen may still come."""

    def __init__(self, remembered_s: float) -> None:
        self._remembered_s = remembered_s
        self._pods: dict[tuple[str, str], SharedPod] = {}
        self._ended: set[str] = set()  # uids
        self._ends: deque[tuple[float, str]] = deque()

    def pod(self, namespace: str, name: str) -> SharedPod | None:
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

    def state(self, reservation: Reservation, node: str) -> PodState:
        """What is known of the pod of this node's reservation, from the watch on pods."""
        if reservation.pod.uid in self._ended:
            return PodState.ENDED
        pod = self.pod(reservation.pod.namespace, reservation.pod.name)
        if pod is None or pod.name.uid != reservation.pod.uid:
            return PodState.UNSEEN
        if not pod.node:
            return PodState.WAITING
        return PodState.BOUND if pod.node == node else PodState.ELSEWHERE


_COARSE_S = 1.0  # that a row may be late where only time has passed


class Rows:
    """The rows of a table that have to be written, each once for all changes, before it is read or
    soon. write: writes one, and returns when it changes if nothing else happens; None: never. now:
    of the same clock. is_due: until then changes are only noted."""

    def __init__(
        self,
        write: Callable[[str], float | None],
        now: Callable[[], float],
        is_due: Callable[[], bool],
    ) -> None:
        self._write = write
        self._now = now
        self._is_due = is_due
        self._changed: set[str] = set()
        self._due: list[tuple[float, str]] = []  # a heap
        self._due_at: dict[str, float] = {}  # what of the heap counts

    def mark(self, name: str) -> None:
        if not self._changed and self._is_due():
            asyncio.get_running_loop().call_soon(self.settle)
        self._changed.add(name)

    def settle(self) -> None:
        if not self._is_due():
            return
        now = self._now()
        while self._due and self._due[0][0] <= now:
            at, name = heapq.heappop(self._due)
            if self._due_at.get(name) == at:
                del self._due_at[name]
                self._changed.add(name)
        changed = self._changed
        self._changed = set()
        for name in changed:
            changes_at = self._write(name)
            if changes_at is not None and changes_at < self._due_at.get(name, math.inf) - _COARSE_S:
                self._due_at[name] = changes_at
                heapq.heappush(self._due, (changes_at, name))


_SYNC_LOOK_S = 0.05  # between two looks at whether everything has been listed

# What is read of Nodes here, by `read_kubernetes_node`.
_Labels = dict[str, Any] | None


class _NodeMetadata(TypedDict, total=False):
    name: str
    labels: _Labels


class NodeFields(TypedDict, total=False):
    metadata: _NodeMetadata


# of a Node with GPUs of ours, its name and PLACEMENT_LABEL, empty where it has none
_Labelled = tuple[str, str]


class ClusterLedger:
    """The ledger of one scheduler, with its own reservations. now: the clock by which reservations
    end. out_of_sync_s: how long a watch may be broken before the ledger cannot be used."""

    def __init__(
        self,
        kube: Kube,
        policy: Callable[[], Policy],
        *,
        out_of_sync_s: float = 20.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy = PinnedResources(policy, logger(role="scheduler"))
        self._out_of_sync_s = out_of_sync_s
        self.now = now
        self._table = GpuTable()
        self._nodes: dict[str, KnownNode] = {}
        self.known = self._nodes.get  # None for a node of which nothing has been heard
        # Ends are remembered so long that a reservation seen after its pod's end never counts.
        self._pods = KnownPods(2 * rules.LONGEST_S)
        # None for one that asks for no GPU, has finished, or is not heard of yet
        self.pod = self._pods.pod
        # by uid of a pod, the nodes with a reservation for it
        self._reserved: dict[str, set[str]] = {}
        self._rows = Rows(self._write, now, lambda: self._is_listed)
        # whether all that a row is made of has been: before that each would be written thrice
        self._is_listed = False
        self.mirrors: Sequence[Mirror[Any]] = (
            Mirror(kube, Selection(MPS_NODES), read_reported, each=self._mpsnode_changed),
            Mirror(kube, Selection(NODES, fields=NodeFields), _read_node, each=self._node_changed),
            Mirror(kube, Selection(PODS, fields=Pod), self._read_pod, each=self._pod_changed),
        )

    async def run(self) -> None:
        async with life.Tasks() as tasks:
            for mirror in self.mirrors:
                tasks.create_task(mirror.run())
            tasks.create_task(self._settle_once_listed())

    async def _settle_once_listed(self) -> None:
        while not all(mirror.synced for mirror in self.mirrors):  # noqa: ASYNC110
            await asyncio.sleep(_SYNC_LOOK_S)
        self._is_listed = True
        self._rows.settle()

    @property
    def table(self) -> GpuTable:
        self._rows.settle()
        return self._table

    @property
    def policy(self) -> Policy:
        """The one in force, with the resources that this process began with."""
        return self._policy()

    def policy_changed(self) -> None:
        """Writes every row again, by the policy that is in force now."""
        for name in self._nodes:
            self._rows.mark(name)

    @property
    def trouble(self) -> str:
        """Why the ledger cannot be used now, a sentence; empty where it can."""
        if not self._is_listed:
            unheard = [mirror.plural for mirror in self.mirrors if not mirror.synced]
            what = " and ".join(unheard) or "nodes and pods"
            return f"the cluster's {what} have not been listed yet"
        for mirror in self.mirrors:
            age_s = mirror.out_of_sync_s
            if age_s > self._out_of_sync_s:
                why = mirror.trouble or "its watch broke"
                return f"no news of the cluster's {mirror.plural} for {lasting(age_s)}: {why}"
        return ""

    def pods_on(self, node: str) -> Sequence[SharedPod]:
        """Those bound there that have not finished, the oldest first."""
        if (known := self._nodes.get(node)) is None:
            return ()
        return sorted(known.pods.values(), key=lambda pod: (pod.created, pod.name.uid))

    def reserved_for(self, uid: str) -> Mapping[str, NodeCapacity]:
        """By node with a reservation for this pod, as of an interrupted bind, the capacity without
        it."""
        found: dict[str, NodeCapacity] = {}
        for name in self._reserved.get(uid, ()):
            if ledger := self.without(self._nodes[name], uid):
                found[name] = ledger
        return found

    def without(self, known: KnownNode, uid: str) -> NodeCapacity | None:
        """Without the reservation for one pod. None where the node has no MPSNode."""
        others = (one for one in self.reservations(known) if one.pod.uid != uid)
        return known.ledger(self._policy(), others, self.now())

    def reservations(self, known: KnownNode) -> tuple[Reservation, ...]:
        return tuple(known.reservations.counting(partial(self._state, known), self.now()))

    def written_for(self, known: KnownNode, uid: str) -> Reservation | None:
        """The pod's reservation on the MPSNode, if it counts."""
        return known.reservations.written(uid, partial(self._state, known), self.now())

    def take_answer(self, known: KnownNode, thing: Object, refused: str = "") -> None:
        """Takes an MPSNode from an answer of the server. refused: as in `KnownNode`."""
        if known.take_answer(read_reported(thing), self.now(), refused):
            self.reservations_changed(known)

    def reservations_changed(self, known: KnownNode) -> None:
        """Updates the index and the row after a change of a node's reservations."""
        before = known.indexed
        known.indexed = known.reservations.uids
        for uid in known.indexed - before:
            self._reserved.setdefault(uid, set()).add(known.name)
        for uid in before - known.indexed:
            self._reserved[uid].discard(known.name)
            if not self._reserved[uid]:
                del self._reserved[uid]
        self._rows.mark(known.name)

    def _read_pod(self, thing: Object | Pod) -> SharedPod | None:
        pod = read_shared_pod(thing, self._policy())
        if pod is None or pod.finished:
            return None
        # Tens of thousands of pods are in a few namespaces, and each GPU's UUID is there already.
        return replace(
            pod,
            name=PodName(intern(pod.name.namespace), pod.name.name, pod.name.uid),
            node=intern(pod.node),
            choice={key: intern(text) for key, text in pod.choice.items()},
            scheduler=intern(pod.scheduler),
        )

    def _mpsnode_changed(self, before: ReportedNode | None, now: ReportedNode | None) -> None:
        either = now or before
        assert either, "something has changed"
        if (known := self._node(either.node.name)).take_watched(now, self.now()):
            self.reservations_changed(known)

    def _node_changed(self, before: _Labelled | None, now: _Labelled | None) -> None:
        name, _placement = now or before or ("", "")
        self._node(name).placement = now[1] if now else ""
        self._rows.mark(name)

    def _pod_changed(self, before: SharedPod | None, now: SharedPod | None) -> None:
        self._pods.changed(before, now, self.now())
        if before and before.node:
            self._node(before.node).pods.pop(before.name.uid, None)
        if now and now.node:
            self._node(now.node).pods[now.name.uid] = now
        for pod in filter(None, (before, now)):
            for name in {pod.node, *self._reserved.get(pod.name.uid, ())} - {""}:
                self._rows.mark(name)

    def _state(self, known: KnownNode, reservation: Reservation) -> PodState:
        pod = reservation.pod
        if pod.uid in known.granted or replace(pod, uid="") in known.granted:
            return PodState.GRANTED
        return self._pods.state(reservation, known.name)

    def _node(self, name: str) -> KnownNode:
        if name not in self._nodes:
            self._nodes[name] = KnownNode(name, rules.LONGEST_S)
        return self._nodes[name]

    def _write(self, name: str) -> float | None:
        """Writes a node's row, and returns when it changes by itself."""
        if (known := self._nodes.get(name)) is None:
            return None
        if ledger := known.ledger(self._policy(), self.reservations(known), self.now()):
            self._table.put(ledger)
        else:
            self._table.drop(name)
        if not known.is_known:
            del self._nodes[name]
        return known.changes_at(partial(self._state, known), self.now())


def _read_node(thing: Object) -> _Labelled | None:
    """None for a Node without GPUs of ours: no selector of Kubernetes knows one label or the
    other."""
    node = read_kubernetes_node(thing)
    if not node.is_labelled:
        return None
    return node.name, node.labels.get(PLACEMENT_LABEL, "")
