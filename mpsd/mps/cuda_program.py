"""mpsd's CUDA client, or the simulator's, as a command line.

The two take the same actions and print the same lines (mpsd/bench/cuda_client.py has both).
"""

import sys
from pathlib import Path

import mpsd

_REAL = Path(mpsd.__file__).with_name("bench") / "cuda_client.py"


def command(*, simulated: bool) -> tuple[str, ...]:
    """Without actions. By its path, without site-packages, so that it starts in a few milliseconds."""
    return ("sim-cuda",) if simulated else (sys.executable, "-I", "-S", str(_REAL))
