"""MIG instances on a machine of its own: each is a GPU with a daemon, and the layout changes while programs run."""

import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest

from mpsd.model.domain import GONE, State
from mpsd.model.node_status import DomainStatus
from mpsd.platform import local_api, processes
from mpsd.simulator.card import DEFAULT, EXCLUSIVE_PROCESS
from tests.whole.machine.asking_doctor import first_line, found
from tests.whole.machine.conftest import as_before, parted_on, serving_on
from tests.whole.machine.machine import Machine, Program, eventually

LAYOUT = ("3g.40gb", "3g.40gb")


@pytest.fixture(scope="module")
def serving() -> Iterator[Machine]:
    yield from serving_on("A100:3g.40gb×2,H200")


@pytest.fixture
def served(serving: Machine) -> Iterator[Machine]:
    """Divided as at the beginning."""
    yield serving
    divided(serving, *LAYOUT)
    as_before(serving)


@pytest.fixture
def apart() -> Iterator[Machine]:
    yield from parted_on("A100:1g.10gb×2")


def divided(machine: Machine, *profiles: str) -> tuple[str, ...]:
    """The labels of the new instances, once they serve."""
    labels = machine.divide(*profiles)
    machine.end_programs()
    machine.until_ready()
    return labels


def on(machine: Machine, label: str) -> Program:
    """A program with all of that GPU's memory; those that come to others of its size first end again."""
    size = next(gpu.promised_mib // 1024 for gpu in machine.node().gpus if gpu.label == label)
    others: list[Program] = []
    while machine.gpu_of(program := machine.client(size)) != label:
        others.append(program)
    for other in others:
        other.kill()
    eventually(lambda: machine.holders.isdisjoint(one.pid for one in others), "their grants have come back")
    return program


def names(machine: Machine) -> set[str]:
    return {domain.name for domain in machine.node().domains}


def comes(machine: Machine, state: State, name: str) -> DomainStatus:
    """The domain, once there is one of this name in this state."""

    def found() -> list[DomainStatus]:
        with suppress(local_api.NotRunning):
            return [one for one in machine.node().domains if (one.name, one.state) == (name, state)]
        return []

    return eventually(found, f"{name} comes and is {state}")[0]


def test_a_gpu_with_two_instances_and_another_are_three_gpus_with_a_daemon_each(served: Machine) -> None:
    first, second, whole = served.node().gpus

    assert [gpu.label for gpu in (first, second, whole)] == ["gpu0-mig1", "gpu0-mig2", "gpu1"]
    assert {first.parent, second.parent, whole.parent} == {served.simulation.gpus[0].uuid, None}
    assert (first.mig_profile, first.memory_mib, first.sms, first.promised_clients) == ("3g.40gb", 40192, 42, 20)
    assert (whole.mig_profile, whole.promised_clients) == (None, 48)
    for gpu in (first, second, whole):
        environment = processes.environment_of(served.daemon(gpu.label)) or {}
        assert environment["CUDA_VISIBLE_DEVICES"] == gpu.uuid
        assert served.domain(gpu.label).kind == ("alone" if gpu is whole else "instance")


def test_a_program_sees_its_limit_on_one_instance_and_a_fault_stays_there(served: Machine) -> None:
    neighbour = on(served, "gpu0-mig1")
    first = neighbour.lines[0]
    assert (first["devices"], first["uuid"]) == (1, served.domain("gpu0-mig1").gpus[0])
    assert first["meminfo_free_MiB"] < 39 * 1024 < first["total_MiB"] == 40192

    culprit = served.run("--gpu-mem 39", "sim-cuda", "fault", "linger")
    eventually(lambda: served.domain("gpu0-mig2").faults.count == 1, "the fault is seen")
    culprit.kill()
    served.until_ready()
    assert served.domain("gpu0-mig1").faults.count == 0
    assert neighbour.running


def test_programs_on_instances_that_stay_notice_nothing_of_a_new_layout(served: Machine) -> None:
    program = on(served, "gpu0-mig1")
    daemon = served.daemon("gpu0-mig1")

    new = served.divide("3g.40gb", "1g.10gb", "1g.10gb")
    served.until_ready()

    assert new == ("gpu0-mig1", "gpu0-mig7", "gpu0-mig8")
    assert names(served) == {*new, "gpu1"}
    assert (program.running, served.daemon("gpu0-mig1")) == (True, daemon)
    eventually(lambda: not served.folder_of("gpu0-mig2").record.exists(), "its record is gone")
    assert [gpu.promised_clients for gpu in served.node().gpus] == [20, 6, 6, 48]


def test_an_instance_that_goes_drains_and_its_program_goes_on(served: Machine) -> None:
    program = on(served, "gpu0-mig2")
    grant = served.grant_of(program)

    served.divide("3g.40gb", "2g.20gb")
    drained = served.in_state(State.DRAINING, "gpu0-mig2")

    assert drained.reason == GONE
    eventually(lambda: grant.gpus[0] not in {gpu.uuid for gpu in served.node().gpus}, "it is no GPU any more")
    assert program.running
    kept = served.grant_of(program)
    assert (kept.gpus, kept.memory_mib) == (grant.gpus, grant.memory_mib)
    assert (kept.used_mib, kept.clients) == (None, None), "nobody can see them any more"
    assert served.limit_mib("gpu0-mig2") == grant.memory_mib

    program.kill()
    served.until_ready()
    assert names(served) == {"gpu0-mig1", "gpu0-mig3", "gpu1"}
    eventually(lambda: not served.folder_of("gpu0-mig2").record.exists(), "its record is gone")


def test_an_instance_with_the_ids_of_one_that_is_still_in_use_waits_for_its_name(served: Machine) -> None:
    program = on(served, "gpu0-mig1")
    old = served.daemon("gpu0-mig1")

    served.divide("4g.40gb")
    served.in_state(State.DRAINING, "gpu0-mig1")
    (new,) = eventually(
        lambda: [gpu for gpu in served.node().gpus if gpu.mig_profile == "4g.40gb"], "the new instance is known"
    )
    assert (new.label, new.domain) == ("gpu0-mig1", None)
    assert (program.running, served.daemon("gpu0-mig1")) == (True, old)

    program.kill()
    served.until_ready()
    assert served.domain("gpu0-mig1").gpus == (new.uuid,)
    assert served.daemon("gpu0-mig1") != old


def test_a_gpu_with_mig_on_and_no_instance_serves_nothing_and_says_why(served: Machine) -> None:
    served.divide()
    served.card(0).mig = True
    refused = comes(served, State.REFUSED, "gpu0")

    assert "which has no instance yet; create one (nvidia-smi mig -cgi PROFILE -C), or switch MIG off" in refused.reason
    assert first_line(served).startswith("gpu0 is refused: MIG is on for ")
    assert "domain-stopped" in found(served)
    program = served.client(30)
    assert served.gpu_of(program) == "gpu1"


def test_a_gpu_whose_mig_is_switched_off_is_a_whole_one_again(served: Machine) -> None:
    served.divide()
    served.until_ready()
    assert names(served) == {"gpu0", "gpu1"}
    assert served.card(0).compute_mode == EXCLUSIVE_PROCESS

    served.card(0).compute_mode = DEFAULT  # a GPU is reset when MIG is switched on
    served.divide("7g.80gb")
    served.until_ready()
    assert names(served) == {"gpu0-mig0", "gpu1"}
    assert not list((served.run_directory / "compute-modes").glob(f"{served.simulation.gpus[0].uuid}*"))


def test_a_layout_that_changes_while_no_mpsd_runs_is_followed_at_the_next_start(apart: Machine) -> None:
    first, second = apart.client(9), apart.client(9)
    by_gpu = {apart.gpu_of(program): program for program in (first, second)}
    before = {name: apart.daemon(name) for name in ("gpu0-mig7", "gpu0-mig8")}
    for part in ("control", "agent"):
        apart.part(part).kill()

    apart.divide("1g.10gb", "2g.20gb")  # the instance with the ids 8 and 0 is gone
    apart.service("control")
    apart.service("agent")

    comes(apart, State.DRAINING, "gpu0-mig8")
    comes(apart, State.READY, "gpu0-mig3")
    assert (apart.daemon("gpu0-mig7"), apart.daemon("gpu0-mig8")) == (before["gpu0-mig7"], before["gpu0-mig8"])
    assert first.running
    assert second.running
    by_gpu["gpu0-mig8"].send(signal.SIGKILL)
    apart.until_ready()
    assert names(apart) == {"gpu0-mig7", "gpu0-mig3"}
    assert by_gpu["gpu0-mig7"].running
