"""A log that nobody reads, or that cannot be written, stops nothing."""

import pytest

from tests.whole.machine.machine import Machine, eventually
from tests.whole.machine.test_agent_metrics import now
from tests.world.unread import Place, full_disk, paused_terminal, unread, without_reader

DROPPED = "mpsd_log_lines_dropped_total"


LAYOUTS = (("up",), ("control", "agent"))


@pytest.mark.parametrize("layout", LAYOUTS, ids="+".join)
@pytest.mark.parametrize("place", [unread, without_reader, full_disk, paused_terminal])
def test_grants_are_given_and_held_though_nothing_can_be_logged(
    place: Place,
    layout: tuple[str, ...],
    machine: Machine,
) -> None:
    machine.set_policy(exclusive_process=False)
    with place() as stderr:
        for verb in layout:
            machine.service(verb, stderr=stderr)
        machine.until_ready()
        for _program in range(8):  # each is two lines and more
            assert machine.run("--gpu-mem 2", "true").exit_code() == 0
        unlimited = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=0 exec sim-cuda alloc=5000 hold"
        assert machine.run("--gpu-mem 2", "sh", "-c", unlimited).exit_code() == 137
        daemon = machine.recorded_daemon()
        machine.kill(daemon)
        machine.new_daemon(daemon)
        assert machine.client(2).running
        machine.stop()


@pytest.mark.parametrize("place", [without_reader, full_disk])
def test_lines_that_cannot_be_written_are_counted(place: Place, machine: Machine) -> None:
    with place() as stderr:
        for verb in ("control", "agent"):
            machine.service(verb, stderr=stderr)
        machine.until_ready()
        before = eventually(lambda: counted(machine, "control", "agent"), "both count")
        machine.run("--gpu-mem 2", "true").exit_code()
        machine.kill(machine.recorded_daemon())
        eventually(
            lambda: all(counted(machine)[of] > before[of] for of in before), "more are dropped"
        )
        machine.until_ready()
        machine.stop()


def counted(machine: Machine, *processes: str) -> dict[str, float]:
    """By process; empty before each of these has dropped one."""
    found = {process: count for (process,), count in now(machine, DROPPED, "process").items()}
    return found if all(found.get(process) for process in processes) else {}


def test_of_a_log_that_is_read_nothing_is_dropped(machine: Machine) -> None:
    """And no file of an earlier `mpsd control` counts for `mpsd up`."""
    control, agent = machine.apart()
    eventually(lambda: now(machine, DROPPED, "process") == {("agent",): 0, ("control",): 0}, "both")
    control.kill()
    agent.kill()
    machine.up()
    assert now(machine, DROPPED, "process") == {("agent",): 0}
