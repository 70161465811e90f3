"""The end of `mpsd up`: programs first, then the daemons, and everything as it was found."""

import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress

import pytest

from mpsd.model.client_limits import DENY_MIB
from mpsd.model.domain import State
from mpsd.platform import records
from mpsd.platform.processes import identity_of, is_alive
from mpsd.simulator.card import DEFAULT
from tests.whole.machine.asking_doctor import asked
from tests.whole.machine.machine import Machine, Service, eventually


def test_a_stop_waits_for_the_programs_and_takes_no_new_ones(machine: Machine) -> None:
    service = machine.up()
    client = machine.client(7)
    daemon = machine.daemon()

    service.send(signal.SIGTERM)

    machine.in_state(State.DRAINING)
    # nobody is told to wait for what does not come
    for options in ("--gpu-mem 7", "--gpu-mem 7 --wait"):
        refused = machine.run(options, "true")
        assert refused.exit_code() == 1
        assert refused.errors.startswith("mpsd run: mpsd is stopping")
        assert "--wait" not in refused.errors
    assert client.running
    assert machine.daemon() == daemon
    client.send(signal.SIGTERM)
    assert client.exit_code() == 0
    assert service.exit_code() == 0
    assert machine.processes_left() == {}
    assert machine.files_left() == []


def test_a_stop_of_control_waits_for_grants_that_only_the_agent_knows(machine: Machine) -> None:
    """As those of pods: their programs may come to the GPU as long as they hold one."""
    control = machine.service("control")
    eventually(lambda: control.logged("state", state="ready"), "it serves")
    records.write(machine.folder_of().limits, 1024)  # what an agent says of the largest grant

    control.send(signal.SIGTERM)

    eventually(lambda: control.logged("state", state="draining"), "it drains")
    assert control.running
    records.write(machine.folder_of().limits, DENY_MIB)
    assert control.exit_code() == 0
    assert control.logged("state", state="drained")
    assert not control.logged("programs lose their GPU")


def test_a_second_signal_does_not_wait(machine: Machine) -> None:
    service = machine.up()
    client = machine.client(7)
    service.send(signal.SIGINT)
    machine.in_state(State.DRAINING)
    service.send(signal.SIGINT)
    assert service.exit_code() == 0
    assert client.heard("broke").startswith("806:")
    assert service.logged("draining", signal="SIGINT")
    (said,) = service.logged("programs lose their GPU")
    assert "gpu0, clients: 1, and the holders of grants" in said["programs"]


def test_a_gpu_that_fell_off_the_bus_does_not_keep_the_rest_from_being_put_back(
    pair: Machine,
) -> None:
    other = pair.card(1)
    service = pair.up()
    pair.card(0).lost = True
    service.send(signal.SIGTERM)
    service.exit_code()
    assert other.compute_mode == DEFAULT
    assert pair.processes_left() == {}
    # for the next mpsd
    assert [path.parent.name for path in pair.files_left()] == ["compute-modes"]


# The run directory is removed under a running mpsd.


@pytest.mark.parametrize("verbs", [("up",), ("control", "agent")])
def test_whoever_runs_says_what_vanished_and_ends_and_no_program_notices(
    machine: Machine, verbs: Sequence[str]
) -> None:
    services: Sequence[Service] = [machine.up()] if verbs == ("up",) else machine.apart()
    program, daemon = machine.client(4), identity_of(machine.daemon())
    there = str(machine.run_directory)
    eventually(  # mpsd may write while rm is at work
        lambda: subprocess.run(["rm", "-rf", there], capture_output=True).returncode == 0,
        "it is removed",
    )
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
    machine.end_programs()
    for pid in machine.processes_left():
        with suppress(ProcessLookupError):  # a server ends with its daemon
            machine.kill(pid)
