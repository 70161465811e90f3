"""Reservations of a node's GPUs for pods that the API server has not bound there yet.

They are written into an annotation of the node's MPSNode, with the resourceVersion by which its capacity was counted:
of two schedulers that would give away the same GPU, one gets a conflict and counts again.

A reservation ends when something irreversible has been seen (kubelet gave the pod its GPUs, the pod has ended or is
bound elsewhere), or after LONGEST_S if the pod has not been seen bound. Ages are by the reader's own clock from when it
first saw the reservation: clocks of two machines are never compared.
"""

import json
from collections.abc import Callable, Iterable, Iterator
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
    """One reservation. memory_mib, percent: of each of `gpus` (UUIDs). at: when it was made, by the writer's clock.

    `at` is for people, and distinguishes a new reservation for the same pod from the one before.
    """

    pod: PodName
    gpus: tuple[str, ...]
    memory_mib: int
    percent: int
    at: str = ""


def read_reservations(text: str) -> tuple[Reservation, ...]:
    """Those in the annotation's text; what cannot be read is left out, and nothing raises."""
    try:
        fields = json.loads(text) if 0 < len(text) <= _LONGEST_TEXT else None
    except (ValueError, RecursionError):
        return ()
    entries = fields.items() if isinstance(fields, dict) else ()
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
    """The annotation's text; None for none, which removes it."""
    entries = {
        one.pod.uid: {"pod": str(one.pod), "gpus": list(one.gpus), "mib": one.memory_mib, "percent": one.percent}
        | ({"at": one.at} if one.at else {})
        for one in reservations
    }
    return json.dumps(entries, separators=(",", ":"), sort_keys=True) if entries else None


class ReservationFate(StrEnum):
    """What is known of the pod of a reservation."""

    UNSEEN = "never seen"
    WAITING = "seen, and not bound"
    BOUND = "bound to this node"
    GRANTED = "its GPUs were given by kubelet, as this node reports"
    ELSEWHERE = "bound to another node"
    ENDED = "finished or deleted"


_OVER = frozenset({ReservationFate.GRANTED, ReservationFate.ELSEWHERE, ReservationFate.ENDED})


_EXPIRES = frozenset({ReservationFate.UNSEEN, ReservationFate.WAITING})


Fates = Callable[[Reservation], ReservationFate]


@dataclass(frozen=True, slots=True)
class _Reservation:
    """A reservation and when it was first seen, in seconds of the reader's clock."""

    reservation: Reservation
    since: float


class NodeReservations:
    """The reservations of one node: those on its MPSNode, and the one that this scheduler is about to write there."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._written: dict[str, _Reservation] = {}
        self._pending: Reservation | None = None  # None while nothing is about to be written

    @property
    def uids(self) -> frozenset[str]:
        """Of all pods with a reservation, also one that has ended."""
        return frozenset(self._written) | ({self._pending.pod.uid} if self._pending else frozenset())

    def update(self, written: Iterable[Reservation], now: float) -> None:
        """Takes those on the MPSNode now; those that were there before keep their age."""
        before = self._written
        new = ((one.pod.uid, _Reservation(one, now)) for one in written)
        self._written = {
            uid: was if (was := before.get(uid)) and was.reservation == one.reservation else one for uid, one in new
        }

    def begin(self, reservation: Reservation) -> None:
        """Counts it from now on, before it is written."""
        self._pending = reservation

    def finish(self) -> None:
        """The pending one has been written, or will not be."""
        self._pending = None

    def withdraw(self, uid: str) -> None:
        """Stops counting it; the next write removes it."""
        self._written.pop(uid, None)

    def of(self, uid: str) -> Reservation | None:
        if self._pending and self._pending.pod.uid == uid:
            return self._pending
        written = self._written.get(uid)
        return written.reservation if written else None

    def counting(self, fate: Fates, now: float) -> Iterator[Reservation]:
        """Those that have not ended."""
        if self._pending:
            yield self._pending
        for uid, one in self._written.items():
            if not (self._pending and uid == self._pending.pod.uid) and not self._is_over(
                one, fate(one.reservation), now
            ):
                yield one.reservation

    def ends_at(self, fate: Fates, now: float) -> float | None:
        """When the next of them ends if nothing else happens; None for never."""
        ends = [one.since + self._longest_s for one in self._written.values() if fate(one.reservation) in _EXPIRES]
        return min((at for at in ends if at > now), default=None)

    def _is_over(self, one: _Reservation, fate: ReservationFate, now: float) -> bool:
        return fate in _OVER or (fate in _EXPIRES and now - one.since >= self._longest_s)
