"""Which promises of a node's GPUs count, and which GPUs a pod is promised next.

One rule: a promise is over when what cannot be undone has been seen: the node itself says that kubelet gave the pod its
GPUs, or the pod has ended or is bound elsewhere; and else when nobody has seen the pod bound for long. Ages are by the
reader's own clock from when it first saw the promise: clocks of two machines are never compared.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from mpsd.grants.rules.placement import NoRoom, Placed, place
from mpsd.model.grants import Request
from mpsd.scheduler.rules.node_books import NodeBooks
from mpsd.scheduler.rules.reservations import Reservation


class Fate(StrEnum):
    """What is known of the pod that a promise was made to."""

    UNSEEN = "never seen"
    WAITING = "seen, and not bound"
    BOUND = "bound to this node"
    GRANTED = "this node says that kubelet gave it its GPUs"
    ELSEWHERE = "bound to another node"
    ENDED = "finished or deleted"


_OVER = frozenset({Fate.GRANTED, Fate.ELSEWHERE, Fate.ENDED})
_EXPIRES = frozenset({Fate.UNSEEN, Fate.WAITING})

Fates = Callable[[Reservation], Fate]


@dataclass(frozen=True, slots=True)
class _Promise:
    """since: seconds of the reader's clock."""

    what: Reservation
    since: float


class NodePromises:
    """Those of one node: what its MPSNode says, and the one that this scheduler is about to write there."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._written: dict[str, _Promise] = {}
        self._decided: Reservation | None = None  # None while nothing is about to be written

    @property
    def uids(self) -> frozenset[str]:
        """Of the pods that have any, also one that is over."""
        return frozenset(self._written) | ({self._decided.pod.uid} if self._decided else frozenset())

    def heard(self, written: Iterable[Reservation], now: float) -> None:
        """What the MPSNode says now; the age of what it has said before goes on."""
        before = self._written
        new = ((one.pod.uid, _Promise(one, now)) for one in written)
        self._written = {uid: was if (was := before.get(uid)) and was.what == one.what else one for uid, one in new}

    def decide(self, promise: Reservation) -> None:
        """It counts from now on, before anybody else can know of it."""
        self._decided = promise

    def decided(self) -> None:
        """What was about to be written is written, or will not be."""
        self._decided = None

    def withdraw(self, uid: str) -> None:
        """It does not count any more, here; the next write takes it away."""
        self._written.pop(uid, None)

    def of(self, uid: str) -> Reservation | None:
        if self._decided and self._decided.pod.uid == uid:
            return self._decided
        written = self._written.get(uid)
        return written.what if written else None

    def counting(self, fate: Fates, now: float) -> Iterator[Reservation]:
        """Those that are not over."""
        if self._decided:
            yield self._decided
        for uid, one in self._written.items():
            if not (self._decided and uid == self._decided.pod.uid) and not self._is_over(one, fate(one.what), now):
                yield one.what

    def ends_at(self, fate: Fates, now: float) -> float | None:
        """When the next of them is over if nothing else happens; None for never."""
        ends = [one.since + self._longest_s for one in self._written.values() if fate(one.what) in _EXPIRES]
        return min((at for at in ends if at > now), default=None)

    def _is_over(self, one: _Promise, fate: Fate, now: float) -> bool:
        return fate in _OVER or (fate in _EXPIRES and now - one.since >= self._longest_s)


def choose(request: Request, books: NodeBooks, earlier: tuple[str, ...]) -> Placed | NoRoom:
    """The GPUs for a pod by books without its own promise. earlier: the GPUs that it was promised before, which it
    keeps where they still have room."""
    kept = place(request, [room for room in books.rooms if room.gpu.uuid in earlier], books.policy)
    return kept if isinstance(kept, Placed) else place(request, books.rooms, books.policy)
