"""What a process has queued on a GPU: kernels one after the other, which run on while it is
stopped.

How long they are, and what an end among them does to the neighbours, is read off H200s
(driver 580.159.04).
"""

import math
from dataclasses import dataclass
from typing import Final, Self

# 1 of 24 ends in kernels of 1 and 3 ms took the neighbours along, and 11 of 12 in kernels of 10 ms.
HARMLESS_US: Final = 5_000

# What a client of `kernel=` and `gemm=` keeps queued: twice as long as mpsd/bench/cuda_client.py,
# as it fills its queue only while it has a processor.
AHEAD_S: Final = 1.0
FEWEST_AHEAD: Final = 2

_GEMM_SIZE, _GEMM_S = 16384, 0.012  # 4096: 0.0002, 32768: 0.090


@dataclass(frozen=True, slots=True)
class KernelQueue:
    """What is queued of one process, as its card shows it to others."""

    ends_ns: int = 0  # when the last kernel ends, by CLOCK_MONOTONIC; in the past where none runs
    kernel_us: int = 0  # how long each of them is
    gemm: bool = False  # products of matrices

    def runs(self, now_ns: int) -> bool:
        return self.ends_ns > now_ns

    def death_strikes(self, now_ns: int) -> bool:
        """Whether the neighbours go with the process when it dies now.

        The kernel behind the one that runs begins before the driver has ended the first (11 of 12
        deaths in kernels of 10 ms), so what counts is how long each is and what is left of all.
        """
        left_us = (self.ends_ns - now_ns) // 1000
        return self.kernel_us > HARMLESS_US and left_us > HARMLESS_US

    def termination_strikes(self, now_ns: int) -> bool:
        """Whether they go when its context is terminated: in products, and not in plain kernels.

        Of small ones 12 of 66 times on the card, here each time.
        """
        return self.gemm and self.runs(now_ns)


@dataclass(slots=True)
class KernelsAhead:
    """Kernels of one length, of which a client always has several queued.

    launched: so far; ends_s: the end of the last of them, by CLOCK_MONOTONIC.
    """

    kernel_s: float
    gemm: bool = False
    launched: int = 0
    ends_s: float = 0.0

    @classmethod
    def of_gemm(cls, size: int) -> Self:
        """Products of so many rows and columns, of halves."""
        return cls(_GEMM_S * (size / _GEMM_SIZE) ** 3, gemm=True)

    @property
    def queue(self) -> KernelQueue:
        return KernelQueue(int(self.ends_s * 1e9), max(1, int(self.kernel_s * 1e6)), self.gemm)

    def fill(self, now_s: float) -> None:
        """Launch as many as there is room for."""
        more = max(FEWEST_AHEAD, round(AHEAD_S / self.kernel_s)) - self._waiting(now_s)
        self.launched += more
        self.ends_s = max(self.ends_s, now_s) + more * self.kernel_s

    def completed(self, now_s: float) -> int:
        return self.launched - self._waiting(now_s)

    def _waiting(self, now_s: float) -> int:
        """Those that have not ended."""
        return math.ceil(max(0.0, self.ends_s - now_s) / self.kernel_s - 1e-6)
