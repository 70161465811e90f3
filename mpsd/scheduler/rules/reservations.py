"""What schedulers have promised pods of a node's GPUs before the API server has bound these pods there.

Written into an annotation of the node's MPSNode, under the resourceVersion that the room was counted by: of two
schedulers that would give the same room away, one is refused and counts again.

One rule: a promise is forgotten only when it is over (scheduler.rules.promises); one whose pod nobody has seen bound is
over when it has been there for LONGEST_S by the reader's own clock.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeGuard

from mpsd.model.identity import PodName

KEY = "mpsd.io/reserved"
# of an MPSNode: {"<uid>": {"pod": "namespace/name", "gpus": [...], "mib": 7168, "percent": 30, "at": "2026-..."}}
LONGEST_S = 150.0  # longer than a watch that has fallen silent may count as in sync, so that no binding goes unseen
_LONGEST_TEXT = 262_144  # characters: what all annotations of an object may hold together


@dataclass(frozen=True, slots=True)
class Reservation:
    """memory_mib, percent: of each of `gpus` (UUIDs). at: when it was promised, by the clock of whoever did. It is for
    people, and tells a promise that was given anew from the one before.
    """

    pod: PodName
    gpus: tuple[str, ...]
    memory_mib: int
    percent: int
    at: str = ""


def read_reservations(text: str) -> tuple[Reservation, ...]:
    """By the annotation's text; what cannot be read is left out, and nothing raises."""
    try:
        said = json.loads(text) if 0 < len(text) <= _LONGEST_TEXT else None
    except (ValueError, RecursionError):
        return ()
    entries = said.items() if isinstance(said, dict) else ()
    return tuple(one for uid, entry in entries if (one := _read(uid, entry)))


def _read(uid: str, entry: object) -> Reservation | None:
    if not isinstance(entry, dict):
        return None
    name, gpus, mib, percent = (entry.get(key) for key in ("pod", "gpus", "mib", "percent"))
    if not (isinstance(name, str) and isinstance(gpus, list) and all(isinstance(uuid, str) for uuid in gpus)):
        return None
    if not (_is_amount(mib) and _is_amount(percent)):
        return None
    namespace, _slash, pod = name.rpartition("/")
    at = entry.get("at")
    return Reservation(PodName(namespace, pod, uid), tuple(gpus), mib, percent, at if isinstance(at, str) else "")


def _is_amount(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 2**31


def written(reservations: Iterable[Reservation]) -> str | None:
    """The annotation's text; None for none, which takes it away."""
    said = {one.pod.uid: _entry(one) for one in reservations}
    return json.dumps(said, separators=(",", ":"), sort_keys=True) if said else None


def _entry(one: Reservation) -> Mapping[str, object]:
    entry = {"pod": str(one.pod), "gpus": list(one.gpus), "mib": one.memory_mib, "percent": one.percent}
    return {**entry, "at": one.at} if one.at else entry


class ReservationFate(StrEnum):
    """What is known of the pod that a promise was made to."""

    UNSEEN = "never seen"
    WAITING = "seen, and not bound"
    BOUND = "bound to this node"
    GRANTED = "this node says that kubelet gave it its GPUs"
    ELSEWHERE = "bound to another node"
    ENDED = "finished or deleted"


_OVER = frozenset({ReservationFate.GRANTED, ReservationFate.ELSEWHERE, ReservationFate.ENDED})


_EXPIRES = frozenset({ReservationFate.UNSEEN, ReservationFate.WAITING})


Fates = Callable[[Reservation], ReservationFate]


@dataclass(frozen=True, slots=True)
class _Reservation:
    """since: seconds of the reader's clock."""

    what: Reservation
    since: float


class NodeReservations:
    """Those of one node: what its MPSNode says, and the one that this scheduler is about to write there."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._written: dict[str, _Reservation] = {}
        self._decided: Reservation | None = None  # None while nothing is about to be written

    @property
    def uids(self) -> frozenset[str]:
        """Of the pods that have any, also one that is over."""
        return frozenset(self._written) | ({self._decided.pod.uid} if self._decided else frozenset())

    def heard(self, written: Iterable[Reservation], now: float) -> None:
        """What the MPSNode says now; the age of what it has said before goes on."""
        before = self._written
        new = ((one.pod.uid, _Reservation(one, now)) for one in written)
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

    def _is_over(self, one: _Reservation, fate: ReservationFate, now: float) -> bool:
        return fate in _OVER or (fate in _EXPIRES and now - one.since >= self._longest_s)
