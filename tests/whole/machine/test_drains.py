"""A GPU that is to take no new programs: what the agent's request does, and what its withdrawal."""

from collections.abc import Iterator

import pytest

from mpsd.model.domain import State
from mpsd.mps import drain
from tests.whole.machine.conftest import parted_on
from tests.whole.machine.machine import Machine

WHY = "gpu0 is cordoned: a new driver"


@pytest.fixture(scope="module")
def parted() -> Iterator[Machine]:
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
