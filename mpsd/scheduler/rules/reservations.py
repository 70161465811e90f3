"""What schedulers have promised pods of a node's GPUs before the API server has bound these pods there.

Written into an annotation of the node's MPSNode, under the resourceVersion that the room was counted by: of two
schedulers that would give the same room away, one is refused and counts again.

One rule: a promise is forgotten only when it is over (scheduler.rules.promises); one whose pod nobody has seen bound is
over when it has been there for LONGEST_S by the reader's own clock.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
