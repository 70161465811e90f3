"""`mpsd control` and `mpsd agent` as two processes: either may die without the other's clients noticing."""

import os
import signal

from mpsd.model.domain import State
from tests.whole.machine.machine import Machine, eventually


def test_a_killed_agent_loses_no_client_and_no_grant(apart: Machine) -> None:
    agent = apart.part("agent")
    lasting, ended = apart.client(7), apart.client(4)
    grant = apart.grant_of(lasting)
    agent.kill()
    ended.kill()
    assert lasting.running

    again = apart.service("agent")

    apart.until_ready()
    eventually(lambda: apart.holders == {lasting.pid}, "the grant of the program that ended is given back")
    assert apart.grant_of(lasting) == grant
    assert again.logged("grants found again", grants=2)
    eventually(lambda: apart.limit_mib() == 7168, "the limit is that of the grant that is left")
    assert lasting.running


def test_a_program_that_waits_is_told_that_the_agent_went_away(apart: Machine) -> None:
    agent = apart.part("agent")
    apart.client(20)
    waits = apart.run("--gpu-mem 20 --wait", "true")
    eventually(lambda: apart.queue == [waits.pid], "it waits")
    agent.kill()
    assert waits.exit_code() == 1
    assert "mpsd closed the connection" in waits.errors
    apart.service("agent")
    apart.until_ready()


def test_without_control_clients_go_on_and_nothing_is_granted_on_a_dead_daemon(apart: Machine) -> None:
    control = apart.part("control")
    client = apart.client(7)
    control.kill()
    second = apart.client(7)
    assert client.running

    os.kill(apart.daemon(), signal.SIGKILL)

    assert second.exit_code() == 4
    refused = apart.run("--gpu-mem 7", "true")
    assert refused.exit_code() == 1
    assert "gpu0 is down" in refused.errors
    apart.service("control")
    apart.in_state(State.READY)
    apart.client(7)


def test_without_control_programs_are_refused_or_wait(machine: Machine) -> None:
    agent = machine.service("agent")
    eventually(lambda: (machine.run_directory / "mpsd.sock").exists(), "the agent answers")
    refused = machine.run("--gpu-mem 7", "true")
    assert refused.exit_code() == 1
    assert "gpu0 has no control daemon yet" in refused.errors
    waits = machine.run("--gpu-mem 7 --wait", "true")
    eventually(lambda: machine.queue == [waits.pid], "it waits for the daemon")
    control = machine.service("control")
    machine.until_ready()
    assert waits.exit_code() == 0
    assert agent.running
    assert control.running
