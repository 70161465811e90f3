"""Keeps the limits in force as they are on disk, while a process runs.

One rule: a changed policy counts within seconds; a bad one leaves the last good one in force, and is said once.
"""

import asyncio
from collections.abc import Callable

from mpsd.platform.limits_files import LimitsFiles
from mpsd.platform.logs import Logger

_LOOK_S = 2.0


async def watch_limits(files: LimitsFiles, log: Logger, looked: Callable[[], None] = lambda: None) -> None:
    """Until it is cancelled. looked: called after every look."""
    while True:
        await asyncio.sleep(_LOOK_S)
        wrong = files.read_again()
        looked()
        if wrong:
            log.error("limits kept", reason=str(wrong))
