"""The canary at the start of a domain: what it lets through, what it refuses, and whom it never disturbs."""

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from mpsd.model.client_limits import DENY_MIB
from mpsd.model.domain import State
from mpsd.model.node_view import Canary
from mpsd.platform import processes, records
from mpsd.simulator.card import Quirk
from tests.whole.machine.conftest import on_machine
from tests.whole.machine.machine import Machine, Service, eventually


@pytest.fixture
def machine() -> Iterator[Machine]:
    """One A30, on which no canary was ever run."""
    yield from on_machine("A30", tried=False)


@pytest.fixture
def pair() -> Iterator[Machine]:
    """Two of them."""
    yield from on_machine("A30×2", tried=False)


def canary_of(machine: Machine, name: str = "gpu0") -> Canary:
    found = machine.record(name).canary
    assert found is not None
    return found


def refusal(machine: Machine, name: str = "gpu0") -> str:
    """Why the domain is refused, once it is."""
    path = machine.folder_of(name).record
    eventually(lambda: path.exists() and machine.record(name).state == State.REFUSED, "it is refused")
    return machine.record(name).reason


def replace_canary_program(machine: Machine, script: str) -> None:
    """Puts a shell script in place of the CUDA client; the real one is beside it, as `real-cuda`."""
    there = machine.program("sim-cuda")
    there.rename(there.with_name("real-cuda"))
    there.write_text(f"#!/bin/sh\n{script}\n")
    there.chmod(0o755)


def restore_canary_program(machine: Machine) -> None:
    there = machine.program("sim-cuda")
    there.with_name("real-cuda").replace(there)


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
    assert refusal(machine).startswith("the canary failed under driver 580.159.04: gpu0: a client under a server limit")
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


def test_a_domain_of_two_gpus_is_tried_on_each(pair: Machine) -> None:
    pair.set_policy(domains=[[0, 1]])
    pair.card(0).quirks = Quirk.IGNORES_THREAD_PERCENT
    pair.card(1).quirks = Quirk.IGNORES_MEMORY_LIMITS
    pair.service("control")
    reason = refusal(pair, "gpu0-1")
    assert (
        "gpu0: a client under a server limit of 1024 MiB got 56 of 56 SMs, and 10 % of the threads are about" in reason
    )
    assert "gpu1: a client under a server limit of 1024 MiB saw 2" in reason


def test_a_policy_may_let_it_serve_with_a_warning_or_not_look_at_all(pair: Machine) -> None:
    pair.card(0).quirks = Quirk.IGNORES_MEMORY_LIMITS
    pair.card(1).quirks = Quirk.DEAR_CONTEXTS
    pair.set_policy(canary="warn")
    service = pair.up()
    (failed,) = service.logged("canary failed")
    assert failed["domain"] == "gpu0"
    (dear,) = service.logged("canary passed")
    facts = pair.simulation.gpus[1].context_mib_by_sms[8]
    assert dear["reason"].startswith(f"gpu1: a context on 8 SMs takes {facts + 100} MiB, not {facts} as in limits")
    pair.stop()
    pair.set_policy(canary="skip")
    without = pair.up()
    assert pair.record().canary is None
    assert not without.logged("canary failed")


def test_a_client_that_hangs_is_contained_and_the_domain_is_tried_again(machine: Machine) -> None:
    machine.set_policy(graces={"command_s": 1, "start_s": 1, "drain_s": 30}, restarts={"longest_s": 1})
    replace_canary_program(machine, "exec sleep 600")
    service = machine.service("control")
    assert "did not end within 1 s" in refusal(machine)
    restore_canary_program(machine)
    eventually(lambda: service.logged("state", state="ready"), "it passes when it is tried again")


def test_a_stop_does_not_wait_for_a_client_that_hangs(machine: Machine) -> None:
    hangs = machine.run_directory / "hangs"
    replace_canary_program(machine, f"touch {hangs}; exec sleep 600")
    service = machine.service("control")
    eventually(hangs.exists, "it hangs")
    service.send(15)
    assert service.exit_code() == 0
    assert machine.processes_left() == {}
    hangs.unlink()


def test_a_daemon_that_dies_under_it_is_started_again_and_tried_again(machine: Machine) -> None:
    hangs = machine.run_directory / "hangs"
    once = f'test -e {hangs} && exec "${{0%/*}}/real-cuda" "$@"; touch {hangs}; exec sleep 600'
    replace_canary_program(machine, once)
    service = machine.service("control")
    eventually(hangs.exists, "it hangs")
    machine.kill(machine.recorded_daemon())
    eventually(lambda: service.logged("state", state="ready"), "the next daemon serves")
    assert machine.record().restarts_total == 1
    assert canary_of(machine).problem == ""
    hangs.unlink()


def test_the_programs_of_an_adopted_daemon_are_not_disturbed_by_one_that_was_never_run(machine: Machine) -> None:
    """As after an upgrade from an mpsd without a canary."""
    machine.up().kill()
    records.write(machine.folder_of().record, replace(machine.record(), canary=None))
    service = machine.up()
    assert passes(service) == 1  # nobody was on it
    client = machine.client(7)
    service.kill()
    records.write(machine.folder_of().record, replace(machine.record(), canary=None))
    daemon = machine.recorded_daemon()

    again = machine.up()

    assert (machine.daemon(), passes(again), machine.record().canary) == (daemon, 0, None)
    assert client.running
    assert machine.limit_mib() == 7 * 1024


def test_a_daemon_whose_restart_programs_wait_for_is_not_tried_and_another_driver_is(machine: Machine) -> None:
    service = machine.up()
    program = machine.run("--gpu-mem 7", "sleep", "600")
    eventually(lambda: machine.holders == {program.pid}, "it has its grant")
    service.kill()
    old = machine.recorded_daemon()
    stale = replace(canary_of(machine), driver="570.1")
    records.write(machine.folder_of().record, replace(machine.record(), canary=stale))
    os.kill(old, 9)

    second = machine.up()

    assert (passes(second), canary_of(machine)) == (0, stale)
    program.kill()
    machine.until_no_grants()
    eventually(lambda: machine.limit_mib() == DENY_MIB, "nobody is let in")
    old = machine.daemon()
    os.kill(old, 9)
    machine.new_daemon(old)
    assert (passes(second), canary_of(machine).driver) == (1, "580.159.04")
