"""A program that says one JSON object a line, and may be told to go on.

Whoever waits for it has a deadline, and its end takes every child of it along.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

_END_S = 20.0


def wait_until(
    condition: Callable[[], object], deadline_s: float, what: str, look_again_s: float = 0.002
) -> None:
    """As `mpsd.platform.event_loop.until`, where there is no event loop."""
    ends_at = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() >= ends_at:
            raise TimeoutError(f"waited {deadline_s:g} s until {what}")
        time.sleep(look_again_s)


class JsonProgram:
    """Started at once, in a session of its own. It must end by itself when its standard input does,
    or be ended."""

    def __init__(
        self, argv: Sequence[str], environment: Mapping[str, str], errors: Path | None = None
    ) -> None:
        """errors: a file for its standard error; None where `complaint` is to have it, and little
        of it comes."""
        self.argv = tuple(argv)
        with contextlib.ExitStack() as files:
            where: int | IO[bytes] = (
                files.enter_context(errors.open("ab")) if errors else subprocess.PIPE
            )
            self._process = subprocess.Popen(
                argv,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=where,
                # so that Ctrl-C in the terminal reaches it by way of end() alone
                start_new_session=True,
            )
        self._unread = b""
        self._is_over = False  # end() was called: its pid may be somebody else's by now

    @property
    def pid(self) -> int:
        return self._process.pid

    def line(self, deadline_s: float = _END_S) -> dict[str, Any]:
        """Its next line; TimeoutError when none comes, EOFError when it has ended without one."""
        assert self._process.stdout is not None  # it was started with a pipe
        descriptor = self._process.stdout.fileno()
        until = time.monotonic() + deadline_s
        while b"\n" not in self._unread:
            if not select.select([descriptor], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError(f"program {self.pid} said nothing for {deadline_s:g} s")
            added = os.read(descriptor, 65536)
            if not added:
                raise EOFError(self.complaint())
            self._unread += added
        text, _newline, self._unread = self._unread.partition(b"\n")
        found: dict[str, Any] = json.loads(text)
        return found

    def line_with(self, key: str, deadline_s: float = _END_S) -> dict[str, Any]:
        """Its next line that has this key; those before are passed over. TimeoutError, EOFError."""
        until = time.monotonic() + deadline_s
        while key not in (found := self.line(max(0.001, until - time.monotonic()))):
            pass
        return found

    def go_on(self) -> None:
        """Writes the line that it waits for; nothing where it has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()

    def complaint(self) -> str:
        """What it, or mpsd for it, wrote to standard error; waits for its end."""
        _output, errors = self._process.communicate(timeout=_END_S)
        return (errors or b"").decode(errors="replace").strip()

    def exit_code(self, deadline_s: float = _END_S) -> int:
        """Negative for a signal. subprocess.TimeoutExpired."""
        return self._process.wait(deadline_s)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """Ends it with every child of it, and closes its pipes; nothing the second time."""
        if self._is_over:
            return
        self._is_over = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate(timeout=_END_S)
