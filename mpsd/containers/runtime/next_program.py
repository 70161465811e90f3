"""The runtime behind this one, which this process becomes.

One rule: it finds everything as if it had been started in this one's place: pid, descriptors, environment, signals.
"""

import os
import sys
from _signal import (  # type: ignore[import-not-found]  # `signal` itself builds enums for 5 ms
    SIG_DFL,
    SIGPIPE,
    SIGXFSZ,
    signal,
)

from mpsd.containers.dialects.runtime_words import NEXT_RUNTIMES
from mpsd.containers.runtime.refused import Refused

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # where the environment names none
_NOT_FOUND = 127  # as a shell says it
_COERCED = "LC_CTYPE"


def find(asked: str) -> str:
    """The program's path. asked: a path or a name, empty for the usual ones. Refused."""
    names = [asked] if asked else NEXT_RUNTIMES
    for name in names:
        path = _on_path(name)
        if path:
            return _not_ourselves(path)
    missing = " or ".join(names)
    raise Refused(f"the next runtime, {missing}, is not found; name one with --next", exit_code=_NOT_FOUND)


def become(path: str, arguments: list[str]) -> Refused:
    """Returns only where the program cannot be started, and why."""
    for ignored in (SIGPIPE, SIGXFSZ):  # Python ignores them, and what is ignored stays so in the next program
        signal(ignored, SIG_DFL)
    try:
        os.execve(path, [path, *arguments], _environment())
    except OSError as error:
        return Refused(
            f"the next runtime {path} cannot be started: {error.strerror}; name one with --next", exit_code=126
        )


def _environment() -> dict[bytes, bytes]:
    """As it was before Python began, which adds LC_CTYPE where it finds the locale C (PEP 538)."""
    found = dict(os.environb)
    if _COERCED.encode() in found:
        try:
            with open("/proc/self/environ", "rb") as given:
                began = given.read().split(b"\0")
        except OSError:
            return found
        if not any(entry.startswith(_COERCED.encode() + b"=") for entry in began):
            del found[_COERCED.encode()]
    return found


def _on_path(name: str) -> str:
    """Empty where there is none that may be run."""
    folders = [""] if "/" in name else os.environ.get("PATH", _PATH).split(":")
    for folder in folders:
        path = f"{folder or '.'}/{name}" if "/" not in name else name
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    return ""


def _not_ourselves(path: str) -> str:
    try:
        if os.path.samefile(path, sys.argv[0]):
            raise Refused(f"the next runtime {path} is mpsd-runtime itself; name another with --next")
    except OSError:
        pass  # not started from a file
    return path
