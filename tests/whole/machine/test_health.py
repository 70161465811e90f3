"""A GPU that is sick is drained and tried, and the two beside it serve as before."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsd.model.domain import State
from mpsd.model.gpu_health import GpuCondition, HealthCause
from mpsd.simulator.gpus import MIB, card_path
from tests.whole.machine.conftest import on_machine
from tests.whole.machine.machine import Machine, Program, eventually

KILLED = 128 + 9
SICK = "gpu1"


@pytest.fixture
def three() -> Iterator[Machine]:
    for made in on_machine("A30×3"):
        made.set_policy(restarts={"longest_s": 1})
        yield made


def condition(machine: Machine, name: str = SICK) -> GpuCondition:
    (found,) = machine.record(name).health
    return found


def of_each(machine: Machine) -> list[Program]:
    """One program on each GPU."""
    found = [machine.client(13) for _ in range(3)]
    assert [machine.gpu_of(one) for one in found] == ["gpu0", SICK, "gpu2"]
    return found


def drained_for(machine: Machine, cause: HealthCause) -> None:
    eventually(lambda: machine.record(SICK).state is State.DRAINING, "it is drained")
    assert condition(machine).cause is cause
    assert condition(machine).reason in machine.record(SICK).reason


def check_others(machine: Machine) -> None:
    """They grant, limit and end who exceeds its grant; the sick one is given to nobody."""
    taken = [machine.client(8) for _ in range(2)]
    assert {machine.gpu_of(one) for one in taken} == {"gpu0", "gpu2"}
    assert machine.run("--gpu-mem 8", "true").exit_code() == 1
    greedy = machine.run("--gpu-mem 2", "sh", "-c", "exec sim-cuda lift=garbage alloc=4000 hold")
    assert greedy.exit_code() == KILLED
    for one in taken:
        one.kill()
        one.exit_code()


def check_well(machine: Machine) -> None:
    machine.in_state(State.READY, SICK)
    assert condition(machine).cause is None
    assert machine.record(SICK).canary is not None
    eventually(lambda: machine.limit_mib(SICK) == 8, "nobody has it")
    assert machine.gpu_of(machine.client(20)) == SICK


@pytest.mark.parametrize("restarted", [False, True], ids=["", "mpsd restarted"])
def test_a_sick_gpu_is_drained_and_well_once_its_canary_passes(
    three: Machine, restarted: bool
) -> None:
    service = three.up()
    programs = of_each(three)
    old = three.daemon(SICK)
    three.card(1).post_xid(79)
    drained_for(three, HealthCause.XID)
    assert condition(three).xids == {"79": 1}
    if restarted:
        service.kill()
        service = three.service("up")
        eventually(lambda: service.logged("daemon adopted", domain=SICK), "its daemon is adopted")
        drained_for(three, HealthCause.XID)
        three.until_known()
    check_others(three)
    assert all(one.running for one in programs)
    assert three.daemon(SICK) == old

    programs[1].kill()
    programs[1].exit_code()

    check_well(three)
    assert service.logged("canary passed")
    assert programs[0].running
    assert programs[2].running


def test_a_gpu_whose_contexts_all_fail_is_refused_until_one_succeeds(three: Machine) -> None:
    service = three.up()
    programs = of_each(three)
    path = card_path(three.simulation.folder, three.simulation.gpus[1])
    whole = three.simulation.gpus[1].memory_mib

    give(path, 8)
    programs[1].kill()

    eventually(lambda: three.record(SICK).state is State.REFUSED, "it is refused")
    assert condition(three).cause is HealthCause.CONTEXTS
    assert condition(three).reason in three.record(SICK).reason
    assert "the canary failed" in three.record(SICK).reason
    check_others(three)
    assert len(service.logged("daemon killed")) == 1

    give(path, whole)

    check_well(three)


def test_programs_that_get_no_context_show_that_their_gpu_gives_none(three: Machine) -> None:
    three.up()
    give(card_path(three.simulation.folder, three.simulation.gpus[0]), 8)
    assert three.run("--gpu-mem 8", "sim-cuda", "hold").exit_code() == 3
    eventually(lambda: three.record("gpu0").state is State.REFUSED, "it is refused")
    assert condition(three, "gpu0").cause is HealthCause.CONTEXTS
    assert three.gpu_of(three.client(8)) != "gpu0"


def test_programs_that_fail_by_themselves_make_no_gpu_sick(machine: Machine) -> None:
    service = machine.up()
    too_little = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8M"
    for _ in range(4):
        program = machine.run("--gpu-mem 1", "env", too_little, "sim-cuda", "hold")
        assert program.exit_code() == 3
    eventually(lambda: service.logged("first context made"), "mpsd has made one of its own")
    assert condition(machine, "gpu0").cause is None
    machine.until_ready()


def give(card: Path, memory_mib: int) -> None:
    """To whoever opens it from now on."""
    with card.open("r+b") as file:
        file.write(struct.pack("<Q", memory_mib * MIB))


def test_it_stays_refused_while_the_cause_persists(three: Machine) -> None:
    three.up()
    card = three.card(1)
    card.remap_pending = 1
    eventually(lambda: three.record(SICK).state is State.REFUSED, "it is refused")
    assert condition(three).cause is HealthCause.ROWS
    check_refused = three.record(SICK)
    assert check_refused.canary is not None
    assert not check_refused.canary.problem

    card.remap_pending = 0

    three.in_state(State.READY, SICK)
    assert condition(three).cause is None


def test_the_xid_of_a_program_is_counted_and_its_gpu_is_well(machine: Machine) -> None:
    service = machine.up()
    machine.run("--gpu-mem 4", "sim-cuda", "fault").exit_code()
    eventually(lambda: condition(machine, "gpu0").xids == {"31": 1}, "it is counted")
    assert condition(machine, "gpu0").cause is None
    assert service.logged("xid", xid=31, kind="program")
    machine.until_ready()
