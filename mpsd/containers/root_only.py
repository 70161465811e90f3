"""Whether somebody other than root could change a program that root will run.

One rule: every folder and every link on the way counts, because whoever may write one of them may put another thing
in its place.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from mpsd.model.problem import Problem

_LINKS = 40  # what the kernel follows
_MOST = 5  # problems that are said


def writable_by_others(what: str, path: Path, *, below: bool = False) -> list[Problem]:
    """What of the way to this path others may write; below: and of all that is in it. what: a person's word for it.

    Root and whoever asks are not others: without root nobody puts a launcher where root starts it.
    """
    places = [*_way(path), *(_below(Path(os.path.realpath(path))) if below else ())]
    return [problem for place in dict.fromkeys(places) if (problem := _problem(what, place))][:_MOST]


def _problem(what: str, place: Path) -> Problem | None:
    try:
        found = place.lstat()
    except FileNotFoundError:
        return Problem("launcher-unsafe", what, str(place), "is not there", "check the path")
    if found.st_uid not in {0, os.geteuid()}:
        who = f"belongs to user {found.st_uid}"
        return _unsafe(what, place, who, f"install mpsd as root (or: chown root {place})")
    if stat.S_ISLNK(found.st_mode) or (found.st_mode & stat.S_ISVTX and stat.S_ISDIR(found.st_mode)):
        return None  # a link has no mode; in a folder such as /tmp nobody can replace what is another's
    if found.st_mode & stat.S_IWOTH:
        return _unsafe(what, place, "may be written by everybody", f"chmod o-w {place}")
    if found.st_mode & stat.S_IWGRP and found.st_gid not in {0, os.getegid()}:
        return _unsafe(what, place, f"may be written by group {found.st_gid}", f"chmod g-w {place}")
    return None


def _unsafe(what: str, place: Path, message: str, remedy: str) -> Problem:
    return Problem("launcher-unsafe", what, str(place), f"{message}, and the launcher is run by root", remedy)


def _way(path: Path) -> Iterator[Path]:
    """Everything the kernel looks at on the way to a path, the path itself too."""
    left = list(path.absolute().parts[1:])
    place, links = Path("/"), 0
    yield place
    while left:
        part = left.pop(0)
        place = place.parent if part == ".." else place / part
        yield place
        if place.is_symlink() and links < _LINKS:
            links += 1
            target = place.readlink()
            place = Path("/") if target.is_absolute() else place.parent
            left = [*(target.parts[1:] if target.is_absolute() else target.parts), *left]


def _below(folder: Path) -> Iterator[Path]:
    for at, folders, files in os.walk(folder):
        yield from (Path(at) / name for name in (*folders, *files))
