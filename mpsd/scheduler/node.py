"""One node as a scheduler knows it, and the capacity that follows.

An answer to a write of this scheduler is not undone by an older message of a watch.
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
    """An MPSNode, without what does not affect capacity. version: its resourceVersion.

    reservations: the annotation's text.
    """

    version: str
    node: ClusterNode
    reservations: str

    def says_the_same(self, other: "ReportedNode") -> bool:
        """Whether the capacity is the same, whenever it was reported."""
        return self.reservations == other.reservations and self.node == replace(other.node, told_at=self.node.told_at)

    def is_older_than(self, other: "ReportedNode") -> bool:
        """False where it is not known. Servers guarantee that versions count up since 1.35; they always did."""
        mine, others = self.version, other.version
        return mine.isdecimal() and others.isdecimal() and int(mine) < int(others)


def read_reported(thing: Object) -> ReportedNode:
    """Reads any MPSNode."""
    metadata = thing["metadata"]
    text = (metadata.get("annotations") or {}).get(KEY, "")
    node = _lean(read_mpsnode(thing, time.time()))
    return ReportedNode(str(metadata.get("resourceVersion", "")), node, text if isinstance(text, str) else "")


def _lean(node: ClusterNode) -> ClusterNode:
    """Without what changes while the capacity stays the same, so that busy programs cause no work here."""
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
    """One node. turn: the lock of the bind under way. placement: the Node's label, empty where not known."""

    def __init__(self, name: str, longest_s: float) -> None:
        self.name = name
        self.reported: ReportedNode | None = None  # None while it has no MPSNode
        self.placement = ""
        self.pods: dict[str, SharedPod] = {}  # by uid, those that are bound here
        self.reservations = NodeReservations(longest_s)
        self.indexed: frozenset[str] = frozenset()  # uids of pods by whose reservations it is found
        self._granted: frozenset[str | PodName] = frozenset()
        self.turn = asyncio.Lock()
        self._shown_stale = False  # in its last capacity
        self._answered_at = float("-inf")  # when an answer last took precedence over the watch

    @property
    def is_known(self) -> bool:
        """Whether anything is known of it, or a bind to it is under way."""
        return bool(self.reported or self.pods or self.placement) or self.turn.locked()

    def take_watched(self, reported: ReportedNode | None, now: float) -> bool:
        """Takes a message of the watch. Returns whether the capacity may have changed."""
        ahead = now - self._answered_at < _AHEAD_S
        if reported and self.reported and ahead and reported.is_older_than(self.reported):
            return False
        self._answered_at = float("-inf")
        return self._take(reported, now)

    def take_answer(self, reported: ReportedNode, now: float, refused: str = "") -> bool:
        """As `take_watched`, for an answer. refused: the version with which the server refused a write."""
        if self.reported and reported.is_older_than(self.reported) and self.reported.version != refused:
            return False
        self._answered_at = now
        return self._take(reported, now)

    def _take(self, reported: ReportedNode | None, now: float) -> bool:
        before, self.reported = self.reported, reported
        if reported and before and reported.says_the_same(before) and self._is_stale == self._shown_stale:
            return False
        self.reservations.update(read_reservations(reported.reservations) if reported else (), now)
        self._granted = frozenset(
            held.uid or PodName(held.namespace, held.pod, "")
            for held in (reported.node.pods if reported else None) or ()
        )
        return True

    def is_granted(self, pod: PodName) -> bool:
        return pod.uid in self._granted or replace(pod, uid="") in self._granted

    def ledger(self, terms: Terms, reservations: Iterable[Reservation]) -> NodeCapacity | None:
        """None where it has no MPSNode."""
        if self.reported is None:
            return None
        self._shown_stale = self._is_stale
        node = replace(self.reported.node, stale=self._shown_stale)
        return node_capacity(node, self.placement, self.pods.values(), reservations, terms)

    def changes_at(self, fates: Fates, now: float) -> float | None:
        """When its capacity changes if nothing is heard until then; None for never."""
        age_s = self._age_s()
        stale_at = None if age_s is None or self._is_stale else now + STALE_S - age_s
        return min((at for at in (stale_at, self.reservations.ends_at(fates, now)) if at is not None), default=None)

    @property
    def _is_stale(self) -> bool:
        age_s = self._age_s()
        return age_s is not None and age_s > STALE_S

    def _age_s(self) -> float | None:
        """Since the node reported, by its clock and ours; None where it has not."""
        at = self.reported.node.told_at if self.reported else None
        return None if at is None else time.time() - at
