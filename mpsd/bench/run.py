"""One run of `mpsd bench`: the parts that were chosen, one after the other, and what was measured so far.

One rule: whatever ends it, `so_far` holds every record up to then.
"""

import os
import platform
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import mpsd
from mpsd.bench import listing
from mpsd.bench.ground import Ground
from mpsd.bench.here import BenchContext, CannotMeasure, PartOfBench, require_alone, require_mps, require_turns
from mpsd.bench.rules.rows import VERSION, Benchmark, BenchPart, MachineRow, Row, rows_of

_MODULES = {BenchPart.TORCH: "torch_ratio"}  # of the others each is called as its part
_LISTING = "what nvidia-smi lists"


def look(here: BenchContext, socket: Path | None, *, beside_others: bool) -> MachineRow:
    """This machine, once nothing is in the way. socket: of an mpsd that may run here; None where that is no matter.

    CannotBegin; NvmlFailed; InvalidInput for simulated GPUs that cannot be.
    """
    with here.in_turns() as ground:
        require_mps(ground.node.environment)
        require_turns(ground.nvml, ground.gpu)
        if not beside_others:
            require_alone(ground.nvml, ground.node.gpus, socket)
        return _machine(ground, simulated=bool(here.simulate))


def _machine(ground: Ground, *, simulated: bool) -> MachineRow:
    return MachineRow(
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        mpsd=mpsd.__version__,
        gpu=ground.gpu.name,
        memory_mib=ground.gpu.memory_mib,
        sms=ground.gpu.sms,
        driver=ground.nvml.driver(),
        cuda=ground.nvml.cuda(),
        cores=len(os.sched_getaffinity(0)),
        python=platform.python_version(),
        simulated=simulated,
    )


class BenchRun:
    """so_far: what has been measured, as it is kept."""

    def __init__(self, here: BenchContext, machine: MachineRow, parts: Sequence[BenchPart]) -> None:
        """parts: those to measure, in any order."""
        self._here = here
        self._parts = [part for part in BenchPart if part in parts]
        self._lists = BenchPart.SHARING in self._parts and not here.simulate
        self.so_far = Benchmark(version=VERSION, machine=machine, window_s=here.window_s)

    def steps(self) -> int:
        """How often the `step` of `here` will be called."""
        return sum(_module(part).steps(self._here) for part in self._parts) + self._lists

    def measure(self) -> Iterator[BenchPart]:
        """Measures; yields each part once it is over. What keeps one from being measured is no reason to stop."""
        for part in self._parts:
            here = self._telling(part)
            try:
                with closing(cast("Generator[Row]", _module(part).measure(here))) as rows:  # its ground with it
                    for row in rows:
                        self._keep(part, row)
            except CannotMeasure as error:
                self.so_far = replace(self.so_far, skipped=(*self.so_far.skipped, (part, str(error))))
            if part is BenchPart.SHARING and self._lists:
                here.step(_LISTING)
                self.so_far = replace(self.so_far, listed=listing.listed(here))
            yield part

    def _telling(self, part: BenchPart) -> BenchContext:
        return replace(self._here, step=lambda what: self._here.step(f"{part}: {what}"))

    def _keep(self, part: BenchPart, row: Row) -> None:
        added: dict[str, Any] = {part.value: (*rows_of(self.so_far, part), row)}
        self.so_far = replace(self.so_far, **added)


def _module(part: BenchPart) -> PartOfBench:
    """Imported when it is run: a part costs nobody else anything."""
    return cast("PartOfBench", import_module(f"mpsd.bench.{_MODULES.get(part, part.value)}"))
