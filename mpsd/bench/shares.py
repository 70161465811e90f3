"""Whether so many percent of the threads do so many percent of the work, alone and beside others.

One rule: the same amount of work for every share, by programs that nothing but arithmetic holds up.
"""

from collections.abc import Iterator, Sequence
from statistics import median

from mpsd.bench.ground import BenchShare, UnderMpsd
from mpsd.bench.here import BenchContext, gather
from mpsd.bench.rules.rows import ShareRow, WorkKind

_ALONE = tuple(range(10, 101, 10))
_TOGETHER = ((10, 30, 60), (20, 80), (40, 50))
_MEMORY_GIB = 2
_WINDOWS = 3  # the median counts


def steps(_here: BenchContext) -> int:
    return len(_ALONE) + len(_TOGETHER)


def measure(here: BenchContext) -> Iterator[ShareRow]:
    with here.under_mpsd() as ground:
        for percents in (*((percent,) for percent in _ALONE), *_TOGETHER):
            here.step(" and ".join(f"{percent} %" for percent in percents) + " of the threads")
            yield from _together(ground, percents, here.window_s)


def _together(ground: UnderMpsd, percents: Sequence[int], window_s: float) -> Iterator[ShareRow]:
    shares = [BenchShare(_MEMORY_GIB, percent) for percent in percents]
    crowd = gather(ground, WorkKind.ARITHMETIC, shares, window_s, _WINDOWS)
    windows = [crowd.measure(window_s) for _ in range(_WINDOWS)]
    ground.end_programs()
    for place, (percent, own) in enumerate(zip(percents, zip(*windows, strict=True), strict=True)):
        beside = (*percents[:place], *percents[place + 1 :])
        rate = median(one.launches_per_s for one in own)
        yield ShareRow(percent, own[0].sms, beside, WorkKind.ARITHMETIC, rate)
