"""What a scheduler knows of one node: what it has reported, its pods and its reservations.

An answer to a write of this scheduler is not undone by an older message of a watch.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from sys import intern

from msgspec import structs

from mpsd.kubelet.rules.gpu_choice import SharedPod
from mpsd.model.cluster_status import ClusterNode, ServedGpu
from mpsd.model.identity import PodName
from mpsd.model.mpsnode import read_mpsnode
from mpsd.model.names import STALE_S
from mpsd.model.node_report import DomainReport
from mpsd.model.policy import Policy
from mpsd.platform.kube import Object
from mpsd.scheduler.rules import reservations as rules
from mpsd.scheduler.rules.capacity import NodeCapacity, node_capacity
from mpsd.scheduler.rules.reservations import NodeReservations, Reservation, States

# that an answer goes before an older watch: longer than watches lag while nobody notices
_AHEAD_S = 30.0


@dataclass(frozen=True, slots=True)
class ReportedNode:
    """An MPSNode, without what does not affect capacity. version: its resourceVersion.
    reservations: the annotation's text."""

    version: str
    node: ClusterNode
    reservations: str

    def says_the_same(self, other: "ReportedNode") -> bool:
        """Whether the capacity is the same, whenever it was reported."""
        return self.reservations == other.reservations and self.node == structs.replace(
            other.node, reported_at=self.node.reported_at
        )

    def is_of_one_report(self, other: "ReportedNode") -> bool:
        return self.node.reported_at == other.node.reported_at

    def is_older_than(self, other: "ReportedNode") -> bool:
        """False where it is not known. Servers guarantee that versions count up since 1.35; they
        always did."""
        mine = self.version
        others = other.version
        return mine.isdecimal() and others.isdecimal() and int(mine) < int(others)


def read_reported(thing: Object) -> ReportedNode:
    metadata = thing["metadata"]
    text = (metadata.get("annotations") or {}).get(rules.KEY, "")
    node = read_mpsnode(thing, 0.0)
    # What changes while the capacity stays the same goes, so that busy programs cause no work here.
    # A UUID is reported of a GPU, of its domain and of each pod there, and the names of GPUs and
    # domains of every node: each is kept once.
    pods = node.pods and tuple(
        structs.replace(pod, used_mib=None, clients=None, gpus=_once(pod.gpus), violations=None)
        for pod in node.pods
    )
    gpus = tuple(map(_lean, node.gpus))
    # A GPU says which domain it is of. Of domains only the kind counts, so those of a kind are one.
    of_kind: dict[str, list[str]] = {}
    for one in node.domains:
        if one.kind:
            of_kind.setdefault(one.kind, []).extend(one.gpus)
    domains = tuple(DomainReport(gpus=_once(held), kind=kind) for kind, held in of_kind.items())
    lean = ClusterNode(
        name=node.name,
        reported_at=node.reported_at,
        cordoned=node.cordoned,
        gpus=gpus,
        domains=domains,
        pods=pods,
    )
    if not isinstance(text, str):
        text = ""
    return ReportedNode(str(metadata.get("resourceVersion", "")), lean, text)


def _lean(gpu: ServedGpu) -> ServedGpu:
    return ServedGpu(
        uuid=intern(gpu.uuid),
        label=intern(gpu.label),
        domain=gpu.domain,
        state=gpu.state,
        cordoned=gpu.cordoned,
        promised_mib=gpu.promised_mib,
        promised_percent=gpu.promised_percent,
        promised_clients=gpu.promised_clients,
    )


def _once(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(intern, texts))


class KnownNode:
    """One node. turn: the lock of whoever writes reservations. binds: how many are under way.
    placement: the Node's label, empty where not known."""

    def __init__(self, name: str, longest_s: float) -> None:
        self.name = name
        self.reported: ReportedNode | None = None  # None while it has no MPSNode
        self.placement = ""
        self.pods: dict[str, SharedPod] = {}  # by uid, those that are bound here
        self.reservations = NodeReservations(longest_s)
        self.indexed: frozenset[str] = frozenset()  # uids of pods by whose reservations it is found
        # uids; names without one where none is reported
        self.granted: frozenset[str | PodName] = frozenset()
        self.turn = asyncio.Lock()
        self.binds = 0
        self._shown_stale = False  # in its last capacity
        self._heard_at = 0.0  # when it was first seen here that it has reported again
        self._answered_at = float("-inf")  # when an answer last took precedence over the watch

    @property
    def is_known(self) -> bool:
        """Whether anything is known of it, or a bind to it is under way."""
        return bool(self.reported or self.pods or self.placement or self.binds)

    def take_watched(self, reported: ReportedNode | None, now: float) -> bool:
        """Takes a message of the watch. Returns whether the capacity may have changed."""
        ahead = now - self._answered_at < _AHEAD_S
        if reported and self.reported and ahead and reported.is_older_than(self.reported):
            return False
        self._answered_at = float("-inf")
        return self._take(reported, now)

    def take_answer(self, reported: ReportedNode, now: float, refused: str = "") -> bool:
        """As `take_watched`, for an answer. refused: the version with which the server refused a
        write."""
        known = self.reported
        if known and reported.is_older_than(known) and known.version != refused:
            return False
        self._answered_at = now
        return self._take(reported, now)

    def _take(self, reported: ReportedNode | None, now: float) -> bool:
        before = self.reported
        self.reported = reported
        is_same = reported and before and reported.says_the_same(before)
        if reported and (before is None or not before.is_of_one_report(reported)):
            self._heard_at = now
        if is_same and self._is_stale(now) == self._shown_stale:
            return False
        text = reported.reservations if reported else ""
        self.reservations.update(rules.read_reservations(text), now)
        pods = (reported and reported.node.pods) or ()
        self.granted = frozenset(one.uid or PodName(one.namespace, one.name, "") for one in pods)
        return True

    def ledger(
        self, policy: Policy, reservations: Iterable[Reservation], now: float
    ) -> NodeCapacity | None:
        """None where it has no MPSNode."""
        if self.reported is None:
            return None
        self._shown_stale = self._is_stale(now)
        node = structs.replace(self.reported.node, stale=self._shown_stale)
        return node_capacity(node, self.placement, self.pods.values(), reservations, policy)

    def changes_at(self, states: States, now: float) -> float | None:
        """When its capacity changes if nothing is heard until then; None for never."""
        ends_at = self.reservations.ends_at(states, now)
        times = [] if ends_at is None else [ends_at]
        if self._has_reported and not self._is_stale(now):
            times.append(self._heard_at + STALE_S)
        return min(times, default=None)

    @property
    def _has_reported(self) -> bool:
        return self.reported is not None and self.reported.node.reported_at is not None

    def _is_stale(self, now: float) -> bool:
        """By this clock alone: the node's may be another."""
        return self._has_reported and now - self._heard_at > STALE_S
