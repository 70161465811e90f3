"""The text of `mpsd-runtime`: the program that Docker, containerd and podman start for every step of every container.

One rule: it loads nothing but what it runs. What mpsd has no part in (start, state, kill, delete, …) the shell hands to
the next runtime at once; for the rest Python starts without site-packages (`-S`), and without any variable or folder of
whoever starts it (`-I`).
"""

import shlex

from mpsd.core.runtime_words import COMMANDS, NEXT_RUNTIMES

_FLAGS = ("help", "-h", "--help*", "--next*", "--run-dir*", "--runtime-log*")
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
    """The text. python: its path; folder: the one that holds the package `mpsd`; next_runtime: empty for the usual.

    ValueError where Python or the next runtime cannot be written into a script.
    """
    if not python.startswith("/"):
        raise ValueError(f"the path of Python is {python!r}; it must be absolute")
    for what, name in (("the path of Python", python), ("the next runtime", next_runtime)):
        if not (name.isascii() and name.isprintable()):
            raise ValueError(f"{what} is {name!a}; it must be of printable ASCII characters")
    code = (
        f"import sys; del sys.argv[0]; sys.path.append({folder!a}); from mpsd.runtime.main import main; "
        f"sys.exit(main(run_directory={run_directory!a}, next_runtime={next_runtime!a}, log={log!a}))"
    )
    return _TEXT.format(
        words=" | ".join((*COMMANDS, *_FLAGS)),
        following=shlex.join([next_runtime] if next_runtime else NEXT_RUNTIMES),
        python=shlex.quote(python),
        code=shlex.quote(code),
    )
