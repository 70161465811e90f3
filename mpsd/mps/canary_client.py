"""Runs one CUDA client of the canary to its end.

One rule: it is a process of its own with a deadline, so that a driver that hangs or crashes takes nothing of mpsd's
with it.
"""

import asyncio
import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mpsd.mps.rules import canary
from mpsd.mps.rules.canary import Broken, Outcome

# By its path, without site-packages or anything of the caller's, so that it starts in a few milliseconds.
PROGRAM = (sys.executable, "-I", "-S", str(Path(__file__).with_name("cuda_canary.py")))


async def run(program: Sequence[str], environment: Mapping[str, str], deadline_s: float) -> Outcome:
    """What became of it; it is killed at its deadline, and when the caller is cancelled."""
    try:
        process = await asyncio.create_subprocess_exec(
            *program,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        return Broken(f"could not be started: {error}")
    try:
        async with asyncio.timeout(deadline_s):
            output, errors = await process.communicate()
    except TimeoutError:
        return canary.too_late(deadline_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    return canary.outcome_of(process.returncode or 0, output.decode(errors="replace"), errors.decode(errors="replace"))
