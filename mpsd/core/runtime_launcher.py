"""The text of the launcher, `/usr/local/bin/mpsd-runtime`: a few lines that start the OCI runtime with what was chosen.

One rule: everything it knows is in its text, because an engine starts it as root with an environment of its own.
"""

_MARK = "mpsd.runtime.main"


def launcher(python: str, folder: str, run_directory: str, next_runtime: str, log: str) -> str:
    """folder: holds the package `mpsd`. next_runtime: empty where `mpsd-runtime` finds it itself.

    -I: neither the environment nor the folder it is started in says what is imported; -S: nothing of site-packages is
    looked at, which is two thirds of an interpreter's start.
    """
    return f"""#!{python} -IS
# Written by `mpsd install`, which writes it anew; `mpsd uninstall` removes it.
import sys

sys.path.append({folder!r})

from {_MARK} import main

main(run_directory={run_directory!r}, next_runtime={next_runtime!r}, log={log!r})
"""


def is_launcher(text: str) -> bool:
    """Whether a file is a launcher that some `mpsd install` has written."""
    return text.startswith("#!") and f"from {_MARK} import main" in text
