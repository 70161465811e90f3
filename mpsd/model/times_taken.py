"""How long something took, many times: a histogram as Prometheus reads it, in plain values.

One rule: each time is in one slot alone; whoever tells them adds the slots up.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

# One command's process takes some milliseconds, and a daemon that does not answer is given up after graces.command_s.
COMMAND_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
# kubelet gives PreStartContainer 30 s, and mpsd answers within 25.
CALL_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0)


@dataclass(frozen=True, slots=True)
class Durations:
    """counts: of those that took at most so long as the bound of the same place, and longer than the one before; the
    last: of those that took longer than any bound.
    """

    counts: tuple[int, ...]
    sum_s: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def with_one(self, seconds: float, bounds_s: Sequence[float]) -> "Durations":
        slot = bisect_left(bounds_s, seconds)
        counts = (*self.counts[:slot], self.counts[slot] + 1, *self.counts[slot + 1 :])
        return replace(self, counts=counts, sum_s=self.sum_s + seconds)

    def up_to(self, bounds_s: Sequence[float]) -> Iterator[tuple[float, int]]:
        """Each bound, infinity last, with how many took no longer; none where they were counted by other bounds."""
        if len(self.counts) != len(bounds_s) + 1:
            return
        so_far = 0
        for bound, count in zip((*bounds_s, float("inf")), self.counts, strict=True):
            so_far += count
            yield bound, so_far


def no_durations(bounds_s: Sequence[float]) -> Durations:
    return Durations((0,) * (len(bounds_s) + 1))


@dataclass(frozen=True, slots=True)
class CommandTimes:
    """What `mpsd control` keeps in commands.json about one domain: its questions to the daemon, since it began.

    boot_id: of the boot that it is about. unanswered: those without a proper answer in time.
    """

    boot_id: str
    answered: Durations = field(default_factory=lambda: no_durations(COMMAND_BOUNDS_S))
    unanswered: int = 0
