"""What mpsd costs: the same programs under MPS alone and under mpsd, in pairs of windows.

One rule: nothing of the one runs while the other is measured, and which goes first changes from pair to pair, since a
card warms up. Under both a program has the same limits in its environment.
"""

from collections.abc import Iterator

from mpsd.bench.ground import BenchShare
from mpsd.bench.here import BenchContext, Measured, gather
from mpsd.bench.rules.rows import CostRow, SharingMode, WorkKind

_ROUNDS_A_PAIR = 3  # of those asked for: a pair takes as long as many rounds of other parts
_LOADS = ((WorkKind.ARITHMETIC, 1), (WorkKind.ARITHMETIC, 4), (WorkKind.SMALL, 4))
_MEMORY_GIB = 1
_WINDOWS = 3  # of a load on one ground, one after the other; the median counts


def steps(here: BenchContext) -> int:
    return 2 * _pairs(here) * len(_LOADS)


def measure(here: BenchContext) -> Iterator[CostRow]:
    for pair in range(_pairs(here)):
        order = (SharingMode.MPS, SharingMode.MPSD) if pair % 2 == 0 else (SharingMode.MPSD, SharingMode.MPS)
        seen = {mode: _on(here, mode, pair) for mode in order}
        for load, mps, mpsd in zip(_LOADS, seen[SharingMode.MPS], seen[SharingMode.MPSD], strict=True):
            yield CostRow(
                work=load[0],
                programs=load[1],
                pair=pair,
                mps_per_s=mps.launches_per_s,
                mpsd_per_s=mpsd.launches_per_s,
                mps_p99_ms=mps.p99_ms,
                mpsd_p99_ms=mpsd.p99_ms,
            )


def _pairs(here: BenchContext) -> int:
    return max(1, here.rounds // _ROUNDS_A_PAIR)


def _on(here: BenchContext, mode: SharingMode, pair: int) -> list[Measured]:
    found = []
    with here.ground(mode) as ground:
        for work, programs in _LOADS:
            here.step(f"pair {pair + 1} of {_pairs(here)}: {programs} × {work}, {mode}")
            crowd = gather(ground, work, [BenchShare(_MEMORY_GIB)] * programs, here.window_s, _WINDOWS)
            found.append(crowd.middle(here.window_s, _WINDOWS))
            ground.end_programs()
    return found
