"""What a control command answered, and a CUDA client that is talked to while it runs.

Nothing here waits without a deadline.
"""

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.contract.gpus import OutOfMemory, Seen, near
from tests.contract.results import OUT_OF_MEMORY, SUCCESS

SOON_S = 10.0  # far above anything seen on hardware; only a failing test takes it

Line = Mapping[str, Any]


def eventually(
    question: Callable[[], object], within_s: float = SOON_S, every_s: float = 0.01
) -> float:
    """Asks until the answer is true; seconds that took. Fails at the deadline."""
    started = time.monotonic()
    while not question():
        waited = time.monotonic() - started
        assert waited < within_s, f"not true within {within_s} s"
        time.sleep(every_s)
    return time.monotonic() - started


@dataclass(frozen=True, slots=True)
class Answer:
    command: str
    exit_code: int | None  # None: there was no answer by the deadline
    stdout: str
    stderr: str

    @property
    def answered(self) -> bool:
        return self.exit_code is not None

    @property
    def text(self) -> str:
        assert self.exit_code == 0, f"{self.command!r} was not answered: {self}"
        return self.stdout.strip()

    @property
    def pids(self) -> list[int]:
        return [int(line) for line in self.text.splitlines()]


class Client:
    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], errors: Path) -> None:
        self._errors = errors
        self._heard: list[Line] = []
        self._next = 0
        self._changed = threading.Condition()
        self._ended = False
        with errors.open("wb") as stderr:
            self._process = subprocess.Popen(
                argv,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        self.pid = self._process.pid
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __str__(self) -> str:
        errors = self._errors.read_text(errors="replace")
        return (
            f"client {self.pid}, exit code {self._process.poll()}, said {self._heard}, standard"
            f" error {errors!r}"
        )

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            with self._changed:
                self._heard.append(json.loads(text))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def lines(self) -> tuple[Line, ...]:
        with self._changed:
            return tuple(self._heard)

    def next_line(self, key: str, within_s: float = SOON_S) -> Line:
        """The next line that has this key; every line is handed out once."""
        deadline = time.monotonic() + within_s
        with self._changed:
            while True:
                while self._next < len(self._heard):
                    line = self._heard[self._next]
                    self._next += 1
                    if key in line:
                        return line
                left = deadline - time.monotonic()
                assert left > 0, f"no {key!r} within {within_s} s: {self}"
                assert not self._ended, f"ended without {key!r}: {self}"
                self._changed.wait(left)

    def line(self, key: str) -> Line:
        found = next((line for line in self.lines if key in line), None)
        assert found is not None, f"no {key!r} yet: {self}"
        return found

    def has(self, key: str) -> bool:
        return any(key in line for line in self.lines)

    def ends_within(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def is_silent_for(self, seconds: float) -> bool:
        with self._changed:
            heard = len(self._heard)
            return not self._changed.wait_for(
                lambda: len(self._heard) > heard or self._ended, seconds
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def launches(self) -> None:
        """A client that is in `step`, before a launch."""
        self.go_on()
        assert self.next_line("n")["n"] > 0

    def end_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def exit_code(self, within_s: float = SOON_S) -> int:
        """Once all it said was heard."""
        try:
            code = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {within_s} s: {self}") from None
        self._listener.join(within_s)
        return code

    def finished(self, within_s: float = SOON_S) -> "Client":
        self.exit_code(within_s)
        return self

    def close(self) -> None:
        self.kill()
        self._process.wait()
        self._listener.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def saw(self, expected: Seen | OutOfMemory) -> bool:
        first = self.lines[0] if self.lines else {}
        match expected:
            case OutOfMemory():
                assert (first.get("fail"), first.get("err")) == ("ctx", OUT_OF_MEMORY), str(self)
                assert self.exit_code() == 3, str(self)
            case Seen(free_mib, sms):
                shown = (first.get("meminfo_free_MiB"), first.get("sms"))
                assert shown == (near(free_mib), sms), f"expected {expected}: {self}"
        return True

    @property
    def result(self) -> str:
        """Of its first allocation."""
        return self.line("rc")["rc"]

    def ended_well(self) -> bool:
        assert self.finished().line("end")["end"] == SUCCESS, str(self)
        return True

    def broke(self, error: str) -> bool:
        assert self.exit_code() == 4, f"expected {error}: {self}"
        assert self.line("broke")["broke"] == error, str(self)
        return True
