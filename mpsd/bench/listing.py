"""What nvidia-smi says of the processes while programs run under mpsd: the proof that MPS is in use.

One rule: nvidia-smi is only read, and its table is kept as it was printed.
"""

import shutil
import subprocess

from mpsd.bench.ground import BenchShare
from mpsd.bench.here import BenchContext, gather
from mpsd.bench.rules.rows import WorkKind

_PROGRAM = "nvidia-smi"
_PROGRAMS = 2
_DEADLINE_S = 30.0


def listed(here: BenchContext) -> str:
    """Empty where there is no nvidia-smi, as on simulated GPUs, or where it does not answer."""
    if here.simulate or shutil.which(_PROGRAM) is None:
        return ""
    with here.under_mpsd() as ground:
        gather(ground, WorkKind.SMALL, [BenchShare(2)] * _PROGRAMS, here.window_s)
        try:
            answer = subprocess.run([_PROGRAM], capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return ""
    return answer.stdout if answer.returncode == 0 else ""
