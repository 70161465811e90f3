"""A connection whose process has ended, and another that has its pid: as root."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
_TRIES = 200  # others start processes meanwhile


def connected_by_the_dead(path: Path) -> tuple[socket.socket, int]:
    """A connection to this socket, and the pid of the process that connected, which is gone."""
    connection = socket.socket(socket.AF_UNIX)
    connects = (
        "import socket, sys; socket.socket(fileno=int(sys.argv[1])).connect(sys.argv[2])",
        str(connection.fileno()),
        str(path),
    )
    with subprocess.Popen(
        [sys.executable, "-c", *connects], pass_fds=[connection.fileno()]
    ) as process:
        assert process.wait() == 0
    return connection, process.pid


@contextmanager
def another_with(pid: int, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has this pid, which is free. No other process of the machine gets a pid that
    was somebody's a moment ago: tests beside this one may know it."""
    for _time in range(_TRIES):
        last = _LAST_PID.read_text()
        _LAST_PID.write_text(str(pid - 1))
        with subprocess.Popen(command) as process:
            _LAST_PID.write_text(last)
            try:
                if process.pid == pid:
                    yield process
                    return
            finally:
                process.kill()
    raise AssertionError(f"no process got pid {pid}")


def asked(connection: socket.socket, head: str, body: str = "") -> bytes:
    """The answer to a request over this connection, of less than 64 KiB."""
    about = f"Host: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    connection.sendall(f"{head} HTTP/1.1\r\n{about}\r\n\r\n{body}".encode())
    return connection.recv(64 * 1024)
