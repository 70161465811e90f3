"""Whether a grant's memory changes what a program computes: it must not.

One rule: at each percent the same work under a small and a large grant, one right after the other.
"""

from collections.abc import Iterator

from mpsd.bench.ground import BenchShare
from mpsd.bench.here import BenchContext, gather
from mpsd.bench.rules.rows import SizeRow, WorkKind

_PERCENTS = (10, 50, 100)
_SMALL_GIB = 2
_WINDOWS = 3  # the median counts


def steps(_here: BenchContext) -> int:
    return 2 * len(_PERCENTS)


def measure(here: BenchContext) -> Iterator[SizeRow]:
    with here.under_mpsd() as ground:
        large_gib = ground.gpu.memory_mib * 3 // 4 // 1024
        for percent in _PERCENTS:
            for memory_gib in (_SMALL_GIB, large_gib):
                here.step(f"{percent} % and {memory_gib} GiB")
                crowd = gather(ground, WorkKind.ARITHMETIC, [BenchShare(memory_gib, percent)], here.window_s, _WINDOWS)
                found = crowd.middle(here.window_s, _WINDOWS)
                ground.end_programs()
                yield SizeRow(percent, memory_gib, found.launches_per_s)
