"""What becomes of it with more and more programs, up to as many as a GPU takes and has memory for.

One rule: every program has its context before one of them begins.
"""

import os
from collections.abc import Iterator

from mpsd.bench.ground import BenchShare
from mpsd.bench.here import BenchContext, gather
from mpsd.bench.rules.rows import ClientsRow, WorkKind

_PROGRAMS = (1, 2, 4, 8, 16, 32, 48)
_MEMORY_GIB = 1
_CORES_FOR_PLAYED = 4  # programs a core: a simulated client waits for its turn at a real processor


def _numbers(here: BenchContext) -> tuple[int, ...]:
    most = here.facts.fewest_clients
    if here.simulate:
        most = min(most, _CORES_FOR_PLAYED * len(os.sched_getaffinity(0)))
    return tuple(number for number in _PROGRAMS if number <= most)


def steps(here: BenchContext) -> int:
    return len(_numbers(here))


def measure(here: BenchContext) -> Iterator[ClientsRow]:
    with here.under_mpsd() as ground:
        has_gib = ground.gpu.memory_mib // 1024
        for programs in [number for number in _numbers(here) if number * _MEMORY_GIB <= has_gib]:
            here.step(f"{programs} programs at once")
            crowd = gather(ground, WorkKind.SMALL, [BenchShare(_MEMORY_GIB)] * programs, here.window_s)
            found = crowd.middle(here.window_s, windows=1)
            ground.end_programs()
            yield ClientsRow(
                programs=programs,
                work=WorkKind.SMALL,
                launches_per_s=found.launches_per_s,
                p50_ms=found.p50_ms,
                p99_ms=found.p99_ms,
                starts_s=crowd.starts_s,
            )
