"""The text of `mpsd-runtime`: the program that Docker, containerd and podman start for every container.

One rule: it loads nothing but what it runs: no site-packages (`-S`), no variable or folder of whoever starts it (`-I`).
"""

_LONGEST_FIRST_LINE = 255  # bytes that Linux reads of it: BINPRM_BUF_SIZE, less one


def launcher(python: str, folder: str, run_directory: str, next_runtime: str, log: str) -> str:
    """The text. python: its path; folder: the one that holds the package `mpsd`; next_runtime: empty for the usual one.

    ValueError where no first line can name this Python.
    """
    first = f"#!{python} -IS"
    if not python.startswith("/") or any(char.isspace() or char == "\0" for char in python):
        raise ValueError(f"the path of Python is {python!r}; it must be absolute and without spaces")
    if len(first.encode()) > _LONGEST_FIRST_LINE:
        raise ValueError(f"the path of Python has {len(python)} characters, more than a first line takes")
    return f"""\
{first}
# Written by `mpsd install`; `mpsd uninstall` removes it.
import sys

sys.path.append({folder!a})
from mpsd.runtime.main import main

sys.exit(main(run_directory={run_directory!a}, next_runtime={next_runtime!a}, log={log!a}))
"""
