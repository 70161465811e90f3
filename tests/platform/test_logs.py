"""What stands in a line of the log, for machines and for people, and that nobody waits for who
reads it."""

import fcntl
import json
import os
import pty
import re
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.platform import logs
from mpsd.platform.logs import Line, LogQueue
from tests.told_lines import told_lines

PIPE_BYTES = 4096
SOON_S = 60.0  # far above what it takes; only a failing test waits so long


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    with told_lines():
        yield


def test_a_json_line_has_the_fields_then_the_event_its_level_and_time(
    capfd: pytest.CaptureFixture[str],
) -> None:
    logs.configure("json", "info")
    logs.logger(role="control").warning(
        "domain ended", domain="gpu0", pid=7, gpus=("a", "b"), seen={1}
    )
    logs.flush()
    said = capfd.readouterr()
    line = json.loads(said.err)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", line.pop("timestamp"))
    fields = {"role": "control", "domain": "gpu0", "pid": 7, "gpus": ["a", "b"], "seen": "{1}"}
    assert line == fields | {"event": "domain ended", "level": "warning"}
    assert (said.out, said.err.count("\n")) == ("", 1)


def test_a_fault_is_told_with_its_traceback_and_as_one_json_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    logs.configure("json", "info")
    try:
        raise ValueError("of this test")
    except ValueError as error:
        logs.logger().error("not ended", exc_info=error)
    logs.flush()
    (line,) = map(json.loads, capfd.readouterr().err.splitlines())
    assert line["level"] == "error"
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("ValueError: of this test")


@given(st.text())
def test_what_a_tenant_names_cannot_end_a_line_or_colour_a_terminal(text: str) -> None:
    line = {"event": "ended", "level": "info", "timestamp": "now", "program": text}
    for shown in (
        logs.as_text(line),
        logs.as_text(line, coloured=True).replace("\x1b[32m", "").replace("\x1b[0m", ""),
    ):
        assert len(shown.splitlines()) == 1
        assert shown.isprintable()


def test_a_silent_program_logs_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    logs.be_silent()
    logs.logger().error("nobody asked")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("number", range(len(logs.LEVELS)))
def test_what_is_below_the_level_is_not_logged(
    number: int, capfd: pytest.CaptureFixture[str]
) -> None:
    logs.configure("json", logs.LEVELS[number])
    log = logs.logger()
    for tell in (log.info, log.warning, log.error):
        tell("told")
    logs.flush()
    told = [json.loads(line)["level"] for line in capfd.readouterr().err.splitlines()]
    assert told == [*logs.LEVELS[number:]]


# -- nobody reads


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Of 4 KiB: its end to read from, and that to write to."""
    ends = os.pipe()
    fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    made.clear()
    yield ends
    with suppress(OSError):
        os.close(ends[0])
    for queue in made:  # else their threads write to whatever has this descriptor next
        queue.flush(SOON_S)
    os.close(ends[1])


made: list[LogQueue] = []  # on the pipe of this test


def log_queue(descriptor: int, render: Callable[[Line], str] = logs.as_json) -> LogQueue:
    made.append(LogQueue(descriptor, render))
    return made[-1]


def stuck(pipe: tuple[int, int]) -> LogQueue:
    """A queue whose thread waits in the middle of a line."""
    reads, writes = pipe
    queue = log_queue(writes)
    queue.add(2 * PIPE_BYTES * b"x" + b"\n")
    eventually(lambda: waiting_bytes(reads) == PIPE_BYTES)
    return queue


def waiting_bytes(reads: int) -> int:
    return int.from_bytes(fcntl.ioctl(reads, termios.FIONREAD, bytes(4)), sys.byteorder)


def eventually(look: Callable[[], object]) -> None:
    ends = time.monotonic() + SOON_S
    while not look():
        assert time.monotonic() < ends
        time.sleep(0.01)


def numbered(number: int) -> Line:
    return {"event": "numbered", "number": number, "text": 80 * "x", "level": "info"}


def read_until(descriptor: int, event: str) -> list[Line]:
    """Every line up to the first of this event."""
    data = b""
    while f'"{event}"'.encode() not in data or not data.endswith(b"\n"):
        data += os.read(descriptor, 65_536)
    return [json.loads(line) for line in data.splitlines() if line.startswith(b"{")]


def test_a_log_that_nobody_reads_drops_its_oldest_lines_and_says_how_many(
    pipe: tuple[int, int],
) -> None:
    queue = stuck(pipe)
    total = 20_000
    for number in range(total):
        queue.take(numbered(number))
    queue.take({"event": "last"})
    dropped = queue.dropped
    assert 0 < dropped < total
    told, *lines, _last = read_until(pipe[0], "last")
    assert (told["event"], told["lines"]) == ("log lines dropped", dropped)
    assert [line["number"] for line in lines] == [*range(dropped, total)]


def test_a_mebibyte_waits_and_no_more(pipe: tuple[int, int]) -> None:
    queue = stuck(pipe)
    for _line in range(1024):
        queue.add(1023 * b"x" + b"\n")
    assert queue.dropped == 0
    queue.add(b"\n")
    assert queue.dropped == 1


def test_lines_that_nobody_can_read_are_dropped_one_by_one(pipe: tuple[int, int]) -> None:
    reads, writes = pipe
    os.close(reads)
    queue = log_queue(writes)
    for number in range(7):
        queue.take(numbered(number))
    queue.flush(SOON_S)
    assert queue.dropped == 7


def test_lines_that_a_full_disk_refuses_are_dropped_until_it_takes_them(tmp_path: Path) -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    queue = LogQueue(descriptor, logs.as_json)
    for number in range(7):
        queue.take(numbered(number))
    queue.flush(SOON_S)
    assert queue.dropped == 7
    with (tmp_path / "log").open("w") as file:
        os.dup2(file.fileno(), descriptor)
    queue.take(numbered(7))
    queue.take(numbered(8))
    queue.flush(SOON_S)
    first, told, second = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert (first["number"], told["lines"], second["number"]) == (7, 7, 8)
    os.close(descriptor)


def test_a_line_of_which_a_part_was_written_does_not_run_into_the_next(
    pipe: tuple[int, int], tmp_path: Path
) -> None:
    queue = stuck(pipe)
    os.close(pipe[0])
    queue.flush(SOON_S)
    with (tmp_path / "log").open("w") as file:
        os.dup2(file.fileno(), pipe[1])
    queue.take(numbered(1))
    queue.flush(SOON_S)
    rest, line, told = (tmp_path / "log").read_text().splitlines()
    assert (rest, json.loads(line)["number"], json.loads(told)["lines"]) == ("", 1, 1)


def test_nothing_is_lost_where_another_process_made_the_pipe_nonblocking(
    pipe: tuple[int, int],
) -> None:
    reads, writes = pipe
    os.set_blocking(writes, False)
    queue = log_queue(writes)
    for number in range(500):
        queue.take(numbered(number))
    queue.take({"event": "last"})
    *lines, _last = read_until(reads, "last")
    assert [line["number"] for line in lines] == [*range(500)]
    assert queue.dropped == 0


def test_a_paused_terminal_gets_its_lines_once_it_goes_on() -> None:
    near, far = pty.openpty()
    tty.setraw(far)
    termios.tcflow(far, termios.TCOOFF)
    queue = LogQueue(far, logs.as_json)
    for number in range(500):
        queue.take(numbered(number))
    termios.tcflow(far, termios.TCOON)
    queue.take({"event": "last"})
    *lines, _last = read_until(near, "last")
    assert [line["number"] for line in lines] == [*range(500)]
    os.close(near)
    os.close(far)


def test_what_cannot_be_rendered_is_dropped_and_raises_nothing(pipe: tuple[int, int]) -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("of this test")

    queue = log_queue(pipe[1])
    queue.take({"event": "ended", "level": "info", "by": Broken()})
    assert queue.dropped == 1


@pytest.mark.parametrize("render", [logs.as_json, logs.as_text])
def test_a_long_line_keeps_the_ends_of_its_fields(
    render: Callable[[Line], str], pipe: tuple[int, int]
) -> None:
    queue = log_queue(pipe[1], render)
    long = "begins " + 20_000 * "x" + " ends"
    queue.take({"event": "ended", "level": "info", "timestamp": "now", "exception": long})
    queue.flush(SOON_S)
    written = os.read(pipe[0], PIPE_BYTES).decode()
    assert "begins" in written
    assert "ends" in written
    assert "ended" in written


# -- a whole process


def python(code: str, stderr: int) -> subprocess.CompletedProcess[str]:
    begins = "from mpsd.platform import logs; logs.configure('json', 'info')"
    command = [sys.executable, "-c", f"{begins}\n{code}"]
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=SOON_S, check=False
    )


MUCH = "text = 200 * f'{80 * \"x\"}\\n'\n"
WRITES = {
    "print": "import sys; print(text, file=sys.stderr)",
    "complaint": "from mpsd.platform.console import complaints; complaints().print(text)",
    "warning": "import warnings; warnings.warn(text)",
    "library": "import logging; logging.getLogger('asyncio').error(text)",
    "thread": "import threading; t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()",
}


@pytest.mark.parametrize("how", WRITES)
def test_no_write_to_standard_error_waits_for_a_reader(how: str, pipe: tuple[int, int]) -> None:
    fill(pipe[1])
    done = python(f"{MUCH}{WRITES[how]}\nprint('went on')", pipe[1])
    assert (done.stdout, done.returncode) == ("went on\n", 0)


def fill(writes: int) -> None:
    os.set_blocking(writes, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writes, b"x")
    os.set_blocking(writes, True)


@pytest.mark.parametrize("ends", ["raise SystemExit(3)", "1 / 0"])
def test_a_process_ends_though_nobody_reads_its_log(ends: str, pipe: tuple[int, int]) -> None:
    fill(pipe[1])
    code = f"for _ in range(30_000): logs.logger().info('numbered')\n{ends}"
    assert python(code, pipe[1]).returncode in {3, 1}


def test_the_last_words_of_a_process_are_written() -> None:
    code = "for n in range(3000): logs.logger().info('numbered', number=n)\nprint(1 / 0)"
    done = python(code, subprocess.PIPE)
    lines = done.stderr.splitlines()
    assert [json.loads(line)["number"] for line in lines[:3000]] == [*range(3000)]
    assert lines[3000].startswith("Traceback")
    assert lines[-1].startswith("ZeroDivisionError")
