"""Commands to a control daemon, with programs in its place that answer wrongly, late or not at all."""

import asyncio
import os
from pathlib import Path

import pytest

from mpsd.model.node_view import ServerLimit
from mpsd.mps.control_daemon import (
    PROGRAM,
    ControlFailed,
    ControlPipe,
    DaemonSilent,
    NoDaemon,
    SettingRefused,
    clean_environment,
)
from mpsd.mps.rules import control_protocol
from mpsd.mps.rules.control_protocol import NotUnderstood


def pipe_to(folder: Path, script: str, deadline_s: float = 10) -> ControlPipe:
    """A way to a daemon whose command program is this shell script."""
    program = folder / PROGRAM
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return ControlPipe(folder, {"PATH": f"{folder}:{os.environ['PATH']}"}, deadline_s)


def test_a_command_goes_to_the_daemon_of_its_directory(tmp_path: Path) -> None:
    asked = f'[ "$CUDA_MPS_PIPE_DIRECTORY" = {tmp_path} ] && read command && [ "$command" = get_server_list ] && echo 7'
    assert asyncio.run(pipe_to(tmp_path, asked).ask(control_protocol.server_list())) == (7,)


def test_a_command_without_an_answer_ends_at_its_deadline_and_leaves_no_process(tmp_path: Path) -> None:
    pipe = pipe_to(tmp_path, f"echo $$ >{tmp_path}/pid; exec sleep 600", deadline_s=0.5)
    with pytest.raises(DaemonSilent, match=r'no answer to "get_server_list" within 0\.5 s'):
        asyncio.run(pipe.ask(control_protocol.server_list()))
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()


def test_a_directory_without_a_daemon_is_told_from_a_failure(tmp_path: Path) -> None:
    none = pipe_to(tmp_path, "echo Cannot find MPS control daemon process >&2; exit 1")
    with pytest.raises(NoDaemon):
        asyncio.run(none.ask(control_protocol.server_list()))
    broken = pipe_to(tmp_path, "echo out of luck >&2; exit 3")
    with pytest.raises(ControlFailed, match='"get_server_list" ended with code 3: out of luck'):
        asyncio.run(broken.ask(control_protocol.server_list()))


def test_an_answer_of_another_form_is_shown_with_its_command(tmp_path: Path) -> None:
    with pytest.raises(NotUnderstood, match='answered "hello" to "get_server_list"'):
        asyncio.run(pipe_to(tmp_path, "echo hello").ask(control_protocol.server_list()))


@pytest.mark.parametrize(("read_back", "shown"), [("", "none"), ("4G", "4096 MiB")])
def test_a_limit_that_reads_back_as_another_is_an_error(tmp_path: Path, read_back: str, shown: str) -> None:
    pipe = pipe_to(tmp_path, f'read command; case "$command" in get_*) echo {read_back};; esac')
    with pytest.raises(SettingRefused, match=f"was set to 2048 MiB and reads back as {shown}"):
        asyncio.run(pipe.set_limit(ServerLimit(None, 0, 2048)))


def test_what_mps_would_take_as_a_setting_does_not_reach_its_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "7")
    cleaned = clean_environment({"CUDA_MPS_LOG_DIRECTORY": "/log"})
    assert [name for name in cleaned if name.startswith(("CUDA_", "NVIDIA_"))] == ["CUDA_MPS_LOG_DIRECTORY"]
