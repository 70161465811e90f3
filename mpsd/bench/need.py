"""Whether a program that needs more memory than its grant is stopped by it, and one that needs less runs.

One rule: the program asks for what it needs like any other, in pieces, and says what CUDA answered.
"""

from collections.abc import Iterator

from mpsd.bench.ground import BenchShare
from mpsd.bench.here import BenchContext, first_line
from mpsd.bench.rules.rows import NeedRow

_NEEDS_MIB = 7600  # 7.6 GB, and the limits 3276 and 8192 MiB: the published report of eGPU
_LIMITS_GIB = (3, 8)  # grants are whole GiB
_ANSWER_S = 60.0


def steps(_here: BenchContext) -> int:
    return len(_LIMITS_GIB)


def measure(here: BenchContext) -> Iterator[NeedRow]:
    with here.under_mpsd() as ground:
        for limit_gib in _LIMITS_GIB:
            here.step(f"a program that needs {_NEEDS_MIB} MiB under {limit_gib} GiB")
            program = ground.start([f"alloc={_NEEDS_MIB}"], BenchShare(limit_gib))
            first_line(ground, program)
            said = program.line_with("alloc_MiB", _ANSWER_S)
            ground.end_programs()
            yield NeedRow(_NEEDS_MIB, limit_gib * 1024, said["alloc_MiB"], said["rc"])
