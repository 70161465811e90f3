"""The gate of a domain: a device node that its containers name as theirs, so that none starts while it does not serve.

One rule: it is there only while a daemon serves behind it. It leads nowhere: its numbers are those of /dev/null, and
no container needs to open it.
"""

import os
import stat
from collections.abc import Container
from contextlib import suppress
from pathlib import Path

from mpsd.platform.domain_folder import DomainFolder

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
    """Lets containers start."""
    with suppress(FileExistsError):
        os.mknod(folder.gate, _KIND, _NUMBERS)


def remove(folder: DomainFolder) -> None:
    """Lets none start from now on; those that run keep theirs."""
    folder.gate.unlink(missing_ok=True)


def remove_all_but(run_directory: Path, serving: Container[str]) -> tuple[str, ...]:
    """Removes the gates of all domains but these, and names those that had one."""
    stale = [DomainFolder(path.parent) for path in run_directory.glob("gpu*/gate")]
    stale = [folder for folder in stale if folder.path.name not in serving]
    for folder in stale:
        remove(folder)
    return tuple(folder.path.name for folder in stale)
