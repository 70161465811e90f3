"""The asking side of `nvidia-cuda-mps-control`: commands to the running daemon, one a line, answers on standard output.

One rule: no time-out of its own; a daemon that is stopped keeps its askers waiting, as the real one does.
"""

import sys
from collections.abc import Iterable

from mpsd.sim import messages


def ask(pipe_directory: str, commands: Iterable[str]) -> int:
    """Pass each command on and print its answer; the exit code, 1 only where there is no daemon."""
    connection = messages.connect(f"{pipe_directory}/control_privileged") or messages.connect(
        f"{pipe_directory}/control"
    )
    if connection is None:
        print("Cannot find MPS control daemon process", file=sys.stderr)
        return 1
    with connection:
        for command in filter(None, map(str.strip, commands)):
            answer = messages.receive(connection) if messages.send(connection, {"command": command}) else None
            if answer is None:
                print("Cannot send command to MPS control daemon process", file=sys.stderr)
                return 1
            print(answer["text"], end="", flush=True)
    return 0
