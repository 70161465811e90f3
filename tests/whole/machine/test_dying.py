"""An error that nobody expects ends the process, whichever task it is in; daemons and programs go
on, and the next mpsd takes them over."""

from pathlib import Path

import pytest

from mpsd.platform.processes import identity_of, is_alive
from tests.whole.machine.conftest import on_machine
from tests.whole.machine.machine import Machine, Service
from tests.world.dying import Raised
from tests.world.fork import MPSD

AGENT = (
    Raised("mpsd.agent.agent:AgentRole.run"),
    Raised("mpsd.watchdog.watchdog:Watchdog.run"),
    Raised("mpsd.platform.limits_files:watch_limits"),
    Raised("mpsd.platform.run_directory:DirectoryIdentity.is_there", "watching.watch"),
)
CONTROL = (
    Raised("mpsd.mps.supervisor:DomainSupervisor.run"),
    Raised("mpsd.platform.event_loop:FolderWatch.follow", "ControlRole.run.watch_files"),
    Raised("mpsd.platform.limits_files:watch_limits"),
)
LONGEST_S = 30.0  # far above the 5 s, however busy the machine


def dies(service: Service, program: str, raised: Raised) -> None:
    """By its error, which one line names; the log has the traceback."""
    assert service.exit_code(LONGEST_S) == 1, service
    plain = [line for line in service.errors.splitlines() if not line.startswith("{")]
    assert plain == [raised.last_line(program)]
    (said,) = service.logged("process ends")
    assert "RuntimeError" in said["exception"]


@pytest.mark.parametrize(
    ("verb", "raised"),
    [
        *(("up", one) for one in dict.fromkeys((*AGENT, *CONTROL))),
        *(("agent", one) for one in AGENT),
        *(("control", one) for one in CONTROL),
    ],
    ids=str,
)
def test_an_error_in_a_task_ends_the_process_and_nothing_else(
    machine: Machine, tmp_path: Path, verb: str, raised: Raised
) -> None:
    file = tmp_path / "raise"
    environment = raised.environment(file)
    if verb == "up":
        service = machine.service("up", environment)
    else:
        made = {
            part: machine.service(part, environment if part == verb else None)
            for part in ("control", "agent")
        }
        service = made[verb]
    machine.until_ready()
    program, daemon = machine.client(7), identity_of(machine.daemon())
    assert daemon

    file.touch()

    dies(service, f"mpsd {verb}", raised)
    assert is_alive(daemon)
    assert program.running
    machine.service(verb)
    machine.until_ready()
    assert machine.daemon() == daemon.pid
    assert machine.grant_of(program)


# Tasks that something has to happen for.


def begun(machine: Machine, raised: Raised, file: Path) -> Service:
    service = machine.service("up", raised.environment(file))
    machine.until_ready()
    return service


def test_an_error_in_the_end_of_a_process_ends_mpsd(machine: Machine, tmp_path: Path) -> None:
    raised = Raised("mpsd.watchdog.watchdog:Watchdog._end_process")
    service = begun(machine, raised, tmp_path / "raise")
    (tmp_path / "raise").touch()
    machine.start(["sim-cuda", "hold"])  # without a grant
    dies(service, "mpsd up", raised)
    machine.up()


def test_an_error_while_a_client_is_stopped_ends_mpsd_and_the_next_ends_the_client(
    machine: Machine, tmp_path: Path
) -> None:
    raised = Raised("mpsd.mps.ends:ClientEnds._see_through")
    service = begun(machine, raised, tmp_path / "raise")
    client = machine.client(4)
    (tmp_path / "raise").touch()
    machine.start([MPSD, "stop", machine.grant_of(client).id])
    dies(service, "mpsd up", raised)
    assert client.running
    machine.up()
    client.exit_code()


def test_an_error_in_the_context_after_a_killed_client_ends_mpsd(
    machine: Machine, tmp_path: Path
) -> None:
    raised = Raised("mpsd.mps.canary:FirstContext._run")
    service = begun(machine, raised, tmp_path / "raise")
    client = machine.client(4)
    (tmp_path / "raise").touch()
    client.kill()
    dies(service, "mpsd up", raised)
    machine.up()


def test_an_error_in_the_canary_ends_mpsd(tmp_path: Path) -> None:
    for machine in on_machine("A30", tried=False):
        raised = Raised("mpsd.mps.canary:DomainCanary._run", "DomainSupervisor.run")
        (tmp_path / "raise").touch()
        service = machine.service("up", raised.environment(tmp_path / "raise"))
        dies(service, "mpsd up", raised)
        daemon = machine.recorded_daemon()
        machine.up()
        assert machine.daemon() == daemon
