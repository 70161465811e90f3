"""MIG instances on a machine of its own: each is a GPU with a daemon, and the layout changes while
programs run."""

from collections.abc import Iterator
from contextlib import suppress

import pytest

from mpsd.model.domain import State
from mpsd.model.node_report import DomainReport
from mpsd.platform import local_api
from tests.whole.machine.asking_doctor import first_line, found
from tests.whole.machine.conftest import as_before
from tests.whole.machine.machine import Machine, eventually

GPUS = "A100:3g.40gb×2,H200"
LAYOUT = ("3g.40gb", "3g.40gb")


@pytest.fixture
def served(serving: Machine) -> Iterator[Machine]:
    """Divided as at the beginning."""
    yield serving
    divided(serving, *LAYOUT)
    as_before(serving)


def divided(machine: Machine, *profiles: str) -> tuple[str, ...]:
    """The labels of the new instances, once they serve."""
    labels = machine.divide(*profiles)
    machine.end_programs()
    machine.until_ready()
    return labels


def comes(machine: Machine, state: State, name: str) -> DomainReport:

    def found() -> list[DomainReport]:
        with suppress(local_api.NotRunning):
            return [one for one in machine.node().domains if (one.name, one.state) == (name, state)]
        return []

    return eventually(found, f"{name} comes and is {state}")[0]


def test_a_gpu_with_mig_on_and_no_instance_serves_nothing_and_says_why(served: Machine) -> None:
    served.divide()
    served.card(0).mig = True
    refused = comes(served, State.REFUSED, "gpu0")

    assert (
        "which has no instance yet; create one (nvidia-smi mig -cgi PROFILE -C), or switch MIG off"
        in refused.reason
    )
    assert first_line(served).startswith("MIG is on for gpu0 (")
    assert "domain-stopped" in found(served)
    program = served.client(30)
    assert served.gpu_of(program) == "gpu1"
