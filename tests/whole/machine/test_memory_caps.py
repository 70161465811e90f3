"""Memory limits of cgroups as NVIDIA documents them of driver 615: a grant is held in the moment of
an allocation.

As root, and where cgroups of v2 may be made.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.model.domain import State
from mpsd.platform.containers import ProgramCgroups, v2_tree
from tests.whole.machine.conftest import on_machine
from tests.whole.machine.machine import Machine

_TREE = v2_tree(Path("/sys/fs/cgroup"))
_WHY_NOT = ProgramCgroups().why_not or ("" if _TREE else "cgroup v2 is not mounted")
pytestmark = pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT)

GRANTED_GIB, TAKEN_MIB = 2, 4000


@pytest.fixture
def machine() -> Iterator[Machine]:
    """One A30 under driver 615, nothing running."""
    for made in on_machine("A30"):
        set_driver(made, "615.71.09")
        yield made


def set_driver(machine: Machine, version: str) -> None:
    (machine.simulation.folder / "driver").write_text(version)


def test_a_policy_that_insists_refuses_gpus_of_a_driver_without_them(machine: Machine) -> None:
    set_driver(machine, "580.159.04")
    machine.set_policy(memory_cap="cgroup")
    machine.service("up")
    machine.until_known()
    found = machine.in_state(State.REFUSED)
    assert found.reason.startswith(
        "memory_cap is cgroup, and driver 580.159.04 has no memory limits of cgroups"
    )
    asked = machine.run("--gpu-mem 4", "true")
    assert asked.exit_code() == 1
    assert "memory_cap is cgroup" in asked.errors

    machine.set_policy(memory_cap="auto")

    machine.until_ready()
    machine.client(4)
