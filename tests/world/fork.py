"""Programs of mpsd started by fork from an interpreter that has imported them, instead of a new
Python each.

The interpreter has one thread and runs nothing of a program itself. A program gets its own
environment, streams and folder; /proc shows the interpreter's command line and environment for it
until it executes another.
"""

import atexit
import contextlib
import functools
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn

MPSD = Path(sys.executable).with_name("mpsd")
KUBECTL_MPS = MPSD.with_name("kubectl-mps")
_SIMULATED = ("mpsd.simulator.api_server.server", "mpsd.simulator.kubelet.kubelet")
#: What is imported before the first fork; the rest is imported by the program that needs it.
_IMPORTED = (
    *(
        f"mpsd.cli.{name}"
        for name in ("agent", "control", "kubectl_mps", "main", "run", "scheduler", "webhook")
    ),
    *_SIMULATED,
)
#: Variable of a program, JSON: by the names of mpsd's constants, the seconds that they are there.
WAITS = "TESTS_WAITS"
_MESSAGE_BYTES = 200_000
_MOST_FILES = 1024  # that the interpreter has open
_FIRST_ANSWER_S = 120.0  # it waits for the imports

Message = dict[str, Any]


def entry_of(argv: Sequence[str]) -> tuple[str, str] | None:
    if argv[0] == str(MPSD) or argv[:3] == [sys.executable, "-m", "mpsd"]:
        return "mpsd.cli.main", "main"
    if argv[0] == str(KUBECTL_MPS):
        return "mpsd.cli.kubectl_mps", "main"
    if argv[:2] == [sys.executable, "-m"] and argv[2] in _SIMULATED:
        return argv[2], "main"
    return None


def started(
    argv: Sequence[str], environment: Mapping[str, str], output: IO[bytes] | None, errors: IO[bytes]
) -> "Forked | subprocess.Popen[bytes]":
    """A program with nothing to read. output: None for where pytest's own goes.

    A program of another kind, or one that imports from elsewhere, gets a Python of its own.
    """
    entry = entry_of(argv)
    if entry is None or "PYTHONPATH" in environment:
        return subprocess.Popen(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=errors
        )
    return Forked(
        entry, argv, environment, (1 if output is None else output.fileno(), errors.fileno())
    )


class Forked:
    """A forked program, asked as a subprocess.Popen is."""

    def __init__(
        self,
        entry: tuple[str, str],
        argv: Sequence[str],
        environment: Mapping[str, str],
        streams: tuple[int, int],
    ) -> None:
        self.returncode: int | None = None
        self._line, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = argv[3:] if argv[0] == sys.executable else argv[1:]
        asked = {
            "entry": entry,
            "argv": [argv[0], *words],
            "environment": dict(environment),
            "folder": str(Path.cwd()),
        }
        with far:
            socket.send_fds(_interpreter(), [json.dumps(asked).encode()], [*streams, far.fileno()])
        self._line.settimeout(_FIRST_ANSWER_S)
        self.pid = int(self._line.recv(64))
        try:
            self._descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:  # it has ended already
            self.wait()

    def poll(self) -> int | None:
        """The exit code, or less than zero the signal; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The same once it has ended; subprocess.TimeoutExpired."""
        if self.returncode is None:
            self._line.settimeout(timeout)
            try:
                self.returncode = int(self._line.recv(64))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired("forked program", timeout or 0) from None
            self._line.close()
        return self.returncode

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)
        self._line.close()


@functools.cache
def _interpreter() -> socket.socket:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", __name__, str(far.fileno())]
    folder = Path(__file__).parents[2]
    process = subprocess.Popen(
        command, pass_fds=[far.fileno()], cwd=folder, stdin=subprocess.DEVNULL
    )
    far.close()

    def end() -> None:
        near.close()
        process.wait()

    atexit.register(end)
    return near


# -- in the interpreter


def main(asks: socket.socket) -> None:
    """Forks what is asked for until whoever asks is gone, and kills what runs then."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: pytest ends what it has started
    for name in _IMPORTED:
        import_module(name)
    gc.freeze()
    woken, wakes = os.pipe2(os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda _signum, _frame: None)
    signal.set_wakeup_fd(wakes)
    lines: dict[int, socket.socket] = {}
    looks = selectors.DefaultSelector()
    looks.register(asks, selectors.EVENT_READ)
    looks.register(woken, selectors.EVENT_READ)
    while True:
        ready = {key.fileobj for key, _events in looks.select()}
        if woken in ready:
            os.read(woken, 4096)
            _tell_of_ends(lines)
        if asks in ready:
            data, descriptors, _flags, _address = socket.recv_fds(asks, _MESSAGE_BYTES, 3)
            if not data:
                break
            output, errors, line = descriptors
            pid = os.fork()
            if pid == 0:
                _become(json.loads(data), output, errors)
            lines[pid] = socket.socket(fileno=line)
            os.close(output)
            os.close(errors)
            with contextlib.suppress(OSError):  # nobody listens any more
                lines[pid].send(str(pid).encode())
    for pid in lines:
        os.kill(pid, signal.SIGKILL)


def _tell_of_ends(lines: dict[int, socket.socket]) -> None:
    for pid in list(lines):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with lines.pop(pid) as line, contextlib.suppress(OSError):
                line.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(asked: Message, output: int, errors: int) -> NoReturn:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    # the interpreter's own believe that these are what it was started with, such as files
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    os.closerange(3, _MOST_FILES)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    for constant, wait_s in json.loads(os.environ.get(WAITS, "{}")).items():
        place, _dot, name = constant.rpartition(".")
        assert hasattr(import_module(place), name), constant
        setattr(import_module(place), name, wait_s)
    sys.argv[:] = asked["argv"]
    module, name = asked["entry"]
    sys.exit(getattr(import_module(module), name)())


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
