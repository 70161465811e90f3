"""Runs `mpsd control`, `mpsd agent` and `mpsd up`, from the run directory's lock to the exit code.

Where somebody removes that directory, they end, and leave daemons and programs as they are.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import NoReturn

from mpsd.model.problem import InvalidInput
from mpsd.mps import gate
from mpsd.platform import life, logs, run_directory
from mpsd.platform.console import ExitCode, complaints
from mpsd.platform.limits_files import LimitsFiles, watch_limits
from mpsd.platform.nvml import NvmlFailed
from mpsd.platform.run_directory import AlreadyHeld, DirectoryIdentity, Vanished
from mpsd.platform.settings import CannotListen, Settings

_LOOK_S = 0.5


class CannotServe(Exception):
    """The message says why."""


_EXPECTED = (NvmlFailed, CannotServe, CannotListen, AlreadyHeld, Vanished, OSError)


def serve(
    verb: str,
    settings: Settings,
    run: Callable[[], Coroutine[None, None, int]],
    *,
    with_control: bool,
) -> NoReturn:
    """Exits with 1 where it cannot run. with_control: this process supervises the daemons, for
    which it must hold the run directory."""
    logs.configure(settings.log_format, settings.log_level)
    run_directory.have_others_reach_what_they_need()
    try:
        with run_directory.held(settings.run_directory) if with_control else nullcontext():
            if with_control:  # before anything that can fail, such as NVML
                gate.close_before_start(settings.run_directory, logs.logger())
                settings.log_loss.unlink(missing_ok=True)  # of an earlier `mpsd control`
            code = life.run(f"mpsd {verb}", run, (*_EXPECTED, InvalidInput))
    except _EXPECTED as error:
        complaints().print(f"mpsd: {error}")
        code = ExitCode.NO
    sys.exit(code)


@asynccontextmanager
async def watching(settings: Settings, files: LimitsFiles) -> AsyncIterator[None]:
    """Follows the limits files; Vanished without the run directory."""
    with directory_in_sight(settings.run_directory) as directory:

        async def watch() -> None:
            while True:
                if not directory.is_there:
                    raise Vanished(directory.directory)
                await asyncio.sleep(_LOOK_S)

        async with life.Tasks() as tasks:
            looking = tasks.create_task(watch())
            reading = tasks.create_task(watch_limits(files, logs.logger()))
            yield
            looking.cancel()
            reading.cancel()


@contextmanager
def directory_in_sight(directory: Path) -> Iterator[DirectoryIdentity]:
    """Vanished, and logged, where something fails because the directory was removed."""
    with run_directory.in_sight(directory) as identity:
        try:
            yield identity
        except (ExceptionGroup, OSError) as error:
            failures = _leaves(error)
            noticed = [one for one in failures if isinstance(one, Vanished)]
            lost = noticed[0].path if noticed else identity.lost(failures)
            if lost is None:
                raise
            vanished = Vanished(lost)
            logs.logger().error("run directory vanished", path=str(lost), reason=str(vanished))
            raise vanished from None


def _leaves(error: BaseException) -> Sequence[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in _leaves(one)]
    return [error]
