"""Memory limits of cgroups as NVIDIA documents them of driver 615: a grant is held in the moment of
an allocation.

As root, and where cgroups of v2 may be made.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from mpsd.model.cuda_limit_parser import MEMORY_LIMIT
from mpsd.model.domain import State
from mpsd.model.node_view import CAP_HOLDS
from mpsd.model.violations import ViolationKind
from mpsd.platform.containers import ProgramCgroups, v2_tree
from mpsd.simulator.gpus import MIB
from tests.whole.machine.conftest import on_machine
from tests.whole.machine.machine import Machine, Program, eventually

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


def limits(machine: Machine) -> dict[str, int]:
    """MiB by cgroup, as the simulated driver has them."""
    file = machine.simulation.folder / "memory-limits.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    return {path: row[1] // MIB for rows in known.values() for path, row in rows.items()}


def is_capped(machine: Machine, program: Program) -> bool:
    return machine.grant_of(program).memory_cap == "cgroup"


def waiting(machine: Machine) -> tuple[Program, Path]:
    """A program that has lifted its limit and is held by its cgroup, and the file that lets it
    allocate."""
    go = machine.run_directory / "go"
    words = f"until test -e {go}; do sleep 0.02; done; exec sim-cuda alloc={TAKEN_MIB} hold"
    program = machine.run(
        f"--gpu-mem {GRANTED_GIB}", "env", f"{MEMORY_LIMIT}=garbage", "sh", "-c", words
    )
    eventually(lambda: program.pid in machine.holders, "it has its grant")
    return program, go


def is_stopped(lines: Sequence[Mapping[str, Any]]) -> bool:
    return any(str(line.get("rc")).startswith("2:CUDA_ERROR_OUT_OF_MEMORY") for line in lines)


def violations(machine: Machine) -> list[ViolationKind]:
    seen = machine.node().violations
    assert seen is not None
    return [one.kind for one in seen.last]


def test_a_client_that_lifts_its_limit_is_stopped_at_its_allocation(machine: Machine) -> None:
    machine.up()
    canary = machine.record().canary
    assert canary
    assert canary.memory_cap == CAP_HOLDS
    program, go = waiting(machine)
    eventually(lambda: is_capped(machine, program), "its cgroup holds it")
    assert list(limits(machine).values()) == [GRANTED_GIB * 1024]
    go.touch()

    assert program.heard("rc").startswith("2:CUDA_ERROR_OUT_OF_MEMORY")

    program.heard("ready")
    assert program.heard("meminfo_total_MiB") == GRANTED_GIB * 1024
    machine.until_watched()
    assert ViolationKind.MEMORY_OVER_GRANT not in violations(machine)
    assert program.running
    go.unlink()


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
