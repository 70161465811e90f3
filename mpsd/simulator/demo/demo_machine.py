"""A simulated machine for the demo: the real programs, in a folder of their own.

One rule: nothing here knows what should happen; it starts, asks and stops, and the story looks at what came of it.
"""

from collections.abc import Sequence
from pathlib import Path

from mpsd.platform.programs import JsonProgram
from mpsd.simulator.own_mpsd import OwnMpsd


class DemoMachine(OwnMpsd):
    """`mpsd up` with simulated GPUs in `folder`, and the simulator's CUDA programs under it."""

    def __init__(self, folder: Path, gpus: str, limits: Path | None = None) -> None:
        super().__init__(folder, ["--simulate", gpus, *(["--limits", str(limits)] if limits else [])])

    def run(self, gpu_mem: int, actions: Sequence[str], gpu_core: int | None = None) -> JsonProgram:
        """Starts the simulator's CUDA program under `mpsd run`."""
        share = [] if gpu_core is None else ["--gpu-core", str(gpu_core)]
        return self.run_command(["--gpu-mem", str(gpu_mem), *share], ["sim-cuda", *actions])
