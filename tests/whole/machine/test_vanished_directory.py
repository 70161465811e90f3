"""The run directory removed under a running mpsd: it says so and ends; the programs that run are
left alone."""

import subprocess
from collections.abc import Sequence
from contextlib import suppress

import pytest

from mpsd.platform.processes import identity_of, is_alive
from tests.whole.machine.asking_doctor import asked
from tests.whole.machine.machine import Machine, Service, eventually


def remove(machine: Machine) -> None:
    """Until rm has nothing to say: mpsd may write while it is at work."""
    there = str(machine.run_directory)
    eventually(
        lambda: subprocess.run(["rm", "-rf", there], capture_output=True).returncode == 0,
        "it is removed",
    )


def end_what_is_left(machine: Machine) -> None:
    """As the message says: programs, then the daemon that nobody can command."""
    machine.end_programs()
    for pid in machine.processes_left():
        with suppress(ProcessLookupError):  # a server ends with its daemon
            machine.kill(pid)


@pytest.mark.parametrize("verbs", [("up",), ("control", "agent")])
def test_whoever_runs_says_what_vanished_and_ends_and_no_program_notices(
    machine: Machine, verbs: Sequence[str]
) -> None:
    services: Sequence[Service] = [machine.up()] if verbs == ("up",) else machine.apart()
    program, daemon = machine.client(4), identity_of(machine.daemon())
    remove(machine)
    for service in services:
        assert service.exit_code() == 1, service
        (said,) = service.logged("run directory vanished")
        assert said["path"].startswith(str(machine.run_directory))
        assert "whose pid mpsd doctor reports, and start mpsd again" in said["reason"]
        assert f"mpsd: {said['reason']}" in service.errors.replace("\n", " ")
        assert "Traceback" not in service.errors
    assert program.running
    assert daemon
    assert is_alive(daemon)
    assert f"`kill {daemon.pid}` once its programs have ended" in asked(machine).output
    end_what_is_left(machine)


def test_a_directory_of_the_same_name_that_somebody_made_anew_is_not_taken_for_it(
    machine: Machine,
) -> None:
    service = machine.up()
    machine.run_directory.rename(machine.run_directory.with_name("aside"))
    machine.run_directory.mkdir()
    assert service.exit_code() == 1
    assert service.logged("run directory vanished")
    assert "Traceback" not in service.errors
    end_what_is_left(machine)
