"""The canary at the start of a domain: what it lets through, what it refuses, and whom it never
disturbs."""

from collections.abc import Iterator

import pytest

from mpsd.model.client_limits import DENY_MIB
from mpsd.model.domain import State
from mpsd.model.node_view import Canary
from mpsd.platform import processes
from mpsd.simulator.card import Quirk
from tests.whole.machine.conftest import on_machine
from tests.whole.machine.machine import Machine, Service, eventually


@pytest.fixture
def machine() -> Iterator[Machine]:
    """One A30, on which no canary was ever run."""
    yield from on_machine("A30", tried=False)


@pytest.fixture
def pair() -> Iterator[Machine]:
    yield from on_machine("A30×2", tried=False)


def canary_of(machine: Machine, name: str = "gpu0") -> Canary:
    found = machine.record(name).canary
    assert found is not None
    return found


def refusal(machine: Machine, name: str = "gpu0") -> str:
    path = machine.folder_of(name).record
    eventually(
        lambda: path.exists() and machine.record(name).state == State.REFUSED, "it is refused"
    )
    return machine.record(name).reason


def passes(service: Service) -> int:
    return len(service.logged("canary passed"))


def test_it_passes_once_and_leaves_every_gpu_shut(pair: Machine) -> None:
    service = pair.up()
    before = canary_of(pair)
    assert (before.problem, before.warning, before.sms) == ("", "", 8)
    assert before.context_mib == pair.simulation.gpus[0].context_mib_by_sms[8]
    assert before.boot_id == processes.boot_id()
    assert passes(service) == 2
    for name in ("gpu0", "gpu1"):
        assert pair.limit_mib(name) == DENY_MIB
        (server,) = pair.record(name).servers
        assert pair.ask_daemon(f"get_device_pinned_mem_limit {server} 0", name) == f"{DENY_MIB}M"

    old = pair.daemon()
    pair.kill(old)
    pair.new_daemon(old)
    service.kill()
    again = pair.up()

    assert canary_of(pair) == before
    assert (passes(service), passes(again)) == (2, 0)


def test_a_driver_that_does_not_obey_gets_no_programs_until_it_does(machine: Machine) -> None:
    machine.set_policy(restarts={"longest_s": 1})
    card = machine.card()
    card.quirks = Quirk.IGNORES_MEMORY_LIMITS
    machine.service("up")
    assert refusal(machine).startswith(
        "the canary failed under driver 580.159.04: gpu0: a client under a server limit"
    )
    assert "MiB free: this driver does not enforce memory limits" in refusal(machine)
    assert not (machine.folder_of().client / "control").exists()
    assert not machine.folder_of().gate.exists()
    asked = machine.run("--gpu-mem 4", "true")
    assert asked.exit_code() == 1
    assert "this driver does not enforce memory limits" in asked.errors

    card.quirks = Quirk(0)

    machine.until_ready()
    assert machine.record().restarts_total == 0
    machine.client(7)
