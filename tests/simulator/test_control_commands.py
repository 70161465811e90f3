"""What nvidia-cuda-mps-control answers, against transcripts."""

import os
import stat
import sys

import pytest

from tests.contract import as_user
from tests.contract.platforms import Program
from tests.contract.world import OTHER_UID, Daemon, World
from tests.simulator.transcripts import transcript

FIRST = transcript(1)


def test_the_help_is_the_real_one(world: World) -> None:
    for option in ("-h", "-v"):
        said = world.start_in(world.nowhere, [option]).stdout
        assert said.startswith("CUDA MPS Control for Linux")
        assert said in FIRST
    assert world.start_in(world.nowhere, ["--help"]).exit_code == 0


def test_an_unknown_option_prints_the_help_and_what_the_real_one_says(world: World) -> None:
    done = world.start_in(world.nowhere, ["-d", "-p", "3"])
    first_lines = "\n".join(done.stdout.splitlines()[:3])
    assert first_lines in transcript(5)
    assert done.exit_code == 1


def test_the_columns_of_ps_begin_where_the_real_ones_do(daemon: Daemon) -> None:
    daemon.ready_client("hold")
    header, row = daemon.command("ps").text.splitlines()
    said = transcript(2, "P3").partition("\n> ps\n")[2]
    their_header, their_row = said.splitlines()[:2]
    assert header.rstrip() == their_header.rstrip()
    for column in ("ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"):
        at = their_header.index(f" {column}") + 1
        assert row[at - 1] == " "
        assert row[at] != " ", column
        assert their_row[at] != " "


def test_a_daemon_makes_the_files_that_the_real_one_makes(daemon: Daemon) -> None:
    listing = FIRST.partition("/run/mps/pipe:")[2].splitlines()[4:9]
    expected = {line.split()[-1]: line.split()[0] for line in listing}
    made = {path.name: stat.filemode(path.lstat().st_mode) for path in daemon.pipe.iterdir()}
    assert made == expected


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_only_root_may_have_a_daemon_for_several_users(world: World) -> None:
    modules = "mpsd.simulator.mps.control_daemon,mpsd.simulator.mps.daemon"
    user = (sys.executable, as_user.__file__, str(OTHER_UID), modules)
    done = world.run(Program((*user, "-f", "-M")))
    assert done.exit_code == 1
    assert done.stderr.strip() in FIRST


def test_a_command_may_stand_on_the_command_line(world: World, daemon: Daemon) -> None:
    answer = world.start_in(daemon.pipe, ["get_default_active_thread_percentage"])
    assert answer.stdout == "100.0\n"
