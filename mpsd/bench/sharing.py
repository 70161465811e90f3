"""What many programs get done at once: in turns, under MPS, under mpsd.

One rule: the same programs and the same windows on each ground.
"""

from collections.abc import Iterator

from mpsd.bench.here import BenchContext, gather
from mpsd.bench.rules.rows import SharingMode, SharingRow, WorkKind

_PROGRAMS = (1, 2, 4, 8)
_WORKS = (WorkKind.SMALL, WorkKind.ARITHMETIC)


def steps(_here: BenchContext) -> int:
    return len(SharingMode) * len(_WORKS) * len(_PROGRAMS)


def measure(here: BenchContext) -> Iterator[SharingRow]:
    for mode in SharingMode:
        with here.ground(mode) as ground:
            for work in _WORKS:
                for programs in _PROGRAMS:
                    here.step(f"{programs} × {work}, {mode}")
                    found = gather(ground, work, [None] * programs, here.window_s).middle(here.window_s, windows=1)
                    ground.end_programs()
                    yield SharingRow(
                        mode=mode,
                        work=work,
                        programs=programs,
                        launches_per_s=found.launches_per_s,
                        p50_ms=found.p50_ms,
                        p99_ms=found.p99_ms,
                    )
