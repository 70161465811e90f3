"""What nvidia-cuda-mps-control answers, against the first three transcripts."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from mpsd.simulator.mps.control_daemon import BANNER, HELP
from tests.simulator.comparing import Replay
from tests.simulator.machine import Daemon, Machine, wait_until
from tests.simulator.transcripts import commands, dashed_commands, transcript

FIRST = transcript(1, []).text


def run(machine: Machine, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(machine.folder / "bin" / "nvidia-cuda-mps-control"), *arguments],
        env=machine.environment(extra=environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=10,
    )


def test_the_help_is_the_real_one(machine: Machine) -> None:
    assert HELP in FIRST
    assert BANNER in FIRST
    assert run(machine, "-h").stdout == HELP
    assert run(machine, "--help").returncode == 0


def test_an_unknown_option_prints_the_help_and_what_the_real_one_says(machine: Machine) -> None:
    done = run(machine, "-d", "-p", "3")
    first_lines = "\n".join(done.stdout.splitlines()[:3])
    assert first_lines in transcript(5, []).text
    assert done.returncode == 1


def test_without_a_daemon_every_command_fails_on_standard_error(machine: Machine) -> None:
    answer = machine.ask("get_server_list")
    assert (answer.output, answer.error, answer.exit) == (
        "",
        "Cannot find MPS control daemon process",
        1,
    )


def test_every_command_of_the_first_transcript_is_answered_as_it_was(machine: Machine) -> None:
    here = transcript(1, machine.uuids).text
    run(machine, "-d", CUDA_MPS_LOG_DIRECTORY=str(machine.folder))
    replay = Replay(machine)
    for command in dashed_commands(here):
        if command.line == "get_server_list" and command.error:
            wait_until(lambda: machine.ask("get_server_list").exit == 1, "the daemon is gone")
        replay.play(command)
    assert "Exit with status 0" in (machine.folder / "control.log").read_text()
    assert "Server has started" in (machine.folder / "server.log").read_text()


def test_a_listing_with_two_clients_has_the_real_one_s_columns(
    machine: Machine, daemon: Daemon
) -> None:
    clients = [machine.start_client("hold") for _ in range(2)]
    for client in clients:
        client.heard("ready")
    section = transcript(2, machine.uuids).section("P3")
    expected = {command.line: command.output for command in commands(section)}
    for line, output in expected.items():
        seen = machine.ask(line.replace("526", str(machine.server()))).output
        assert masked(seen, machine) == masked(output, machine), line
    assert {str(client.pid) for client in clients} == set(
        machine.ask(f"get_client_list {machine.server()}").output.split()
    )


def masked(text: str, machine: Machine) -> list[str]:
    """The lines with pids, ids and the program's name made equal, widths kept as far as columns
    go."""
    known = {
        "526": "S",
        "687": "P",
        "686": "P",
        "30": "I",
        "31": "I",
        "1": "I",
        "2": "I",
        "/usr/bin/python3": "C",
    }
    known |= {str(machine.server()): "S", os.path.realpath("/proc/self/exe"): "C"}
    known |= {str(pid): "P" for pid in machine.mps_pids()}
    known |= {str(Path("/proc/self/ns/pid").stat().st_ino): "N", "4026531836": "N"}
    lines = []
    for line in text.splitlines():
        words = [known.get(word, word) for word in line.replace(".1", " .1").split()]
        lines.append(
            " ".join(
                "C" if word.endswith("python") or "/python3" in word else word for word in words
            )
        )
    return lines


def test_the_columns_of_ps_begin_where_the_real_ones_do(machine: Machine, daemon: Daemon) -> None:
    machine.start_client("hold").heard("ready")
    header, row = machine.ask("ps").output.splitlines()
    theirs = next(
        asked
        for asked in commands(transcript(2, machine.uuids).section("P3"))
        if asked.line == "ps"
    )
    their_header, their_row, _ = theirs.output.splitlines()
    assert header.rstrip() == their_header.rstrip()
    for column in ("ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"):
        at = their_header.index(f" {column}") + 1
        assert row[at - 1] == " "
        assert row[at] != " ", column
        assert their_row[at] != " "


def test_a_daemon_makes_the_files_that_the_real_one_makes(machine: Machine, daemon: Daemon) -> None:
    listing = FIRST.partition("/run/mps/pipe:")[2].splitlines()[4:9]
    expected = {line.split()[-1]: line.split()[0] for line in listing}
    assert {
        path.name: stat.filemode(path.lstat().st_mode) for path in machine.pipe.iterdir()
    } == expected
    assert (machine.pipe / "nvidia-cuda-mps-control.pid").read_text() == str(daemon.process.pid)


def test_a_second_daemon_in_one_directory_is_refused(machine: Machine, daemon: Daemon) -> None:
    done = run(machine, "-f")
    assert done.returncode == 1
    assert done.stderr.strip() in FIRST


def test_two_daemons_serve_two_directories(pair: Machine, flags: tuple[str, ...]) -> None:
    for gpu in pair.node.gpus:
        pair.start_daemon(
            *flags, pipe=f"g{gpu.ordinal}", environment={"CUDA_VISIBLE_DEVICES": gpu.uuid}
        )
    for gpu in pair.node.gpus:
        client = pair.run_client(pipe=pair.folder / f"g{gpu.ordinal}")
        assert (client.lines[0]["uuid"], client.lines[0]["devices"]) == (gpu.uuid, 1)


def test_a_killed_daemon_s_files_are_no_hindrance_to_the_next(
    machine: Machine, flags: tuple[str, ...]
) -> None:
    machine.start_daemon(*flags).end()
    assert len(list(machine.pipe.iterdir())) == 5
    assert machine.ask("get_server_list").exit == 1
    machine.start_daemon(*flags)
    assert machine.run_client().process.returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_only_root_may_have_a_daemon_for_several_users(machine: Machine) -> None:
    machine.pipe.chmod(0o777)
    argv = machine._argv("nvidia-cuda-mps-control", 65534)
    done = subprocess.run(
        [*argv, "-f", "-M"], env=machine.environment(), capture_output=True, text=True, timeout=10
    )
    assert done.returncode == 1
    assert done.stderr.strip() in FIRST


def test_a_command_may_stand_on_the_command_line(machine: Machine, daemon: Daemon) -> None:
    assert run(machine, "get_default_active_thread_percentage").stdout == "100.0\n"
