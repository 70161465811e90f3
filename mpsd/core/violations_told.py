"""What programs did that they may not, as an MPSNode tells it: the shape of it in `kubectl mps -o json`.

One rule: None is what nobody told, as of an agent that is older than this; nothing done is a count of none.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KindCount:
    """kind: as in the policy, or one of a newer agent."""

    kind: str
    count: int | None


@dataclass(frozen=True, slots=True)
class LastViolation:
    """at: seconds since 1970. action: what the policy has done about it. namespace, pod: empty where none is known."""

    at: float | None
    kind: str
    action: str
    namespace: str
    pod: str


@dataclass(frozen=True, slots=True)
class PodViolations:
    """last: None where it did nothing."""

    counts: tuple[KindCount, ...] = ()
    last: LastViolation | None = None

    @property
    def total(self) -> int | None:
        return total(self.counts)


@dataclass(frozen=True, slots=True)
class NodeViolations:
    """Of everybody on a node, pods that are gone too. since: seconds since 1970, when its agent began to watch.

    pods: that have a grant and did something; not all of them are told of. last: the newest last.
    """

    since: float | None
    pods: int | None
    counts: tuple[KindCount, ...]
    last: tuple[LastViolation, ...]

    @property
    def total(self) -> int | None:
        return total(self.counts)


def total(counts: Sequence[KindCount]) -> int | None:
    """None as soon as one is not known."""
    known = [one.count for one in counts if one.count is not None]
    return sum(known) if len(known) == len(counts) else None
