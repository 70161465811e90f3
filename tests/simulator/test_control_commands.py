"""What nvidia-cuda-mps-control answers, against transcripts."""

import os
import stat
import subprocess
import sys

import pytest

from mpsd.simulator.mps.control_daemon import BANNER, HELP
from tests.contract import as_user
from tests.simulator.machine import Daemon, Machine
from tests.simulator.transcripts import transcript

FIRST = transcript(1)


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
    assert first_lines in transcript(5)
    assert done.returncode == 1


def test_the_columns_of_ps_begin_where_the_real_ones_do(machine: Machine, daemon: Daemon) -> None:
    machine.start_client("hold").heard("ready")
    header, row = machine.ask("ps").output.splitlines()
    said = transcript(2, "P3").partition("\n> ps\n")[2]
    their_header, their_row = said.splitlines()[:2]
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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_only_root_may_have_a_daemon_for_several_users(machine: Machine) -> None:
    machine.pipe.chmod(0o777)
    module = "mpsd.simulator.mps.control_daemon,mpsd.simulator.mps.daemon"
    argv = [sys.executable, as_user.__file__, "65534", module]
    done = subprocess.run(
        [*argv, "-f", "-M"], env=machine.environment(), capture_output=True, text=True, timeout=10
    )
    assert done.returncode == 1
    assert done.stderr.strip() in FIRST


def test_a_command_may_stand_on_the_command_line(machine: Machine, daemon: Daemon) -> None:
    assert run(machine, "get_default_active_thread_percentage").stdout == "100.0\n"
