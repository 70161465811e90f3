"""All that one scheduler has heard of one node, and the ledger that follow from it.

One rule: nothing here asks anybody; what an answer to a write of ours told is not undone by a watch that is older.
"""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from msgspec import structs

from mpsd.kubelet.rules.gpu_choice import SharedPod
from mpsd.model.cluster_status import ClusterNode
from mpsd.model.identity import PodName
from mpsd.model.mpsnode_reading import read_mpsnode
from mpsd.model.names import STALE_S
from mpsd.platform.kube import Object
from mpsd.scheduler.rules.capacity import NodeCapacity, Terms, node_capacity
from mpsd.scheduler.rules.reservations import KEY, Fates, NodeReservations, Reservation, read_reservations

_AHEAD_S = 30.0  # that an answer goes before an older watch: longer than watches lag while nobody notices


@dataclass(frozen=True, slots=True)
class ReportedNode:
    """An MPSNode, without what says nothing of room. version: its resourceVersion. promised: the annotation's text."""

    version: str
    node: ClusterNode
    promised: str

    def says_the_same(self, other: "ReportedNode") -> bool:
        """Of room, whenever it was told."""
        return self.promised == other.promised and self.node == replace(other.node, told_at=self.node.told_at)

    def is_older_than(self, other: "ReportedNode") -> bool:
        """False where that cannot be said. Servers promise that versions count up since 1.35; they always did."""
        mine, others = self.version, other.version
        return mine.isdecimal() and others.isdecimal() and int(mine) < int(others)


def read_told(thing: Object) -> ReportedNode:
    """Any MPSNode."""
    metadata = thing["metadata"]
    promised = (metadata.get("annotations") or {}).get(KEY, "")
    node = _lean(read_mpsnode(thing, time.time()))
    return ReportedNode(str(metadata.get("resourceVersion", "")), node, promised if isinstance(promised, str) else "")


def _lean(node: ClusterNode) -> ClusterNode:
    """Without what changes while the room stays the same, so that a cluster of busy programs is quiet."""
    return replace(
        node,
        ready=False,
        stale=False,
        driver="",
        conditions=(),
        domains=(),
        unreadable=(),
        gpus=tuple(
            structs.replace(gpu, restarts=None, granted_mib=None, granted_percent=None, used_mib=None, clients=None)
            for gpu in node.gpus
        ),
        pods=None
        if node.pods is None
        else tuple(structs.replace(pod, used_mib=None, clients=None) for pod in node.pods),
    )


class KnownNode:
    """turn: whoever binds to this node holds it. placement: the Node's label, empty where not known."""

    def __init__(self, name: str, longest_s: float) -> None:
        self.name = name
        self.told: ReportedNode | None = None  # None while it has no MPSNode
        self.placement = ""
        self.pods: dict[str, SharedPod] = {}  # by uid, those that are bound here
        self.promises = NodeReservations(longest_s)
        self.indexed: frozenset[str] = frozenset()  # uids of pods that it is found by, since they have promises here
        self._granted: frozenset[str | PodName] = frozenset()
        self.turn = asyncio.Lock()
        self._shown_stale = False  # in its ledger
        self._answered_at = float("-inf")  # when an answer last went before the watch

    @property
    def is_known(self) -> bool:
        """Whether anything is known of it at all, or somebody is about to bind to it."""
        return bool(self.told or self.pods or self.placement) or self.turn.locked()

    def watched(self, told: ReportedNode | None, now: float) -> bool:
        """Takes what the watch says. Whether the room may be another."""
        ahead = now - self._answered_at < _AHEAD_S
        if told and self.told and ahead and told.is_older_than(self.told):
            return False
        self._answered_at = float("-inf")
        return self._take(told, now)

    def answered(self, told: ReportedNode, now: float, refused: str = "") -> bool:
        """As `watched`, of an answer. refused: the version that the server would not have any more."""
        if self.told and told.is_older_than(self.told) and self.told.version != refused:
            return False
        self._answered_at = now
        return self._take(told, now)

    def _take(self, told: ReportedNode | None, now: float) -> bool:
        before, self.told = self.told, told
        if told and before and told.says_the_same(before) and self._is_stale == self._shown_stale:
            return False
        self.promises.heard(read_reservations(told.promised) if told else (), now)
        self._granted = frozenset(
            held.uid or PodName(held.namespace, held.pod, "") for held in (told.node.pods if told else None) or ()
        )
        return True

    def is_granted(self, pod: PodName) -> bool:
        return pod.uid in self._granted or replace(pod, uid="") in self._granted

    def ledger(self, terms: Terms, promised: Iterable[Reservation]) -> NodeCapacity | None:
        """None where it has no MPSNode."""
        if self.told is None:
            return None
        self._shown_stale = self._is_stale
        node = replace(self.told.node, stale=self._shown_stale)
        return node_capacity(node, self.placement, self.pods.values(), promised, terms)

    def changes_at(self, fates: Fates, now: float) -> float | None:
        """When its ledger become others if nothing is heard until then; None for never."""
        age_s = self._age_s()
        stale_at = None if age_s is None or self._is_stale else now + STALE_S - age_s
        return min((at for at in (stale_at, self.promises.ends_at(fates, now)) if at is not None), default=None)

    @property
    def _is_stale(self) -> bool:
        age_s = self._age_s()
        return age_s is not None and age_s > STALE_S

    def _age_s(self) -> float | None:
        """Since the node told, by its clock and ours; None where it has told nothing."""
        at = self.told.node.told_at if self.told else None
        return None if at is None else time.time() - at
