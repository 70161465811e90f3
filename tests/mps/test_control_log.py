"""What the daemon's log means: a fault and a start are seen, the chatter of every command is not forwarded."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.mps.rules.control_protocol import LogEvent, LogLine, read_line

TRANSCRIPTS = Path(__file__).parents[1] / "data" / "transcripts"
LINES = [
    line for file in sorted(TRANSCRIPTS.iterdir()) for line in file.read_text().splitlines() if line.startswith("[2026")
]


@pytest.mark.parametrize(
    ("event", "pid", "line"),
    [
        (LogEvent.SERVER_STARTING, 523, "[2026-11-21 01:24:02.856 Control   523] Starting new server 523 for user 0"),
        (LogEvent.SERVER_READY, 523, "[2026-11-21 01:24:03.124 Control   429] NEW SERVER 523: Ready"),
        (LogEvent.SERVER_EXITED, 523, "[2026-11-21 01:24:07.041 Control   429] Server 523 exited with status 0"),
        (LogEvent.FAULT, None, "[2026-11-21 01:52:04.061 Server   999] Server is handling a fatal GPU error."),
        (
            LogEvent.CLIENT_TORN_DOWN,
            997,
            "[2026-11-21 01:52:04.062 Server   999] Client {PID: 997, Context ID: 1} on device 0 to be torn down",
        ),
        (LogEvent.PID, 997, "[2026-11-21 01:52:04.062 Server   999] 997"),
        (
            LogEvent.CLIENT_CONNECTED,
            996,
            "[2026-11-21 01:52:00.619 Server   999] Client {PID: 996, Context ID: 0} connected",
        ),
        (LogEvent.CLIENT_GONE, 996, "[2026-11-21 01:52:04.108 Server   999] Client process 996 disconnected"),
        (
            LogEvent.CLIENT_REFUSED,
            1024,
            "[2026-11-21 01:52:05.140 Server   999] Failed to accept client {PID: 1024, Context ID: 0} with status 807",
        ),
    ],
)
def test_what_changes_something_is_an_event(event: LogEvent, pid: int | None, line: str) -> None:
    assert line in LINES
    read = read_line(line)
    assert read is not None
    assert (read.event, read.pid) == (event, pid)


def test_an_answer_to_a_command_is_no_pid_of_a_client() -> None:
    assert read_line("[2026-11-21 01:52:05.077 Control   994] 999") is None


def test_an_innocent_process_is_not_named_a_culprit() -> None:
    read = read_line(
        "[2026-11-21 01:52:04.061 Server   999] Client {PID: 996, Context: 1} encountered a fatal GPU error."
    )
    assert read is None or read.event is LogEvent.OTHER


def test_less_than_a_fifth_of_what_the_daemon_writes_is_forwarded() -> None:
    forwarded = [line for line in LINES if (read := read_line(line)) and read.event.is_forwarded]
    assert len(LINES) > 300
    assert len(forwarded) < len(LINES) / 5


def test_no_line_about_a_command_is_forwarded() -> None:
    assert [line for line in LINES if "Cmd:" in line and read_line(line)] == []


@given(st.text())
def test_any_line_is_read(line: str) -> None:
    read = read_line(line)
    assert read is None or isinstance(read, LogLine)


def test_a_pid_of_thousands_of_digits_is_none() -> None:
    assert read_line(f"[2026-01-01 00:00:00.000 Control {'9' * 5000}] x") is None
    assert read_line(f"NEW SERVER {'9' * 5000}: Ready") is None
