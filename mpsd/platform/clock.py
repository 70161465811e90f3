"""The clocks, each for one purpose. A wait within one process is by `time.monotonic`, as asyncio's
are. What is decided by the wall clock goes wrong when that is set: only people read it."""

import time


def boot_s() -> float:
    """Seconds since the boot, those in which the machine slept included (CLOCK_BOOTTIME): for what
    is kept and compared later, of the same boot alone (`processes.boot_id`)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def wall_s() -> float:
    """Seconds since 1970, for people, objects of Kubernetes and certificates."""
    return time.time()
