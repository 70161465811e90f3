"""An error that nobody expects ends the process, whichever task it is in; daemons and programs go
on, and the next mpsd takes them over."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mpsd.model.cuda_limit_parser import MEMORY_LIMIT
from mpsd.platform.processes import identity_of, is_alive
from tests.whole.machine.conftest import on_machine
from tests.whole.machine.machine import Machine, Program, Service, eventually
from tests.world.dying import Raised

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
    assert service.exit_code(LONGEST_S) == 1, service
    raised.is_told(program, service.errors)


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
    adopts = machine.service(verb)
    if verb != "agent":
        eventually(lambda: adopts.logged("daemon adopted"), "it has taken the daemon over")
    machine.until_ready()
    assert machine.daemon() == daemon.pid
    assert machine.grant_of(program)


# Tasks that something has to happen for.


def takes_too_much(machine: Machine) -> Program:
    lifted = f"{MEMORY_LIMIT}=garbage"
    return machine.run("--gpu-mem 4", "env", lifted, "sim-cuda", "alloc=8000", "hold")


def killed_amid_a_kernel(machine: Machine) -> Program:
    program = machine.run("--gpu-mem 4", "sim-cuda", "kernel=60000", "launch=60000")
    machine.until_listed(program.pid)
    program.kill()
    return program


@pytest.mark.parametrize(
    ("happens", "function"),
    [
        (takes_too_much, "mpsd.watchdog.watchdog:Watchdog._end_process"),
        (takes_too_much, "mpsd.mps.ends:ClientEnds._see_through"),
        (killed_amid_a_kernel, "mpsd.mps.canary:FirstContext._run"),
    ],
)
def test_an_error_in_a_task_that_something_began_ends_mpsd_and_the_next_sees_to_it(
    machine: Machine, tmp_path: Path, happens: Callable[[Machine], Program], function: str
) -> None:
    raised = Raised(function)
    service = machine.service("up", raised.environment(tmp_path / "raise"))
    machine.until_ready()
    (tmp_path / "raise").touch()
    program = happens(machine)
    dies(service, "mpsd up", raised)
    machine.up()
    assert program.exit_code() == 128 + 9


def test_an_error_in_the_canary_ends_mpsd(tmp_path: Path) -> None:
    for machine in on_machine("A30", tried=False):
        raised = Raised("mpsd.mps.canary:DomainCanary._run", "DomainSupervisor.run")
        (tmp_path / "raise").touch()
        service = machine.service("up", raised.environment(tmp_path / "raise"))
        dies(service, "mpsd up", raised)
        daemon = machine.recorded_daemon()
        machine.up()
        assert machine.daemon() == daemon
