"""The log of the control daemon and its server, in the real one's format.

One rule: a line goes out in one write, since the daemon and its server share the file.
"""

import os
import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MpsLog:
    """Where the lines go: the same file twice in the foreground, control.log and server.log otherwise."""

    control_file: int
    server_file: int

    def control(self, text: str) -> None:
        _write(self.control_file, "Control", text)

    def server(self, text: str, writer: str = "Server") -> None:
        _write(self.server_file, writer, text)


def _write(file: int, writer: str, text: str) -> None:
    now = time.time()
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
    line = f"[{clock}.{int(now % 1 * 1000):03} {writer} {os.getpid():>5}] {text}\n"
    try:
        os.write(file, line.encode())
    except BrokenPipeError:
        return  # nobody reads the foreground output any more; the daemon serves on
