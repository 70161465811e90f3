"""Reservations of a node's GPUs for pods that the API server has not bound there yet.

They are in an annotation of the node's MPSNode, written with the resourceVersion by which its
capacity was counted: of two schedulers that would give away the same GPU, one gets a conflict.

A reservation stays until something irreversible has been seen (kubelet gave the pod its GPUs, the
pod has ended or is bound elsewhere), or for LONGEST_S if the pod has not been seen bound, by the
reader's own clock from when it first saw it: clocks of two machines are never compared.
"""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import msgspec

from mpsd.model.identity import PodName

KEY = "mpsd.io/reserved"  # of an MPSNode: {"<uid>": _Entry}
# longer than a watch that has fallen silent may count as in sync, so that no binding goes unseen
LONGEST_S = 150.0
_LONGEST_TEXT = 262_144  # characters: what all annotations of an object may hold together
_Amount = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class _Entry(msgspec.Struct, omit_defaults=True):
    """A reservation as it is written, below the uid of its pod (`namespace/name`)."""

    pod: str
    gpus: tuple[str, ...]
    mib: _Amount
    percent: _Amount
    at: str = ""


@dataclass(frozen=True, slots=True)
class Reservation:
    """memory_mib, percent: of each of `gpus` (UUIDs). at: when it was made, by the writer's clock;
    it is for people, and distinguishes a new reservation for the same pod."""

    pod: PodName
    gpus: tuple[str, ...]
    memory_mib: int
    percent: int
    at: str = ""


def read_reservations(text: str) -> tuple[Reservation, ...]:
    """What cannot be read is left out, and nothing raises."""
    if not 0 < len(text) <= _LONGEST_TEXT:
        return ()
    try:
        entries = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (ValueError, RecursionError):
        return ()
    return tuple(filter(None, itertools.starmap(_read, entries.items())))


def _read(uid: str, text: msgspec.Raw) -> Reservation | None:
    try:
        entry = msgspec.json.decode(text, type=_Entry)
    except (ValueError, RecursionError):
        return None
    namespace, _slash, pod = entry.pod.rpartition("/")
    return Reservation(PodName(namespace, pod, uid), entry.gpus, entry.mib, entry.percent, entry.at)


def written(reservations: Iterable[Reservation]) -> str | None:
    """The annotation's text; None for none, which removes it."""
    entries = {
        one.pod.uid: _Entry(str(one.pod), one.gpus, one.memory_mib, one.percent, one.at)
        for one in reservations
    }
    if not entries:
        return None
    return msgspec.json.encode(entries, order="sorted").decode()


class PodState(StrEnum):
    """What is known of the pod of a reservation."""

    UNSEEN = "never seen"
    WAITING = "seen, and not bound"
    BOUND = "bound to this node"
    GRANTED = "its GPUs were given by kubelet, as this node reports"
    ELSEWHERE = "bound to another node"
    ENDED = "finished or deleted"


_OVER = frozenset({PodState.GRANTED, PodState.ELSEWHERE, PodState.ENDED})
_EXPIRES = frozenset({PodState.UNSEEN, PodState.WAITING})
States = Callable[[Reservation], PodState]


class NodeReservations:
    """The reservations of one node: those on its MPSNode, and those that this scheduler is about to
    write there."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        # by uid, with when each was first seen, in seconds of the reader's clock
        self._written: dict[str, tuple[Reservation, float]] = {}
        # by uid; they count from now on, before they are written
        self.pending: dict[str, Reservation] = {}

    @property
    def uids(self) -> frozenset[str]:
        """Of all pods with a reservation, also one that has ended."""
        return frozenset(self._written).union(self.pending)

    def update(self, written: Iterable[Reservation], now: float) -> None:
        """Takes those on the MPSNode now; those that were there before keep their age."""
        before = self._written
        self._written = {}
        for one in written:
            was, since = before.get(one.pod.uid, (one, now))
            self._written[one.pod.uid] = (one, since if was == one else now)

    def withdraw(self, uid: str) -> None:
        """Stops counting it; the next write removes it."""
        self._written.pop(uid, None)

    def written(self, uid: str, states: States, now: float) -> Reservation | None:
        """The pod's reservation on the MPSNode, if it counts."""
        if uid not in self._written:
            return None
        one, since = self._written[uid]
        state = states(one)
        if state in _OVER or (state in _EXPIRES and now - since >= self._longest_s):
            return None
        return one

    def counting(self, states: States, now: float) -> Iterable[Reservation]:
        """What is written goes first: another scheduler may have bound the pod by it."""
        written = {uid: one for uid in self._written if (one := self.written(uid, states, now))}
        return (self.pending | written).values()

    def ends_at(self, states: States, now: float) -> float | None:
        """When the next of them ends if nothing else happens; None for never."""
        begun = [since for one, since in self._written.values() if states(one) in _EXPIRES]
        ends = [since + self._longest_s for since in begun]
        return min((at for at in ends if at > now), default=None)
