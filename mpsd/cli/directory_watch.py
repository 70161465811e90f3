"""Ends control and agent, with the reason, where somebody removes the run directory under them.

One rule: what was removed cannot be brought back, since sockets and records in it are other processes' as well; so
daemons and programs are left as they are, as where mpsd is killed.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mpsd.platform import logs, run_directory
from mpsd.platform.run_directory import Sight, Vanished

_LOOK_S = 0.5


async def watch_directory(sight: Sight) -> None:
    """Vanished once it is not there."""
    while True:
        if not sight.is_there:
            raise Vanished(sight.directory)
        await asyncio.sleep(_LOOK_S)


@contextmanager
def sight_of(directory: Path) -> Iterator[Sight]:
    """What fails within because of a removal is Vanished, whoever noticed it first, and is logged."""
    with run_directory.in_sight(directory) as sight:
        try:
            yield sight
        except (ExceptionGroup, OSError) as error:
            failures = _leaves(error)
            said = [one for one in failures if isinstance(one, Vanished)]
            lost = said[0].path if said else sight.lost(failures)
            if lost is None:
                raise
            logs.logger().error("run directory vanished", path=str(lost), reason=str(Vanished(lost)))
            raise Vanished(lost) from None


def _leaves(error: BaseException) -> Sequence[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in _leaves(one)]
    return [error]
