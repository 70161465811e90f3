"""The program `nvidia-cuda-mps-control`: starts the daemon, or passes commands to the one that runs.

One rule: a command costs a process each time, so nothing is imported that it does not need.
"""

import os
import sys

from mpsd.simulator.mps.control_help import BANNER, HELP

TYPE_CHECKING = False  # in place of typing's, which takes half as long to import as a command takes in all
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PIPE_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108  the driver's own default

_FLAGS = {
    "-h": "help",
    "--help": "help",
    "-v": "version",
    "--version": "version",
    "-d": "background",
    "--daemon": "background",
    "-f": "foreground",
    "--forground": "foreground",
    "--foreground": "foreground",
    "-M": "multiuser",
    "--multiuser-server": "multiuser",
    "-q": "ready",
    "--ready-devices": "ready",
}


def main(arguments: "Sequence[str] | None" = None) -> int:
    """The exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    options = [argument for argument in given if argument.startswith("-")]
    if given and not given[0].startswith("-"):
        return _ask([" ".join(given)])
    if any(option not in _FLAGS for option in options):
        print(f"Unrecognized option \0\n{HELP}", end="")  # it does print that zero
        return 1
    flags = {_FLAGS[option] for option in options}
    if "help" in flags or "version" in flags:
        print(HELP if "help" in flags else BANNER, end="")
        return 0
    if flags & {"background", "foreground"}:
        return _start(multiuser="multiuser" in flags, foreground="foreground" in flags)
    return _ask(sys.stdin)


def _ask(commands: "Iterable[str]") -> int:
    from mpsd.simulator.mps.control_question import ask

    return ask(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or PIPE_DIRECTORY, commands)


def _start(*, multiuser: bool, foreground: bool) -> int:
    from mpsd.simulator.mps.daemon_start import start

    if multiuser and os.geteuid() != 0:
        print("Only root user may enable -multiuser-server!", file=sys.stderr)
        return 1
    return start(os.environ, multiuser=multiuser, foreground=foreground)


if __name__ == "__main__":
    sys.exit(main())
