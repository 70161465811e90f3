"""The program `nvidia-cuda-mps-control`: starts the daemon, or passes commands to the one that
runs.

A command costs a process each time, so nothing is imported that it does not need.
"""

import os
import sys

# in place of typing's, which takes half as long to import as a command takes in all
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

VERSION = 13000  # of the controller that is played: of driver 580

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
        print(f"Unrecognized option \0\n{_text('help')}", end="")  # it does print that zero
        return 1
    flags = {_FLAGS[option] for option in options}
    if "help" in flags or "version" in flags:
        print(_text("help" if "help" in flags else "banner"), end="")
        return 0
    if flags & {"background", "foreground"}:
        return _start(flags)
    return _ask(sys.stdin)


def _text(name: str) -> str:
    """What it says about itself (driver 580.159.04), its spelling included."""
    folder = os.path.dirname(__file__)  # noqa: PTH120
    with open(f"{folder}/{name}.txt", encoding="utf-8") as file:  # noqa: PTH123
        return file.read()


def _ask(commands: "Iterable[str]") -> int:
    from mpsd.simulator.mps.question import ask

    return ask(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or PIPE_DIRECTORY, commands)


def _start(flags: "set[str]") -> int:
    from mpsd.simulator.mps.daemon import start

    multiuser = "multiuser" in flags
    if multiuser and os.geteuid() != 0:
        print("Only root user may enable -multiuser-server!", file=sys.stderr)
        return 1
    return start(os.environ, multiuser=multiuser, foreground="foreground" in flags)


if __name__ == "__main__":
    sys.exit(main())
