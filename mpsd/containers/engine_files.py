"""The configuration files of container engines, read and replaced as a whole, each with a copy of what it was.

One rule: a file is replaced in one step, with its owner, mode and label, and only while it says what it said when the
change was decided; a file that is a link is followed, because whoever made the link wants it to stay one.
"""

import os
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from mpsd.containers.engines.change import Change
from mpsd.model.problem import InvalidInput, Problem, shown

_LARGEST_BYTES = 3 * 1024**2
_BACKUP = ".before-mpsd"


@dataclass(frozen=True, slots=True)
class Found:
    """path: where the file is, links followed. text None: there is none. linked_from: the link; None where none is."""

    path: Path
    text: str | None
    linked_from: Path | None = None


class ChangedMeanwhile(Exception):
    """Somebody has written the file since it was read."""


def find(path: Path, root: Path) -> Found:
    """InvalidInput where it is something that cannot be changed as a text, or a link that leads nowhere or out of root.

    OSError where it cannot be read.
    """
    place = path.resolve()
    linked_from = path if path.is_symlink() else None
    if not place.is_relative_to(root.resolve()):
        raise _unusable(path, f"is a link to {place}, out of {root}", "put the file itself there")
    if not place.exists():
        if linked_from:
            raise _unusable(path, f"is a link to {place}, which is not there", "remove the link, or make the file")
        return Found(place, None)
    if not place.is_file():
        raise _unusable(path, "is no file", "move it away")
    with place.open("rb") as file:
        data = file.read(_LARGEST_BYTES + 1)
    if len(data) > _LARGEST_BYTES:
        raise _unusable(path, f"is larger than {_LARGEST_BYTES // 1024**2} MiB", "write the runtime into it by hand")
    try:
        return Found(place, data.decode(), linked_from)
    except UnicodeDecodeError as error:
        message = f"has byte 0x{data[error.start]:02x} at {error.start}, which is not UTF-8"
        raise _unusable(path, message, "save the file as UTF-8") from None


def backups(path: Path) -> dict[Path, str]:
    """What is kept of the file, the newest first."""
    found = [one for one in path.parent.glob(f"{path.name}{_BACKUP}*") if one.is_file() and not one.is_symlink()]
    kept = {}
    for one in sorted(found, key=lambda one: (one.stat().st_mtime_ns, one.name), reverse=True):
        with suppress(UnicodeDecodeError):
            kept[one] = one.read_bytes().decode()
    return kept


def with_backup(change: Change) -> Change:
    """The change with the name that the copy gets: none where one is there already, or there is nothing to keep."""
    path = Path(change.file)
    if change.action != "change" or change.before in backups(path).values():
        return change
    first = path.with_name(f"{path.name}{_BACKUP}")
    dated = first.with_name(f"{first.name}.{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    return replace(change, backup=str(dated if first.exists() else first))


def with_spare(change: Change) -> Change:
    """The change with the backup that says what the file says afterwards, which is then worth nothing."""
    same = [kept for kept, text in backups(Path(change.file)).items() if text == change.after]
    return replace(change, spare=str(same[0])) if same and change.action == "change" else change


def perform(change: Change) -> None:
    """OSError; ChangedMeanwhile. Whatever happens, the file is the old one or the new one."""
    if change.action == "keep":
        return
    path = Path(change.file)
    if _text_of(path) != change.before:
        raise ChangedMeanwhile(f"{path} was changed by somebody else meanwhile; do it again")
    if change.after is None:
        path.unlink()
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        if change.backup:
            _write(Path(change.backup), change.before or "", like=path, mode=change.mode)
        _write(path, change.after, like=path if path.exists() else None, mode=change.mode)
    if change.spare:
        Path(change.spare).unlink()


def _text_of(path: Path) -> str | None:
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return None


def _write(path: Path, text: str, like: Path | None, mode: int) -> None:
    """like: whose owner, mode and label it gets; None for the caller's, and this mode."""
    beside = path.with_name(f".{path.name}.new")
    with suppress(FileNotFoundError):
        beside.unlink()  # of one that was killed
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if like:
                was = like.stat()
                os.fchown(descriptor, was.st_uid, was.st_gid)
                shutil.copystat(like, beside)
                os.fchmod(descriptor, stat.S_IMODE(was.st_mode))  # fchown takes the bits of set-id away
                os.utime(beside)
            else:
                os.fchmod(descriptor, mode)
            file.write(text.encode())
            file.flush()
            os.fsync(descriptor)
        beside.replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            beside.unlink()
        raise


def _unusable(path: Path, message: str, remedy: str) -> InvalidInput:
    return InvalidInput(str(path), [Problem("engine-config", "the file", shown(path.name), message, remedy)])
