"""One GPU of three is in trouble: its domain alone serves nobody, and says why; the two others are
granted, limited and healed before, in and after it, also when mpsd is restarted in the middle."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest

from mpsd.model.domain import State
from mpsd.model.node_report import DomainReport
from mpsd.platform import local_api
from mpsd.simulator.card import Quirk
from tests.whole.machine.asking_doctor import asked
from tests.whole.machine.conftest import on_machine
from tests.whole.machine.machine import Machine, Program, eventually

ILL = "gpu1"
WELL = ("gpu0", "gpu2")
LARGE = 45  # GiB: one program fills more than half of an A100
OUT_OF_MEMORY = "2:CUDA_ERROR_OUT_OF_MEMORY"
CLOSED = {State.REFUSED, State.DRAINING, State.DRAINED}


@dataclass(frozen=True, slots=True)
class Trouble:
    """words: of the reason. at_start: only who opens NVML anew sees it begin or end."""

    name: str
    words: str
    begin: Callable[[Machine], None]
    end: Callable[[Machine], None]
    at_start: bool = False


def lost(machine: Machine, *, now: bool) -> None:
    machine.card(1).lost = now


def quirk(machine: Machine, quirk: Quirk) -> None:
    machine.card(1).quirks = quirk


def mig(machine: Machine, *, now: bool) -> None:
    machine.card(1).mig = now


def generation(machine: Machine, capability: str) -> None:
    machine.simulation = machine.simulation.regenerate(1, capability)


TROUBLES = (
    Trouble("lost", "is lost", lambda m: lost(m, now=True), lambda m: lost(m, now=False)),
    Trouble(
        "memory",
        "Not Supported",
        lambda m: quirk(m, Quirk.TELLS_NO_MEMORY),
        lambda m: quirk(m, Quirk(0)),
    ),
    Trouble(
        "hangs",
        "does not answer",
        lambda m: quirk(m, Quirk.HANGS),
        lambda m: quirk(m, Quirk(0)),
    ),
    Trouble(
        "mig",
        "which has no instance yet",
        lambda m: mig(m, now=True),
        lambda m: mig(m, now=False),
    ),
    Trouble(
        "old",
        "MPS enforces no limits before 7.0",
        lambda m: generation(m, "6.0"),
        lambda m: generation(m, "8.0"),
        at_start=True,
    ),
    Trouble(
        "unknown",
        "which limits/gpus.yaml does not list",
        lambda m: generation(m, "99.0"),
        lambda m: generation(m, "8.0"),
        at_start=True,
    ),
)


@pytest.fixture
def three() -> Iterator[Machine]:
    yield from on_machine("A100×3")


def restarted(machine: Machine) -> None:
    """As an upgrade does: daemons and programs stay."""
    machine.part("up").kill()
    machine.service("up")


def domain(machine: Machine, name: str) -> DomainReport | None:
    with suppress(local_api.NotRunning):
        return next((one for one in machine.node().domains if one.name == name), None)
    return None


def until_closed(machine: Machine, words: str) -> None:
    def is_closed() -> bool:
        seen = domain(machine, ILL)
        return seen is not None and seen.state in CLOSED and words in seen.reason

    eventually(is_closed, f"{ILL} is closed, since it {words}")


def until_ready(machine: Machine, *names: str) -> None:
    def are_ready() -> bool:
        seen = [domain(machine, name) for name in names]
        return all(one is not None and one.state == State.READY for one in seen)

    eventually(are_ready, f"{names} are ready")


def fill(machine: Machine, *names: str) -> list[Program]:
    """One program on each of these GPUs, which is held by its limit."""
    programs = []
    for _name in names:
        program = machine.run(f"--gpu-mem {LARGE}", "sim-cuda", "alloc=47000", "hold")
        assert program.heard("rc") == OUT_OF_MEMORY
        programs.append(program)
    assert {machine.gpu_of(one) for one in programs} == set(names)
    return programs


def is_full(machine: Machine) -> bool:
    refused = machine.run(f"--gpu-mem {LARGE}", "true")
    return refused.exit_code() == 1


def end(machine: Machine, programs: list[Program]) -> None:
    pids = {one.pid for one in programs}
    for program in programs:
        program.kill()
    eventually(lambda: not machine.holders & pids, "their grants are back")


def heal(machine: Machine, name: str) -> None:
    before = machine.recorded_daemon(name)
    machine.kill(before)
    machine.new_daemon(before, name)


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda one: one.name)
def test_the_trouble_of_one_gpu_is_its_own(three: Machine, trouble: Trouble) -> None:
    three.up()
    end(three, fill(three, "gpu0", ILL, "gpu2"))

    trouble.begin(three)
    if trouble.at_start:
        restarted(three)
    until_closed(three, trouble.words)
    for restarts in (False, True):
        if restarts:
            restarted(three)
            until_closed(three, trouble.words)
        until_ready(three, *WELL)
        assert not three.folder_of(ILL).gate.exists()
        programs = fill(three, *WELL)
        assert is_full(three), "nothing is placed on the one in trouble"
        heal(three, "gpu0")
        end(three, programs)
        assert trouble.words in asked(three).output

    trouble.end(three)
    if trouble.at_start:
        restarted(three)
    until_ready(three, *WELL, ILL)
    end(three, fill(three, "gpu0", ILL, "gpu2"))


def test_a_gpu_that_was_lost_before_mpsd_ever_saw_it_is_named_by_its_number(three: Machine) -> None:
    lost(three, now=True)
    three.service("up")
    until_closed(three, "gpu1 is lost")
    until_ready(three, *WELL)
    (unknown,) = (gpu for gpu in three.node().gpus if gpu.label == ILL)
    assert (unknown.uuid, unknown.memory_mib, unknown.promised_mib) == ("GPU-unread-1", 0, 0)
    end(three, fill(three, *WELL))

    lost(three, now=False)
    until_ready(three, *WELL, ILL)
    assert {gpu.uuid for gpu in three.node().gpus} == three.uuids
    end(three, fill(three, "gpu0", ILL, "gpu2"))


def test_a_driver_without_memory_limits_is_said_for_each_gpu_and_runs_no_canary(
    three: Machine,
) -> None:
    driver = three.run_directory / "simulation" / "driver"
    driver.write_text("470.256.02")
    up = three.service("up")
    until_closed(three, "driver 470.256.02 is too old")
    eventually(
        lambda: {one.state for one in three.node().domains} == {State.REFUSED}, "all are refused"
    )
    assert up.logged("daemon says") == [], "no daemon was started"
    driver.unlink()
    until_ready(three, *WELL, ILL)


def test_mpsd_says_in_one_line_that_the_driver_s_library_is_of_another_version(
    three: Machine,
) -> None:
    (three.run_directory / "simulation" / "mismatch").touch()
    up = three.service("up")
    assert up.exit_code() == 1
    assert len(up.errors.splitlines()) == 1
    assert "reboot, or reload the module" in up.errors
