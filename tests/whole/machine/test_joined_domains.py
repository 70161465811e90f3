"""GPUs are joined into one domain for a program of several, and divided again: on a machine of its
own."""

from collections.abc import Iterator

import pytest

from mpsd.model.domain import State
from tests.whole.machine.conftest import parted_on
from tests.whole.machine.machine import Machine, Program, eventually


@pytest.fixture(scope="module")
def parted() -> Iterator[Machine]:
    """Three A30, with no `domains` in the policy."""
    yield from parted_on("A30×3")


def on_two(machine: Machine, gib: int = 12) -> Program:
    program = machine.run(f"--gpu-mem {gib} --gpus 2", "sim-cuda", "hold")
    program.heard("ready")
    return program


def names(machine: Machine) -> set[str]:
    return {domain.name for domain in machine.node().domains}


def test_a_program_of_two_gpus_sees_half_of_its_request_on_each_and_a_neighbour_notices_nothing(
    apart: Machine,
) -> None:
    neighbour = apart.client(3)
    beside = apart.gpu_of(neighbour)
    before = apart.daemon(beside)

    program = on_two(apart)

    grant = apart.grant_of(program)
    assert (len(grant.gpus), grant.memory_mib) == (2, 6144)
    joined = {one.name: one for one in apart.node().domains if len(one.gpus) == 2}
    ((name, domain),) = joined.items()
    assert set(domain.gpus) == set(grant.gpus)
    assert domain.state == State.READY
    assert beside not in name
    assert neighbour.running
    assert apart.daemon(beside) == before
    assert apart.limit_mib(name) == 6144


def test_a_domain_that_nobody_uses_any_more_is_divided_after_a_while(pair: Machine) -> None:
    pair.apart()
    on_two(pair).kill()
    eventually(lambda: names(pair) == {"gpu0", "gpu1"}, "its GPUs are alone again")
    pair.until_ready()
