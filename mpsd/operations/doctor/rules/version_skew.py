"""Which differences between the versions of mpsd's parts matter, and why.

One rule: a row for each pair that speaks to each other; a version that nobody tells is not known, and never the same.
"""

from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest

from mpsd.model.installed import AGENT, NAMESPACE


class Part(StrEnum):
    CONTROL = "control"
    AGENT = "agent"
    COMMAND = "this command line"


@dataclass(frozen=True, slots=True)
class Skew:
    """older than newer: normal where nothing has to be done at once. why: what it means. remedy: what ends it."""

    older: Part
    newer: Part
    normal: bool
    why: str
    remedy: str


SKEWS = (
    Skew(
        Part.CONTROL,
        Part.AGENT,
        normal=True,
        why="normal after an upgrade, for the DaemonSet mps-control-daemon is OnDelete: control's end would end every"
        " program on its GPUs",
        remedy="when it suits, `kubectl mps upgrade` replaces it without a program losing its GPU",
    ),
    Skew(
        Part.AGENT,
        Part.CONTROL,
        normal=False,
        why="the agent reads records that a later version writes, and may not know what they say",
        remedy=f"roll the agents out: kubectl -n {NAMESPACE} rollout status ds/{AGENT}",
    ),
    Skew(
        Part.COMMAND,
        Part.AGENT,
        normal=True,
        why="what later versions tell is not shown",
        remedy="pip install --upgrade 'mpsd[kubectl]'",
    ),
    Skew(
        Part.AGENT,
        Part.COMMAND,
        normal=True,
        why="what the node does not tell yet is shown as unknown",
        remedy="upgrade the cluster when it suits: kubectl apply -k manifests",
    ),
)


def skew_of(one: tuple[Part, str], other: tuple[Part, str]) -> Skew | None:
    """The row of these two; None where they are of one version, or no row is about them."""
    order = compare(one[1], other[1])
    if not order:
        return None
    older, newer = (one[0], other[0]) if order < 0 else (other[0], one[0])
    return next((row for row in SKEWS if (row.older, row.newer) == (older, newer)), None)


def compare(one: str, other: str) -> int:
    """Below 0 where the first is older. Number by number, and a version that is about to be (1.0rc1) before itself."""
    for left, right in zip_longest(one.split("."), other.split("."), fillvalue="0"):
        if _rank(left) != _rank(right):
            return -1 if _rank(left) < _rank(right) else 1
    return 0


def _rank(part: str) -> tuple[int, bool, str]:
    digits = part[: len(part) - len(part.lstrip("0123456789"))]
    rest = part[len(digits) :]
    return int(digits[:9] or 0), not rest, rest
