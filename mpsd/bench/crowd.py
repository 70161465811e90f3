"""Programs that begin at the same moment, and what they then say.

One rule: nobody is told to begin before all are ready, so that none is measured while another starts.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from mpsd.bench.ground import Ground, Share
from mpsd.bench.here import CannotMeasure
from mpsd.bench.rules.bench_rows import Work
from mpsd.platform.programs import JsonProgram

_READY_S = 90.0  # forty-eight contexts one after the other, and a framework's import
_GRACE_S = 30.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What one program said of itself first, and of its window; or the same of several."""

    sms: int
    launches_per_s: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Crowd:
    """Programs that are ready and wait. first: the line each said when it had its context. starts_s: until all had."""

    programs: tuple[JsonProgram, ...]
    first: tuple[dict[str, Any], ...]
    starts_s: float

    def middle(self, window_s: float, windows: int) -> Measured:
        """All programs together: their launches, and the times of the slowest. Of so many windows, for each figure by
        itself, the median."""
        found = [_together(self.measure(window_s)) for _ in range(windows)]
        rates, p50s, p99s = zip(*((one.launches_per_s, one.p50_ms, one.p99_ms) for one in found), strict=True)
        return Measured(found[0].sms, median(rates), median(p50s), median(p99s))

    def measure(self, window_s: float) -> tuple[Measured, ...]:
        """Has all of them begin now; one window of each."""
        for program in self.programs:
            program.go_on()
        said = [program.line_with("launches_per_s", window_s + _GRACE_S) for program in self.programs]
        return tuple(
            Measured(first["sms"], line["launches_per_s"], line["p50_ms"], line["p99_ms"])
            for first, line in zip(self.first, said, strict=True)
        )


def _together(found: Sequence[Measured]) -> Measured:
    return Measured(
        sms=max(one.sms for one in found),
        launches_per_s=sum(one.launches_per_s for one in found),
        p50_ms=max(one.p50_ms for one in found),
        p99_ms=max(one.p99_ms for one in found),
    )


def gather(ground: Ground, work: Work, shares: Sequence[Share | None], window_s: float, windows: int = 1) -> Crowd:
    """Starts a program a share, each for so many windows.

    TimeoutError; EOFError with what one that ended said; CannotMeasure where one is on another GPU than the ground's.
    """
    began = time.monotonic()
    actions = [f"prepare={work}", *["step", f"measure={window_s:g}"] * windows]
    programs = tuple(ground.start(actions, share) for share in shares)
    first = tuple(first_line(ground, program) for program in programs)
    starts_s = time.monotonic() - began
    for program in programs:
        program.line_with("ready", _READY_S)
    return Crowd(programs, first, starts_s)


def first_line(ground: Ground, program: JsonProgram) -> dict[str, Any]:
    """What mpsd's CUDA client says once it has its context. TimeoutError, EOFError, CannotMeasure as of gather."""
    first = program.line_with("uuid", _READY_S)
    if first["uuid"] != ground.gpu.uuid:
        where = next((gpu.label for gpu in ground.node.gpus if gpu.uuid == first["uuid"]), first["uuid"])
        why = f"{ground.gpu.label} is measured, and a program was put on {where}, which had the room for it"
        raise CannotMeasure(f"{why}: others use {ground.gpu.label}, or it is too small for this part")
    return first
