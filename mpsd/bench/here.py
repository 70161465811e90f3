"""What every part of a benchmark works with: the grounds of this machine, how long to measure, and whom to tell.

One rule: a part calls `step` before each thing that takes time, as often as it said it would, so that a bar can
move; or less often, where a card is too small for some.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mpsd.bench.ground import Ground, InTurns, UnderMps, UnderMpsd
from mpsd.bench.rules.bench_rows import Mode, Row
from mpsd.model.gpu_facts import GpuFacts
from mpsd.platform.limits_files import shipped_folder


@dataclass(frozen=True, slots=True)
class Here:
    """simulate: "" for real GPUs. window_s: of each measurement. rounds: of what is given as a median.

    step: told what is being measured next. limits: the folder of the policy to measure under, and of the facts.
    """

    simulate: str
    facts: GpuFacts
    window_s: float
    rounds: int
    step: Callable[[str], None]
    limits: Path = field(default_factory=shipped_folder)

    def in_turns(self) -> InTurns:
        return InTurns(self.simulate, self.facts)

    def under_mps(self) -> UnderMps:
        return UnderMps(self.simulate, self.facts)

    def under_mpsd(self, **changes: Any) -> UnderMpsd:
        """changes: of the policy."""
        return UnderMpsd(self.simulate, self.facts, self.limits, **changes)

    def ground(self, mode: Mode) -> Ground:
        match mode:
            case Mode.TIME_SLICED:
                return self.in_turns()
            case Mode.MPS:
                return self.under_mps()
            case Mode.MPSD:
                return self.under_mpsd()


class CannotMeasure(Exception):
    """This part cannot be measured here, and why: a sentence's end."""


class NotAsPromised(Exception):
    """What mpsd promises did not happen while it was timed, so that there is no figure: a whole sentence."""


class PartOfBench(Protocol):
    """A module of mpsd.bench that measures one part."""

    def steps(self, here: Here, /) -> int:
        """How often `measure` will call `here.step`."""

    def measure(self, here: Here, /) -> Iterator[Row]:
        """Measures; CannotMeasure where that is not possible here, NotAsPromised where it makes no sense to go on."""
