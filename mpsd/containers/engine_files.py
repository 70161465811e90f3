"""Engines' configuration files, replaced as a whole, with owner, mode and label, only as they were
at the decision; links stay. And who may write a path."""

import difflib
import io
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from mpsd.model.problem import InvalidInput, Problem, shown
from mpsd.model.times import utc
from mpsd.platform import clock

_LARGEST_BYTES = 3 * 1024**2
_BACKUP = ".before-mpsd"


@dataclass(frozen=True, slots=True)
class FileChange:
    """None: there is no file. what: in words. backup: for the old file, or empty; spare: a backup
    that equals the file afterwards and is removed, or empty."""

    file: str
    what: str
    before: str | None
    after: str | None
    mode: int = 0o644
    backup: str = ""
    spare: str = ""

    @property
    def action(self) -> str:
        if self.before == self.after:
            return "keep"
        if self.before is None:
            return "create"
        return "remove" if self.after is None else "change"

    def diff(self) -> str:
        """As `diff -u` shows it."""
        # lines end with \n alone
        before, after = (list(io.StringIO(text or "")) for text in (self.before, self.after))
        old = new = self.file
        if self.before is None:
            old = "/dev/null"
        elif self.after is None:
            new = "/dev/null"
        lines = []
        for line in difflib.unified_diff(before, after, old, new):
            lines.append(line)
            if not line.endswith("\n"):
                lines.append("\n\\ No newline at end of file\n")
        return "".join(lines)


@dataclass(frozen=True, slots=True)
class EngineFile:
    """path: of the file itself; linked_from: the link, or None. text: None where there is none."""

    path: Path
    text: str | None
    linked_from: Path | None = None

    def changed(self, what: str, after: str | None, mode: int = 0o644) -> FileChange:
        return FileChange(str(self.path), what, self.text, after, mode)


class ChangedMeanwhile(Exception):
    """Somebody has written the file since it was read."""


def find(path: Path, root: Path) -> EngineFile:
    """InvalidInput for what is no text, or a link to nowhere or out of root. OSError."""
    place = path.resolve()
    linked_from = path if path.is_symlink() else None
    if not place.is_relative_to(root.resolve()):
        raise _unusable(path, f"is a link to {place}, out of {root}", "put the file itself there")
    if not place.exists():
        if linked_from:
            what = f"is a link to {place}, which is not there"
            raise _unusable(path, what, "remove the link, or make the file")
        return EngineFile(place, None)
    if not place.is_file():
        raise _unusable(path, "is not a file", "move it away")
    with place.open("rb") as file:
        data = file.read(_LARGEST_BYTES + 1)
    if len(data) > _LARGEST_BYTES:
        what = f"is larger than {_LARGEST_BYTES // 1024**2} MiB"
        raise _unusable(path, what, "write the runtime into it by hand")
    try:
        return EngineFile(place, data.decode(), linked_from)
    except UnicodeDecodeError as error:
        message = f"has byte 0x{data[error.start]:02x} at {error.start}, which is not UTF-8"
        raise _unusable(path, message, "save the file as UTF-8") from None


def backups(path: Path) -> dict[Path, str]:
    """The newest first."""
    found = []
    for one in path.parent.glob(f"{path.name}{_BACKUP}*"):
        if one.is_file() and not one.is_symlink():
            with suppress(UnicodeDecodeError):
                found.append((one.stat().st_mtime_ns, one, one.read_bytes().decode()))
    return {one: text for _written, one, text in sorted(found, reverse=True)}


def with_backup(change: FileChange) -> FileChange:
    """With the copy's name, unless there is one or nothing to keep."""
    path = Path(change.file)
    if change.action != "change" or change.before in backups(path).values():
        return change
    first = path.with_name(f"{path.name}{_BACKUP}")
    dated = first.with_name(f"{first.name}.{utc(clock.wall_s()):%Y%m%dT%H%M%SZ}")
    return replace(change, backup=str(dated if first.exists() else first))


def with_spare(change: FileChange) -> FileChange:
    """With the backup that equals the file afterwards."""
    if change.action == "change":
        for kept, text in backups(Path(change.file)).items():
            if text == change.after:
                return replace(change, spare=str(kept))
    return change


def perform(change: FileChange) -> None:
    """OSError; ChangedMeanwhile. Whatever happens, the file is the old one or the new one."""
    if change.action == "keep":
        return
    path = Path(change.file)
    before = path.read_bytes().decode() if path.exists() else None
    if before != change.before:
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
                # fchown takes the bits of set-id away
                os.fchmod(descriptor, stat.S_IMODE(was.st_mode))
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
    return InvalidInput.of(
        str(path), "engine-config", "the file", shown(path.name), message, remedy
    )


# -- whether somebody other than root could change a program that root runs
# Every folder and link on the way counts.


_MOST_SHOWN = 5
_MOST_LINKS = 40  # that the kernel follows on one way


def writable_by_others(what: str, path: Path, *, below: bool = False) -> list[Problem]:
    """What of the way to this path, or of all in it (below), others than root and the caller may
    write."""
    places = list(_way(path))
    if below:
        places += Path(os.path.realpath(path)).rglob("*")
    problems = (_problem(what, place) for place in dict.fromkeys(places))
    return list(filter(None, problems))[:_MOST_SHOWN]


def _problem(what: str, place: Path) -> Problem | None:
    try:
        found = place.lstat()
    except FileNotFoundError:
        return Problem("launcher-unsafe", what, str(place), "is not there", "check the path")
    # a link has no mode; in a folder such as /tmp nobody can replace what is another's
    is_sticky = found.st_mode & stat.S_ISVTX and stat.S_ISDIR(found.st_mode)
    if found.st_uid not in {0, os.geteuid()}:
        why = f"belongs to user {found.st_uid}"
        remedy = f"install mpsd as root (or: chown root {place})"
    elif is_sticky or stat.S_ISLNK(found.st_mode):
        return None
    elif found.st_mode & stat.S_IWOTH:
        why = "may be written by everybody"
        remedy = f"chmod o-w {place}"
    elif found.st_mode & stat.S_IWGRP and found.st_gid not in {0, os.getegid()}:
        why = f"may be written by group {found.st_gid}"
        remedy = f"chmod g-w {place}"
    else:
        return None
    why += ", and the launcher is run by root"
    return Problem("launcher-unsafe", what, str(place), why, remedy)


def _way(path: Path) -> Iterator[Path]:
    """Everything the kernel looks at on the way to a path, itself too."""
    left = list(path.absolute().parts[1:])
    place = Path("/")
    links = 0
    yield place
    while left:
        part = left.pop(0)
        place = place.parent if part == ".." else place / part
        yield place
        if place.is_symlink() and links < _MOST_LINKS:
            links += 1
            target = place.readlink()
            place = place.parent
            left = [*target.parts, *left]
            if target.is_absolute():
                place = Path(left.pop(0))
