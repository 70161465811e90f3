"""A control daemon that does not answer."""

import os
import signal

from mpsd.model.domain import State
from tests.whole.machine.machine import Machine
from tests.whole.machine.test_agent_metrics import now

STOPPED = "was stopped by a signal"


def test_a_stopped_daemon_is_wedged_and_serves_again_once_it_goes_on(machine: Machine) -> None:
    machine.up()
    client = machine.client(4)
    daemon = machine.daemon()

    os.kill(daemon, signal.SIGSTOP)

    wedged = machine.in_state(State.WEDGED)
    assert f"pid {daemon} {STOPPED}" in wedged.reason
    refused = machine.run("--gpu-mem 4", "true")
    assert refused.exit_code() == 1
    assert f"gpu0 is wedged: pid {daemon} {STOPPED}" in refused.errors
    assert now(machine, "mpsd_domain_commands_unanswered_total", "domain")["gpu0",] >= 3

    os.kill(daemon, signal.SIGCONT)

    assert machine.in_state(State.READY).reason == ""
    assert client.running
    assert machine.daemon() == daemon
    machine.client(4)


def test_a_daemon_that_is_wedged_for_too_long_is_replaced(machine: Machine) -> None:
    machine.set_policy(graces={"command_s": 1, "start_s": 5, "wedged_limit_s": 1})
    service = machine.up()
    daemon = machine.daemon()

    os.kill(daemon, signal.SIGSTOP)

    machine.new_daemon(daemon)
    (killed,) = service.logged("daemon killed")
    assert killed["reason"].startswith(f"it did not answer for too long: pid {daemon} {STOPPED}")
    machine.client(4)
