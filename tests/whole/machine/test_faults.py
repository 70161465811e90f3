"""A program's fault takes the others on its GPU with it; the GPU is back once the last of them is gone or was ended."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from mpsd.model.domain import State
from mpsd.model.node_view import Fault
from mpsd.mps import drain
from mpsd.platform import records
from tests.whole.machine.conftest import parted_on
from tests.whole.machine.machine import Machine, Program, eventually

ILLEGAL_ADDRESS = "700:CUDA_ERROR_ILLEGAL_ADDRESS"
KILLED = 128 + 9
GRACE_S = 1.0


def policy(**more_s: float) -> dict[str, Any]:
    return {"canary": "skip", "graces": {"command_s": 1, "start_s": 5, "fault_grace_s": GRACE_S, **more_s}}


@pytest.fixture(scope="module")
def parted() -> Iterator[Machine]:
    """Two A30 where who lingers is ended soon."""
    yield from parted_on("A30×2", **policy())


def lingers(machine: Machine, gib: int = 4, *, faulting: bool) -> Program:
    """A program that stays after the fault, once it is where it stays."""
    program = machine.run(f"--gpu-mem {gib}", "sim-cuda", *(["fault"] if faulting else []), "linger")
    program.heard("lingering")
    return program


def fault_of(machine: Machine, name: str = "gpu0", known: int = 0) -> Fault:
    """The one fault of the domain beside those that were known before, once it is written down."""
    eventually(lambda: machine.record(name).faults_total > known, "the fault is written down")
    record = machine.record(name)
    assert record.faults_total == known + 1
    return record.faults[-1]


def healed(machine: Machine, name: str = "gpu0") -> Fault:
    eventually(lambda: machine.record(name).faults[-1].healed_at, "the fault has healed")
    return machine.record(name).faults[-1]


def hit_pids(fault: Fault) -> set[int]:
    return {hit.process.pid for hit in fault.hit}


def test_a_fault_closes_the_domain_until_its_process_is_gone(machine: Machine) -> None:
    machine.up()
    neighbour = machine.client(4)
    culprit = machine.run("--gpu-mem 4", "sim-cuda", "fault", "linger")
    assert neighbour.heard("broke") == ILLEGAL_ADDRESS
    machine.in_state(State.FAULT)
    refused = machine.run("--gpu-mem 4", "true")
    assert refused.exit_code() == 1
    assert "gpu0 is in fault: a program's fault has ended the work of every program on the GPU" in refused.errors

    culprit.kill()

    assert machine.in_state(State.READY).reason == ""
    machine.client(4)
    assert machine.domain().restarts == 0


def test_those_who_linger_are_ended_and_the_gpu_serves_again_while_its_neighbour_never_notices(apart: Machine) -> None:
    control, before = apart.part("control"), [domain.restarts for domain in apart.node().domains]
    unharmed, known = apart.record("gpu0").faults, apart.record("gpu1").faults_total
    neighbour = apart.client(20)
    bystander = lingers(apart, 7, faulting=False)
    assert [apart.gpu_of(program) for program in (neighbour, bystander)] == ["gpu0", "gpu1"]
    culprit = apart.run("--gpu-mem 7", "sim-cuda", "fault", "linger")
    assert culprit.heard("bad") == ILLEGAL_ADDRESS

    fault = fault_of(apart, "gpu1", known)  # test_fault_times tells how soon
    assert hit_pids(fault) == {bystander.pid, culprit.pid}
    # logs and records live long
    assert {hit.command.partition(" ")[2] for hit in fault.hit} == {"[arguments redacted]"}

    assert (bystander.exit_code(), culprit.exit_code()) == (KILLED, KILLED)
    fault = healed(apart, "gpu1")
    assert all((hit.ended_at or 0) - fault.at >= GRACE_S for hit in fault.hit)
    apart.in_state(State.READY, "gpu1")
    assert apart.gpu_of(apart.client(20)) == "gpu1"
    assert neighbour.running
    assert apart.record("gpu0").faults == unharmed
    ended = control.logged("client ended", domain="gpu1")
    assert {line["pid"] for line in ended} == {bystander.pid, culprit.pid}
    assert [domain.restarts for domain in apart.node().domains] == before


def test_a_client_of_another_gpu_of_the_same_daemon_lives_on(pair: Machine) -> None:
    pair.set_policy(domains=[[0, 1]], **policy())
    service = pair.service("up")
    eventually(lambda: service.logged("state", domain="gpu0-1", state="ready"), "the domain of both is ready")
    neighbour = pair.client(20)
    culprit = lingers(pair, 7, faulting=True)
    assert pair.gpu_of(neighbour) != pair.gpu_of(culprit)

    assert culprit.exit_code() == KILLED

    assert hit_pids(healed(pair, "gpu0-1")) == {culprit.pid}
    pair.client(7)
    assert neighbour.running


def test_who_was_hit_is_known_though_they_are_gone_at_once(apart: Machine) -> None:
    control, known = apart.part("control"), apart.record().faults_total
    bystanders = [apart.client(4), apart.client(4)]
    culprit = apart.run("--gpu-mem 4", "sim-cuda", "fault")
    programs = [*bystanders, culprit]
    assert culprit.exit_code() == 0
    assert [bystander.exit_code() for bystander in bystanders] == [4, 4]

    fault = fault_of(apart, known=known)

    assert fault.pids >= {program.pid for program in bystanders}
    assert fault.pids <= {program.pid for program in programs}
    assert hit_pids(fault) >= {program.pid for program in bystanders}
    assert healed(apart).hit == fault.hit
    assert apart.run("--gpu-mem 4 --wait --timeout 15", "sim-cuda", "fault").exit_code() == 0
    eventually(lambda: apart.record().faults_total == known + 2 and healed(apart), "one more is counted")
    *_, first, second = before = apart.record().faults
    assert first.at < second.at

    control.kill()
    control = apart.service("control")
    eventually(lambda: control.logged("state", domain="gpu0", state="ready"), "the next control serves")
    assert apart.record().faults == before, "and takes nothing in the log for new"


def test_the_next_control_ends_whom_the_one_before_it_had_seen_linger(apart: Machine) -> None:
    control, known = apart.part("control"), apart.record().faults_total
    culprit = lingers(apart, faulting=True)
    before = fault_of(apart, known=known)
    control.kill()
    assert culprit.running

    control = apart.service("control")

    assert culprit.exit_code() == KILLED
    after = healed(apart)
    eventually(lambda: control.logged("state", domain="gpu0", state="ready"), "the domain serves")
    assert [line["state"] for line in control.logged("state", domain="gpu0")] == ["starting", "fault", "ready"]
    assert (after.at, hit_pids(after)) == (before.at, {culprit.pid})
    assert apart.record().faults_total == known + 1


def test_a_fault_that_happened_while_no_control_ran_is_found_in_the_log(apart: Machine) -> None:
    control, known = apart.part("control"), apart.record().faults_total
    bystander = lingers(apart, faulting=False)
    culprit = apart.run("--gpu-mem 4", "sim-cuda", "hold=0.5", "fault", "linger")
    culprit.heard("ready")
    control.kill()
    assert culprit.heard("bad") == ILLEGAL_ADDRESS

    apart.service("control")

    assert (bystander.exit_code(), culprit.exit_code()) == (KILLED, KILLED)
    fault_of(apart, known=known)
    assert hit_pids(healed(apart)) == {bystander.pid, culprit.pid}
    apart.in_state(State.READY)
    apart.client(4)


def test_a_process_that_is_not_the_very_one_is_not_ended_and_the_daemon_is_replaced_in_the_end(
    machine: Machine,
) -> None:
    machine.set_policy(**policy(wedged_limit_s=1))
    control, _agent = machine.apart()
    lingering = lingers(machine, faulting=True)
    fault = fault_of(machine)
    control.kill()
    (hit,) = fault.hit
    another = replace(hit, process=replace(hit.process, start_ticks=hit.process.start_ticks - 1))
    records.write(machine.folder_of().record, replace(machine.record(), faults=(replace(fault, hit=(another,)),)))
    daemon = machine.recorded_daemon()

    control = machine.service("control")

    machine.new_daemon(daemon)
    assert lingering.running
    assert not control.logged("client ended")
    (killed,) = control.logged("daemon killed")
    assert killed["reason"] == "its server is still in FAULT 2 s after the fault"
    machine.client(4)


def test_a_drain_is_not_held_up_by_those_who_linger(apart: Machine) -> None:
    culprit = lingers(apart, faulting=True)
    drain.ask(apart.folder_of(), "a new driver")

    apart.in_state(State.DRAINED)

    assert culprit.exit_code() == KILLED
    drain.withdraw(apart.folder_of())
    apart.in_state(State.READY)


FAULT = "Server is handling a fatal GPU error."


def test_a_fault_that_a_tenant_forges_in_the_log_is_not_recorded(machine: Machine) -> None:
    """By a command, whose words the daemon logs; and by whole lines, should a daemon ever let a line break through."""
    control = machine.up()
    neighbour, known = machine.client(4), machine.record().faults_total
    (server,) = machine.ask_daemon("get_server_list").split()
    prefix = f"[2026-11-21 01:52:04.061 Server   {server}]"
    for words in (FAULT, f"{prefix} {FAULT}", f"x\x0b{prefix} {FAULT}"):
        assert "Unknown command" in machine.ask_daemon(words)
    with machine.folder_of().log.open("a") as log:
        log.write(
            f"{prefix} {FAULT}\n{prefix} Client {{PID: {neighbour.pid}, Context ID: 1}} on device 0 to be torn down\n"
        )
    eventually(lambda: control.logged("fault not recorded", pids=[neighbour.pid]), "the log's word is not believed")
    assert control.logged("fault") == []
    assert machine.record().faults_total == known
    assert neighbour.running
