"""The text of `mpsd-runtime`, which engines start for every step of a container. Its shell hands
most to the next runtime at once; else Python starts, without site-packages (-S) and the caller's
(-I)."""

import ast
import re
import shlex
from dataclasses import dataclass

from mpsd.containers.dialects.names import COMMANDS, NEXT_RUNTIMES

# Each container is deleted once; it concerns mpsd only where that kills, with one of these.
_WORDS = (*(command for command in COMMANDS if command != "delete"), "-f", "-force*", "--force*")
_WORDS += ("help", "-h", "--help*", "--next*", "--run-dir*", "--runtime-log*")
_TEXT = """\
#!/bin/sh
# Written by `mpsd install`; `mpsd uninstall` removes it.
for mpsd_word; do
    case $mpsd_word in
    {words}) break ;;
    *) mpsd_word= ;;
    esac
done
if [ $# -gt 0 ] && [ -z "$mpsd_word" ]; then
    for mpsd_next in {following}; do
        mpsd_path=$(command -v "$mpsd_next") || continue
        [ "$mpsd_path" -ef "$0" ] || exec "$mpsd_path" "$@"
        break
    done
fi
exec {python} -ISc {code} "$0" "$@"
"""


def launcher(python: str, folder: str, run_directory: str, next_runtime: str, log: str) -> str:
    """folder: of the package `mpsd`. next_runtime: empty for the usual. ValueError for what no
    script can hold."""
    if not python.startswith("/"):
        raise ValueError(f"the path of Python is {python!r}; it must be absolute")
    for what, name in (("the path of Python", python), ("the next runtime", next_runtime)):
        if not (name.isascii() and name.isprintable()):
            raise ValueError(f"{what} is {name!a}; it must be of printable ASCII characters")
    code = (
        f"import sys; del sys.argv[0]; sys.path.append({folder!a}); from mpsd.runtime.main import"
        f" main; sys.exit(main(run_directory={run_directory!a}, next_runtime={next_runtime!a},"
        f" log={log!a}))"
    )
    return _TEXT.format(
        words=" | ".join(_WORDS),
        following=shlex.join([next_runtime] if next_runtime else NEXT_RUNTIMES),
        python=shlex.quote(python),
        code=shlex.quote(code),
    )


@dataclass(frozen=True, slots=True)
class Launched:
    """What a launcher starts; see `launcher`."""

    python: str
    folder: str
    next_runtimes: tuple[str, ...]


def launched(text: str) -> Launched | None:
    """None where this version writes no such text."""
    following = re.search(r"^    for mpsd_next in (.*); do$", text, re.MULTILINE)
    started = re.search(r"^exec (.* -ISc .*)$", text, re.MULTILINE)
    try:
        words = shlex.split(started[1]) if started else []
        names = shlex.split(following[1]) if following else []
        code = words[2] if len(words) > 2 else ""
        folder = re.search(r"sys\.path\.append\((.*?)\); from mpsd", code)
        if folder and names:
            return Launched(words[0], str(ast.literal_eval(folder[1])), tuple(names))
        return None
    except (ValueError, SyntaxError):
        return None
