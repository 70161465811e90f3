"""A program's fault takes the others on its GPU with it; the GPU is back once the last of them is gone or was ended."""

from collections.abc import Sequence
from dataclasses import replace

from mpsd.core.domain_states import State
from mpsd.core.node_view import Fault
from mpsd.edge import drain_requests, processes, records
from tests.roles.machine import Machine, Program, eventually

ILLEGAL_ADDRESS = "700:CUDA_ERROR_ILLEGAL_ADDRESS"
KILLED = 128 + 9
GRACE_S = 1.0
SEEN_S = HEALED_S = 0.5  # what it may take to see a fault, and to serve again after the grace


def set_policy(machine: Machine, *, domains: Sequence[Sequence[int]] = (), **more_s: float) -> None:
    graces = {"command_s": 1, "start_s": 5, "fault_grace_s": GRACE_S, **more_s}
    machine.set_policy(canary="skip", domains=[list(one) for one in domains], graces=graces)


def lingers(machine: Machine, gib: int = 4, *, faulting: bool) -> Program:
    """A program that stays after the fault, once it is where it stays."""
    program = machine.run(f"--gpu-mem {gib}", "sim-cuda", *(["fault"] if faulting else []), "linger")
    program.heard("lingering")
    return program


def fault_of(machine: Machine, name: str = "gpu0") -> Fault:
    """The one fault of the domain, once it is known."""
    (fault,) = eventually(lambda: machine.record(name).faults, "the fault is written down", SEEN_S)
    return fault


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
    assert "gpu0 is in fault: a program's fault has ended every program on the GPU" in refused.errors

    culprit.kill()

    assert machine.in_state(State.READY).reason == ""
    machine.client(4)
    assert machine.domain().restarts == 0


def test_those_who_linger_are_ended_and_the_gpu_serves_again_while_its_neighbour_never_notices(pair: Machine) -> None:
    set_policy(pair)
    control, _agent = pair.apart()
    neighbour = pair.client(20)
    bystander = lingers(pair, 7, faulting=False)
    assert [pair.gpu_of(program) for program in (neighbour, bystander)] == ["gpu0", "gpu1"]
    culprit = pair.run("--gpu-mem 7", "sim-cuda", "fault", "linger")
    assert culprit.heard("bad") == ILLEGAL_ADDRESS

    eventually(lambda: pair.record("gpu1").state is State.FAULT, "the fault is seen", SEEN_S)
    fault = fault_of(pair, "gpu1")
    assert hit_pids(fault) == {bystander.pid, culprit.pid}
    assert all("sim" in hit.command and processes.is_alive(hit.process) for hit in fault.hit)

    assert (bystander.exit_code(), culprit.exit_code()) == (KILLED, KILLED)
    fault = healed(pair, "gpu1")
    assert all(hit.ended_at for hit in fault.hit)
    assert GRACE_S <= (fault.healed_at or 0) - fault.at <= GRACE_S + HEALED_S
    pair.in_state(State.READY, "gpu1")
    assert pair.gpu_of(pair.client(20)) == "gpu1"
    assert neighbour.running
    assert pair.record("gpu0").faults == ()
    assert {line["pid"] for line in control.logged("client ended")} == {bystander.pid, culprit.pid}
    assert (pair.domain("gpu1").restarts, pair.domain("gpu0").restarts) == (0, 0)


def test_a_client_of_another_gpu_of_the_same_daemon_lives_on(pair: Machine) -> None:
    set_policy(pair, domains=[[0, 1]])
    service = pair.service("up")
    eventually(lambda: service.logged("state", domain="gpu0-1", state="ready"), "the domain of both is ready")
    neighbour = pair.client(20)
    culprit = lingers(pair, 7, faulting=True)
    assert pair.gpu_of(neighbour) != pair.gpu_of(culprit)

    assert culprit.exit_code() == KILLED

    assert hit_pids(healed(pair, "gpu0-1")) == {culprit.pid}
    pair.client(7)
    assert neighbour.running


def test_who_was_hit_is_known_though_they_are_gone_at_once(machine: Machine) -> None:
    set_policy(machine)
    control, _agent = machine.apart()
    bystanders = [machine.client(4), machine.client(4)]
    culprit = machine.run("--gpu-mem 4", "sim-cuda", "fault")
    programs = [*bystanders, culprit]
    assert culprit.exit_code() == 0
    assert [bystander.exit_code() for bystander in bystanders] == [4, 4]

    fault = fault_of(machine)

    assert fault.pids >= {program.pid for program in bystanders}
    assert fault.pids <= {program.pid for program in programs}
    assert hit_pids(fault) >= {program.pid for program in bystanders}
    assert healed(machine).hit == fault.hit
    assert machine.run("--gpu-mem 4 --wait --timeout 15", "sim-cuda", "fault").exit_code() == 0
    eventually(lambda: machine.record().faults_total == 2 and healed(machine), "one more is counted")
    first, second = machine.record().faults
    assert first.at < second.at

    control.kill()
    control = machine.service("control")
    eventually(lambda: control.logged("state", state="ready"), "the next control serves")
    assert machine.record().faults == (first, second), "and takes nothing in the log for new"


def test_the_next_control_ends_whom_the_one_before_it_had_seen_linger(machine: Machine) -> None:
    set_policy(machine)
    control, _agent = machine.apart()
    culprit = lingers(machine, faulting=True)
    before = fault_of(machine)
    control.kill()
    assert culprit.running

    control = machine.service("control")

    assert culprit.exit_code() == KILLED
    after = healed(machine)
    eventually(lambda: control.logged("state", state="ready"), "the domain serves")
    assert [line["state"] for line in control.logged("state")] == ["starting", "fault", "ready"]
    assert (after.at, hit_pids(after)) == (before.at, {culprit.pid})
    assert machine.record().faults_total == 1


def test_a_fault_that_happened_while_no_control_ran_is_found_in_the_log(machine: Machine) -> None:
    set_policy(machine)
    control, _agent = machine.apart()
    bystander = lingers(machine, faulting=False)
    culprit = machine.run("--gpu-mem 4", "sim-cuda", "hold=0.5", "fault", "linger")
    culprit.heard("ready")
    control.kill()
    assert culprit.heard("bad") == ILLEGAL_ADDRESS

    machine.service("control")

    assert (bystander.exit_code(), culprit.exit_code()) == (KILLED, KILLED)
    assert hit_pids(healed(machine)) == {bystander.pid, culprit.pid}
    machine.in_state(State.READY)
    machine.client(4)


def test_a_process_that_is_not_the_very_one_is_not_ended_and_the_daemon_is_replaced_in_the_end(
    machine: Machine,
) -> None:
    set_policy(machine, wedged_limit_s=1)
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


def test_a_drain_is_not_held_up_by_those_who_linger(machine: Machine) -> None:
    set_policy(machine)
    machine.up()
    culprit = lingers(machine, faulting=True)
    drain_requests.ask(machine.folder_of(), "a new driver")

    machine.in_state(State.DRAINED)

    assert culprit.exit_code() == KILLED
    drain_requests.withdraw(machine.folder_of())
    machine.in_state(State.READY)
