"""A control daemon: its answers and its log, commands to it, its sockets.

Answers that were seen on real hardware are read; everything else is NotUnderstood.
"""

import asyncio
import contextlib
import os
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.domain import ServerStatus
from mpsd.model.metrics import COMMAND_BOUNDS_S, CommandTimes
from mpsd.model.node_view import ServerLimit
from mpsd.mps import control_daemon
from mpsd.mps.control_daemon import PROGRAM, ControlPipe, DaemonSilent, command_times
from mpsd.mps.rules import control_protocol as protocol
from mpsd.mps.rules.control_protocol import (
    Command,
    ControlFailed,
    LogEvent,
    LogLine,
    NotUnderstood,
    read_line,
)
from mpsd.platform import processes, records
from mpsd.platform.run_directory import DomainFolder
from mpsd.platform.settings import Settings, settings
from mpsd.simulator.machine import clean_environment

TRANSCRIPTS = Path(__file__).parents[1] / "data" / "transcripts"
EVERY_COMMAND: tuple[Command[object], ...] = (
    protocol.server_list(),
    protocol.server_status(526),
    protocol.client_list(526),
    protocol.start_server(0),
    protocol.quit_daemon(3),
    protocol.set_memory_limit(526, 0, 7168),
    protocol.memory_limit(526, 0),
    protocol.set_memory_limit(None, 0, 7168),
    protocol.memory_limit(None, 0),
)


def recorded(name: str) -> list[tuple[str, str]]:
    """Every `> command` of a transcript with the output under it."""
    found: list[tuple[str, list[str]]] = []
    open_answer = False
    for line in (TRANSCRIPTS / name).read_text().splitlines():
        if line.startswith("> "):
            found.append((line[2:], []))
            open_answer = True
        elif open_answer:
            found[-1][1].append(line.removesuffix("[rc=0]").rstrip())
            open_answer = not line.endswith("[rc=0]")
    return [(command, "\n".join(lines).strip()) for command, lines in found]


ANSWERS = [pair for file in sorted(TRANSCRIPTS.iterdir()) for pair in recorded(file.name)]


def answers_to(word: str) -> list[tuple[str, str]]:
    return [
        (command, output)
        for command, output in ANSWERS
        if command.split()[0] == word and "TIMEOUT" not in output and "stderr" not in output
    ]


def test_every_recorded_server_list_is_read() -> None:
    lists = answers_to("get_server_list")
    assert len(lists) > 20
    for _command, output in lists:
        assert protocol.server_list().answer(output) == tuple(map(int, output.split()))


def test_every_recorded_limit_reads_back_in_mib() -> None:
    amounts = {output for _command, output in answers_to("get_device_pinned_mem_limit")}
    assert {protocol.memory_limit(1, 0).answer(output) for output in amounts} == {
        None,
        1024,
        3 * 1024,
    }


@pytest.mark.parametrize(
    ("output", "status"),
    [
        ("ACTIVE", ServerStatus.ACTIVE),
        ("FAULT", ServerStatus.FAULT),
        ("Server 526 not found", ServerStatus.GONE),
    ],
)
def test_a_server_is_active_in_fault_or_gone(output: str, status: ServerStatus) -> None:
    assert protocol.server_status(526).answer(output) is status


@pytest.mark.parametrize(
    "command",
    [c for c in EVERY_COMMAND if c.text.startswith(("start_", "set_", "quit"))],
    ids=lambda c: c.text,
)
def test_a_refused_setting_is_not_taken_for_silence(command: Command[object]) -> None:
    with pytest.raises(NotUnderstood, match="Insufficient privileges"):
        command.answer(
            "Insufficient privileges for UID 1000. Control deamon settings can only be modified by"
            " the user"
        )


@pytest.mark.parametrize("command", EVERY_COMMAND, ids=lambda command: command.text)
def test_an_unknown_command_of_another_driver_is_not_understood(command: Command[object]) -> None:
    with pytest.raises(NotUnderstood, match="does not know"):
        command.answer(f'Unknown command "{command.text.split()[0]}"')


@given(st.sampled_from(EVERY_COMMAND), st.text())
def test_any_text_is_an_answer_or_not_understood(command: Command[object], output: str) -> None:
    with contextlib.suppress(NotUnderstood):
        command.answer(output)


def test_a_memory_limit_always_carries_its_unit() -> None:
    assert protocol.set_memory_limit(5, 1, 7168).text == "set_device_pinned_mem_limit 5 1 7168M"
    assert protocol.set_memory_limit(None, 0, 8).text == "set_default_device_pinned_mem_limit 0 8M"


def test_a_server_that_is_gone_has_no_limit_and_takes_none() -> None:
    protocol.set_memory_limit(5, 0, 7168).answer("Server 5 not found")
    assert protocol.memory_limit(5, 0).answer("Server 5 not found") is None


# What `mpsd control` has written of its questions to the daemons.

TIMES = CommandTimes(processes.boot_id())


@pytest.fixture
def chosen() -> Iterator[Settings]:
    # short: a socket's path ends at 107 characters
    with tempfile.TemporaryDirectory(prefix="mpsd-") as folder:
        yield settings(run_directory=folder)


def test_what_is_of_this_boot_is_read_and_nothing_else(chosen: Settings) -> None:
    of_now = replace(TIMES, answered=TIMES.answered.with_one(0.007, COMMAND_BOUNDS_S), unanswered=2)
    for name, written in {
        "gpu0": of_now,
        "gpu1": replace(of_now, boot_id="another"),
        "gpu2": "no times",
    }.items():
        chosen.domain(name).make()
        records.write(chosen.domain(name).commands, written)
    assert command_times(chosen, ["gpu0", "gpu1", "gpu2", "gpu3"]) == {"gpu0": of_now}


# What the daemon's log means: a fault and a start are seen, the chatter of every command is not
# forwarded.

LINES = [
    line
    for file in sorted(TRANSCRIPTS.iterdir())
    for line in file.read_text().splitlines()
    if line.startswith("[2026")
]


@pytest.mark.parametrize(
    ("event", "pid", "text"),
    [
        (LogEvent.SERVER_STARTING, 523, "Starting new server 523 for user 0"),
        (LogEvent.SERVER_READY, 523, "NEW SERVER 523: Ready"),
        (LogEvent.SERVER_EXITED, 523, "Server 523 exited with status 0"),
        (LogEvent.FAULT, None, "Server is handling a fatal GPU error."),
        (
            LogEvent.CLIENT_TORN_DOWN,
            997,
            "Client {PID: 997, Context ID: 1} on device 0 to be torn down",
        ),
        (LogEvent.CLIENT_CONNECTED, 996, "Client {PID: 996, Context ID: 0} connected"),
        (LogEvent.CLIENT_GONE, 996, "Client process 996 disconnected"),
        (
            LogEvent.CLIENT_REFUSED,
            1024,
            "Failed to accept client {PID: 1024, Context ID: 0} with status 807",
        ),
    ],
)
def test_what_calls_for_a_question_is_an_event(event: LogEvent, pid: int | None, text: str) -> None:
    read = read_line(next(line for line in LINES if line.endswith(text)))
    assert read is not None
    assert (read.event, read.pid) == (event, pid)


def test_an_event_in_the_middle_of_a_line_is_none() -> None:
    fault = "Server is handling a fatal GPU error"
    read = read_line(f"[2026-11-21 01:52:04.061 Server   999] it says {fault}")
    assert read is not None
    assert read.event is LogEvent.OTHER


def test_less_than_a_fifth_of_what_the_daemon_writes_is_forwarded() -> None:
    forwarded = [line for line in LINES if (read := read_line(line)) and read.event.is_forwarded]
    assert len(LINES) > 300
    assert len(forwarded) < len(LINES) / 5
    assert [line for line in LINES if "Cmd:" in line and read_line(line)] == []


@given(st.text())
def test_any_line_is_read(line: str) -> None:
    read = read_line(line)
    assert read is None or isinstance(read, LogLine)


FORGED = [
    "Server is handling a fatal GPU error",
    "Client {PID: 996, Context ID: 1} on device 0 to be torn down",
    "[2026-11-21 01:52:04.061 Server   999] Server is handling a fatal GPU error.",
    "NEW SERVER 523: Ready",
    "Server 523 exited with status 1",
]


@pytest.mark.parametrize("words", FORGED)
@pytest.mark.parametrize("behind", ["Cmd:", 'Unknown command "', ""])
def test_nothing_that_a_tenant_sends_in_one_line_is_an_event_of_the_server(
    behind: str, words: str
) -> None:
    """The daemon's own answers come from Control too: whatever they hold, none of it is the
    server's."""
    read = read_line(f"[2026-11-21 01:52:05.077 Control   994] {behind}{words}")
    assert read is None or read.event in {
        LogEvent.OTHER,
        LogEvent.SERVER_READY,
        LogEvent.SERVER_EXITED,
    }
    assert read is None or not behind


@pytest.mark.parametrize("words", FORGED)
def test_a_line_that_the_daemon_did_not_begin_says_nothing(words: str) -> None:
    assert read_line(words.partition("] ")[2] or words) is None
    assert read_line(f"behind [2026-11-21 01:52:05.077 Server   999] {words}") is None


def test_a_pid_of_thousands_of_digits_is_none() -> None:
    assert read_line(f"[2026-01-01 00:00:00.000 Control {'9' * 5000}] x") is None
    assert read_line(f"NEW SERVER {'9' * 5000}: Ready") is None


# Commands to a control daemon, with programs in its place that answer wrongly, late or not at all.


def pipe_to(folder: Path, script: str, deadline_s: float = 10) -> ControlPipe:
    """A way to a daemon whose command program is this shell script."""
    program = folder / PROGRAM
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return ControlPipe(folder, {"PATH": f"{folder}:{os.environ['PATH']}"}, deadline_s)


def test_a_command_goes_to_the_daemon_of_its_directory(tmp_path: Path) -> None:
    asked = (
        f'[ "$CUDA_MPS_PIPE_DIRECTORY" = {tmp_path} ] && read command && [ "$command" ='
        " get_server_list ] && echo 7"
    )
    assert asyncio.run(pipe_to(tmp_path, asked).ask(protocol.server_list())) == (7,)


def test_a_command_without_an_answer_ends_at_its_deadline_and_leaves_no_process(
    tmp_path: Path,
) -> None:
    pipe = pipe_to(tmp_path, f"echo $$ >{tmp_path}/pid; exec sleep 600", deadline_s=0.5)
    with pytest.raises(DaemonSilent, match=r'no answer to "get_server_list" within 0\.5 s'):
        asyncio.run(pipe.ask(protocol.server_list()))
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()


def test_a_directory_without_a_daemon_is_told_from_a_failure(tmp_path: Path) -> None:
    none = pipe_to(tmp_path, "echo Cannot find MPS control daemon process >&2; exit 1")
    with pytest.raises(ControlFailed, match="no control daemon listens here"):
        asyncio.run(none.ask(protocol.server_list()))
    broken = pipe_to(tmp_path, "echo out of luck >&2; exit 3")
    with pytest.raises(ControlFailed, match='"get_server_list" ended with code 3: out of luck'):
        asyncio.run(broken.ask(protocol.server_list()))


def test_an_answer_of_another_form_is_shown_with_its_command(tmp_path: Path) -> None:
    with pytest.raises(NotUnderstood, match='answered "hello" to "get_server_list"'):
        asyncio.run(pipe_to(tmp_path, "echo hello").ask(protocol.server_list()))


@pytest.mark.parametrize(("read_back", "shown"), [("", "none"), ("4G", "4096 MiB")])
def test_a_limit_that_reads_back_as_another_is_an_error(
    tmp_path: Path, read_back: str, shown: str
) -> None:
    pipe = pipe_to(tmp_path, f'read command; case "$command" in get_*) echo {read_back};; esac')
    with pytest.raises(ControlFailed, match=f"was set to 2048 MiB and reads back as {shown}"):
        asyncio.run(pipe.set_limit(ServerLimit(None, 0, 2048)))


def test_what_mps_would_take_as_a_setting_does_not_reach_its_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
    ):
        monkeypatch.setenv(name, "7")
    cleaned = clean_environment({"CUDA_MPS_LOG_DIRECTORY": "/log"})
    assert [name for name in cleaned if name.startswith(("CUDA_", "NVIDIA_"))] == [
        "CUDA_MPS_LOG_DIRECTORY"
    ]


# The files around a control daemon: who listens, and what clients may reach.


@pytest.fixture
def folder(tmp_path: Path) -> DomainFolder:
    made = DomainFolder(tmp_path / "gpu0")
    made.make()
    return made


def listen(folder: DomainFolder, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, kind)
    (folder.pipe / "control").unlink(missing_ok=True)
    listening.bind(str(folder.pipe / "control"))
    listening.listen()
    return listening


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_the_listener_is_known_whatever_kind_of_socket_it_has(
    folder: DomainFolder, kind: socket.SocketKind
) -> None:
    with listen(folder, kind):
        assert control_daemon.listener(folder) == processes.identity_of(os.getpid())


def test_a_socket_that_a_killed_daemon_left_has_no_listener(folder: DomainFolder) -> None:
    assert control_daemon.listener(folder) is None
    listen(folder).close()
    assert control_daemon.listener(folder) is None


def test_only_mpsd_may_enter_the_pipe_directory_and_everyone_the_clients(
    folder: DomainFolder,
) -> None:
    modes = {
        path.name: path.stat().st_mode & 0o777 for path in (folder.path, folder.pipe, folder.client)
    }
    assert modes == {"gpu0": 0o755, "pipe": 0o700, "client": 0o755}


def test_clients_get_the_socket_of_the_newest_daemon_and_nothing_else(folder: DomainFolder) -> None:
    directory = folder.client.stat().st_ino
    for _ in range(2):  # the second time the link is there already, as after an adoption
        with listen(folder):
            control_daemon.offer_to_clients(folder)
            control_daemon.offer_to_clients(folder)
            (offered,) = folder.client.iterdir()
            assert offered.samefile(folder.pipe / "control")
    assert folder.client.stat().st_ino == directory  # containers have it mounted
    control_daemon.withdraw_from_clients(folder)
    control_daemon.withdraw_from_clients(folder)
    assert list(folder.client.iterdir()) == []
