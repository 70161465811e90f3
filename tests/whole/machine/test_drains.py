"""A GPU that is to take no new programs: what the agent's request does, and what its withdrawal."""

import signal
from collections.abc import Iterator

import pytest

from mpsd.model.domain import State
from mpsd.mps import drain
from tests.whole.machine.conftest import parted_on
from tests.whole.machine.machine import Machine, eventually

WHY = "gpu0 is cordoned: a new driver"


@pytest.fixture(scope="module")
def parted() -> Iterator[Machine]:
    """Two A30."""
    yield from parted_on("A30×2")


def test_a_drain_waits_for_the_programs_that_run_and_takes_no_new_ones(apart: Machine) -> None:
    clients = [apart.client(20), apart.client(18)]
    drained, other = clients if apart.gpu_of(clients[0]) == "gpu0" else reversed(clients)
    daemon = apart.daemon()
    folder = apart.folder_of()

    drain.ask(folder, WHY)

    assert apart.in_state(State.DRAINING).reason == WHY
    assert not folder.gate.exists()
    assert drained.running
    drained.kill()
    assert apart.in_state(State.DRAINED).reason == WHY
    assert apart.daemon() == daemon
    assert other.running
    refused = apart.run("--gpu-mem 20", "true")
    assert refused.exit_code() == 1
    assert f"gpu0 is drained: {WHY}" in refused.errors

    drain.withdraw(folder)

    apart.in_state(State.READY)
    assert apart.daemon() == daemon
    assert apart.gpu_of(apart.client(20)) == "gpu0"


def test_control_may_be_replaced_once_its_domains_are_drained(machine: Machine) -> None:
    control, agent = machine.apart()
    drain.ask(machine.folder_of(), WHY)
    machine.in_state(State.DRAINED)
    before = machine.daemon()
    agent.kill()  # the simulated GPUs go with control
    control.send(signal.SIGTERM)
    assert control.exit_code(within_s=25) == 0  # less than `drain_s`: there is nobody to wait for

    again = machine.service("control")
    eventually(lambda: again.logged("state", state="drained"), "it is drained again")
    machine.service("agent")
    machine.until_known()
    assert machine.domain().state is State.DRAINED
    assert machine.daemon() != before
    states = [line["state"] for line in again.logged("state")]
    assert states == ["starting", "draining", "drained"]
    drain.withdraw(machine.folder_of())
    machine.in_state(State.READY)
