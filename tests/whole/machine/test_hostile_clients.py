"""A client that makes it hard to see what it is, as mpsd sees it with the rights of the agent's
container: its neighbours are watched as before, and it is held to what it uses."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.model.violations import ViolationKind
from tests.whole.machine.conftest import on_machine
from tests.whole.machine.machine import Machine, Program, eventually

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="its clients are another user's")
HOSTILE = str(Path(__file__).parents[2] / "world/hostile_process.py")
LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
ESCAPES = f"{LIMIT}=garbage exec sim-cuda alloc=9000 hold"
KILLED = 128 + signal.SIGKILL
AS_THE_AGENT = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")
TIB = 1024**4


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    for made in on_machine("A30"):
        made.service("up", wrap=AS_THE_AGENT)
        made.until_ready()
        for folder in (made.run_directory.parent, made.run_directory / "simulation"):
            folder.chmod(0o777)
        for path in made.simulation.folder.rglob("*"):
            path.chmod(path.stat().st_mode | 0o666)
        yield made


def hostile(machine: Machine, how: str, size: int, *actions: str) -> Program:
    program = machine.run("--gpu-mem 2", sys.executable, HOSTILE, how, str(size), *actions)
    program.heard("hostile")
    return program


@pytest.mark.parametrize(
    ("how", "size"), [("stuck", 0), ("region", 6_000_000), ("maps", 30_000), ("named", 0)]
)
def test_who_is_hard_to_read_hides_nobody(machine: Machine, how: str, size: int) -> None:
    beside = hostile(machine, how, size, "alloc=100", "hold")
    beside.heard("ready")
    escape = machine.run("--gpu-mem 2", "sh", "-c", ESCAPES)
    assert escape.exit_code() == KILLED
    assert beside.running
    machine.end_programs()
    machine.until_no_grants()


@pytest.mark.parametrize("size", [100 * TIB, 4096])
def test_who_shows_what_no_exec_gives_has_lifted_its_limit(machine: Machine, size: int) -> None:
    forges = hostile(machine, "range", size, "alloc=100", "hold")

    def kinds() -> list[str]:
        seen = machine.node().violations
        return [one.kind for one in seen.last if one.pid == forges.pid] if seen else []

    eventually(lambda: kinds() == [ViolationKind.LIMIT_LIFTED], "it is said")
    machine.end_programs()
    machine.until_no_grants()


def test_who_is_hard_to_read_is_held_to_its_grant_all_the_same(machine: Machine) -> None:
    takes = hostile(machine, "stuck", 0, "lift=garbage", "alloc=9000", "hold")
    assert takes.exit_code() == KILLED
    eventually(lambda: not machine.holders, "its grant ends")
