"""What many programs get done at once: in turns, under MPS, under mpsd.

One rule: the same programs and the same windows on each ground.
"""

from collections.abc import Iterator

from mpsd.bench.here import Here, gather
from mpsd.bench.rules.rows import Mode, SharingRow, Work

_PROGRAMS = (1, 2, 4, 8)
_WORKS = (Work.SMALL, Work.ARITHMETIC)


def steps(_here: Here) -> int:
    return len(Mode) * len(_WORKS) * len(_PROGRAMS)


def measure(here: Here) -> Iterator[SharingRow]:
    for mode in Mode:
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
