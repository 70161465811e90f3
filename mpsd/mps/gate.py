"""The gate of a domain: a device node that its containers name as theirs, so that none starts
unless a living daemon serves. It has the numbers of /dev/null; no container opens it."""

import os
import stat
from collections.abc import Collection, Container, Iterable
from contextlib import suppress
from pathlib import Path

from mpsd.model.domain import SERVING, State
from mpsd.model.node_view import DomainRecord
from mpsd.mps.records import DomainRecords
from mpsd.platform.logs import Logger
from mpsd.platform.run_directory import DomainFolder

_KIND = stat.S_IFCHR | 0o444
_NUMBERS = os.makedev(1, 3)  # admin-guide/devices.txt of the kernel


def why_impossible(directory: Path) -> str:
    """Why no gate can be made in this directory; empty where one can."""
    attempt = directory / ".gate"
    attempt.unlink(missing_ok=True)
    try:
        os.mknod(attempt, _KIND, _NUMBERS)
    except PermissionError:
        return "this user may make no device nodes here"
    attempt.unlink()
    return ""


def make(folder: DomainFolder) -> None:
    with suppress(FileExistsError):
        os.mknod(folder.gate, _KIND, _NUMBERS)


def remove(folder: DomainFolder) -> None:
    """From now on none starts; those that run keep theirs."""
    folder.gate.unlink(missing_ok=True)


def remove_all_but(run_directory: Path, serving: Container[str]) -> tuple[str, ...]:
    """Removes the gates of all domains but these, and names those that had one."""
    stale = [gate for gate in run_directory.glob("gpu*/gate") if gate.parent.name not in serving]
    for gate in stale:
        gate.unlink(missing_ok=True)
    return tuple(gate.parent.name for gate in stale)


def close_before_start(run_directory: Path, log: Logger) -> None:
    """For `mpsd control`: only a domain that served and whose daemon lives keeps its gate."""
    close_unguarded(run_directory, DomainRecords(run_directory, log).read(), log, SERVING)


def close_unguarded(
    run_directory: Path,
    records: Iterable[DomainRecord],
    log: Logger,
    states: Collection[State] = frozenset(State),
) -> None:
    """Removes gates without a living daemon in these states; a stat or two a domain. records: as
    they are now."""
    serving = {record.domain for record in records if record.daemon and record.state in states}
    for domain in remove_all_but(run_directory, serving):
        log.warning(
            "gate closed", domain=domain, reason="its control daemon is gone, or never served"
        )
