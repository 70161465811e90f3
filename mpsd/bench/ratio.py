"""Whether two programs with shares of 1:2 get 1:2.

One rule: 20 and 40 percent, since these are exactly 1:2 in SMs too where a card's SMs are given in pairs (26 and 52 of
132); what is measured where bandwidth is the limit is kept as it is.
"""

from collections.abc import Iterator

from mpsd.bench.ground import BenchShare
from mpsd.bench.here import BenchContext, gather
from mpsd.bench.rules.rows import RatioRow, WorkKind

PERCENTS = (20, 40)
_SHARES = [BenchShare(4, percent) for percent in PERCENTS]
_WINDOWS = 3


def steps(_here: BenchContext) -> int:
    return len(WorkKind) * _WINDOWS


def measure(here: BenchContext) -> Iterator[RatioRow]:
    with here.under_mpsd() as ground:
        for work in WorkKind:
            crowd = gather(ground, work, _SHARES, here.window_s, _WINDOWS)
            for window in range(_WINDOWS):
                here.step(f"two programs of {work}, 20 % and 40 %, window {window + 1} of {_WINDOWS}")
                first, second = crowd.measure(here.window_s)
                yield RatioRow(
                    work=work,
                    batch=None,
                    percents=PERCENTS,
                    sms=(first.sms, second.sms),
                    per_s=(first.launches_per_s, second.launches_per_s),
                    unit="launches",
                )
            ground.end_programs()
