"""The daemon's answers: those that were seen on real hardware are read, everything else is NotUnderstood."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.domain import ServerStatus
from mpsd.mps.rules import control_protocol as protocol
from mpsd.mps.rules.control_protocol import Command, NotUnderstood

TRANSCRIPTS = Path(__file__).parents[1] / "data" / "transcripts"
EVERY_COMMAND: tuple[Command[object], ...] = (
    protocol.server_list(),
    protocol.server_status(526),
    protocol.client_list(526),
    protocol.devices(),
    protocol.start_server(0),
    protocol.quit_daemon(3),
    protocol.terminate_client(526, 686),
    protocol.set_server_memory_limit(526, 0, 7168),
    protocol.server_memory_limit(526, 0),
    protocol.set_default_memory_limit(0, 7168),
    protocol.default_memory_limit(0),
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


def test_the_transcripts_hold_answers_to_read() -> None:
    assert len(answers_to("get_server_list")) > 20


def test_every_recorded_server_list_is_read() -> None:
    for _command, output in answers_to("get_server_list"):
        assert protocol.server_list().answer(output) == tuple(map(int, output.split()))


def test_every_recorded_limit_reads_back_in_mib() -> None:
    amounts = {output for _command, output in answers_to("get_device_pinned_mem_limit")}
    assert {protocol.server_memory_limit(1, 0).answer(output) for output in amounts} == {None, 1024, 3 * 1024}


def test_the_devices_of_a_daemon_are_its_first_table() -> None:
    _command, output = answers_to("device_query")[0]
    assert protocol.devices().answer(output) == ("GPU-d2f95611-1b47-167a-cb53-e944a3a4c6fe",)


@pytest.mark.parametrize(
    ("output", "status"),
    [("ACTIVE", ServerStatus.ACTIVE), ("FAULT", ServerStatus.FAULT), ("Server 526 not found", ServerStatus.GONE)],
)
def test_a_server_is_active_in_fault_or_gone(output: str, status: ServerStatus) -> None:
    assert protocol.server_status(526).answer(output) is status


@pytest.mark.parametrize(
    ("output", "ended"), [("0", True), ("Invalid process 686!\n1", False), ("Server 526 not found!\n1", False)]
)
def test_terminating_says_whether_the_client_was_known(output: str, ended: bool) -> None:
    assert protocol.terminate_client(526, 686).answer(output) is ended


@pytest.mark.parametrize(
    "command", [c for c in EVERY_COMMAND if c.text.startswith(("start_", "set_", "quit"))], ids=lambda c: c.text
)
def test_a_refused_setting_is_not_taken_for_silence(command: Command[object]) -> None:
    with pytest.raises(NotUnderstood, match="Insufficient privileges"):
        command.answer("Insufficient privileges for UID 1000. Control deamon settings can only be modified by the user")


@pytest.mark.parametrize("command", EVERY_COMMAND, ids=lambda command: command.text)
def test_an_unknown_command_of_another_driver_is_not_understood(command: Command[object]) -> None:
    with pytest.raises(NotUnderstood, match="does not know that answer"):
        command.answer(f'Unknown command "{command.text.split()[0]}"')


@given(st.sampled_from(EVERY_COMMAND), st.text())
def test_any_text_is_an_answer_or_not_understood(command: Command[object], output: str) -> None:
    with contextlib.suppress(NotUnderstood):
        command.answer(output)


def test_a_memory_limit_always_carries_its_unit() -> None:
    assert protocol.set_server_memory_limit(5, 1, 7168).text == "set_device_pinned_mem_limit 5 1 7168M"
    assert protocol.set_default_memory_limit(0, 8).text == "set_default_device_pinned_mem_limit 0 8M"


def test_a_server_that_is_gone_has_no_limit_and_takes_none() -> None:
    protocol.set_server_memory_limit(5, 0, 7168).answer("Server 5 not found")
    assert protocol.server_memory_limit(5, 0).answer("Server 5 not found") is None
