"""MIG instances on a machine of its own: each is a GPU with a daemon, and the layout changes while
programs run."""

from collections.abc import Iterator
from contextlib import suppress

import pytest

from mpsd.model.domain import GONE, State
from mpsd.model.node_report import DomainReport
from mpsd.platform import local_api, processes
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
    """A program with all of that GPU's memory; those that come to others of its size first end
    again."""
    size = next(gpu.promised_mib // 1024 for gpu in machine.node().gpus if gpu.label == label)
    others: list[Program] = []
    while machine.gpu_of(program := machine.client(size)) != label:
        others.append(program)
    for other in others:
        other.kill()
    eventually(
        lambda: machine.holders.isdisjoint(one.pid for one in others), "their grants have come back"
    )
    return program


def names(machine: Machine) -> set[str]:
    return {domain.name for domain in machine.node().domains}


def comes(machine: Machine, state: State, name: str) -> DomainReport:

    def found() -> list[DomainReport]:
        with suppress(local_api.NotRunning):
            return [one for one in machine.node().domains if (one.name, one.state) == (name, state)]
        return []

    return eventually(found, f"{name} comes and is {state}")[0]


def test_a_gpu_with_two_instances_and_another_are_three_gpus_with_a_daemon_each(
    served: Machine,
) -> None:
    first, second, whole = served.node().gpus

    assert [gpu.label for gpu in (first, second, whole)] == ["gpu0-mig1", "gpu0-mig2", "gpu1"]
    assert {first.parent, second.parent, whole.parent} == {served.simulation.gpus[0].uuid, ""}
    assert (first.mig_profile, first.memory_mib, first.sms, first.promised_clients) == (
        "3g.40gb",
        40192,
        42,
        20,
    )
    assert (whole.mig_profile, whole.promised_clients) == ("", 48)
    for gpu in (first, second, whole):
        environment = processes.environment_of(served.daemon(gpu.label)) or {}
        assert environment["CUDA_VISIBLE_DEVICES"] == gpu.uuid
        assert served.domain(gpu.label).kind == ("alone" if gpu is whole else "instance")


def test_an_instance_that_goes_drains_and_its_program_goes_on(served: Machine) -> None:
    program = on(served, "gpu0-mig2")
    grant = served.grant_of(program)

    served.divide("3g.40gb", "2g.20gb")
    drained = served.in_state(State.DRAINING, "gpu0-mig2")

    assert drained.reason == GONE
    eventually(
        lambda: grant.gpus[0] not in {gpu.uuid for gpu in served.node().gpus},
        "it is no GPU any more",
    )
    assert program.running
    kept = served.grant_of(program)
    assert (kept.gpus, kept.memory_mib) == (grant.gpus, grant.memory_mib)
    assert (kept.used_mib, kept.clients) == (None, None), "nobody can see them any more"
    assert served.limit_mib("gpu0-mig2") == grant.memory_mib

    program.kill()
    served.until_ready()
    assert names(served) == {"gpu0-mig1", "gpu0-mig3", "gpu1"}
    eventually(lambda: not served.folder_of("gpu0-mig2").record.exists(), "its record is gone")


def test_a_gpu_with_mig_on_and_no_instance_serves_nothing_and_says_why(served: Machine) -> None:
    served.divide()
    served.card(0).mig = True
    refused = comes(served, State.REFUSED, "gpu0")

    assert (
        "which has no instance yet; create one (nvidia-smi mig -cgi PROFILE -C), or switch MIG off"
        in refused.reason
    )
    assert first_line(served).startswith("gpu0 is refused: MIG is on for ")
    assert "domain-stopped" in found(served)
    program = served.client(30)
    assert served.gpu_of(program) == "gpu1"
