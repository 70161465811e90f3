"""A program's fault takes the others on its GPU with it; the GPU is back once the last of them is gone or was ended."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from mpsd.model.domain import State
from mpsd.model.node_view import Fault
from mpsd.mps import drain
from mpsd.platform import records
from mpsd.simulator.mps import messages
from tests.platform.pod_cgroup import needs_cgroups
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


def settled(machine: Machine, known: int = 0) -> Fault:
    """The one fault beside those that were known before, once it is known who ended before it."""
    fault_of(machine, known=known)
    eventually(lambda: machine.record().faults[-1].causes is not None, "its causes are settled")
    return machine.record().faults[-1]


def test_a_fault_closes_the_domain_until_its_process_is_gone(machine: Machine) -> None:
    machine.set_policy(**policy(fault_grace_s=60))
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


@needs_cgroups  # by which programs are told apart
def test_who_was_hit_is_known_though_they_are_gone_at_once(apart: Machine) -> None:
    control = apart.part("control")
    for _time in range(2):
        known = apart.record().faults_total
        bystanders = [apart.client(4), apart.client(4)]
        apart.until_listed(*(one.pid for one in bystanders))
        culprit = apart.run("--gpu-mem 4", "sim-cuda", "fault")
        assert culprit.exit_code() == 0
        assert [bystander.exit_code() for bystander in bystanders] == [4, 4]

        fault = settled(apart, known)

        pids = {program.pid for program in bystanders}
        assert pids <= hit_pids(fault) <= pids | {culprit.pid}
        assert fault.causes == ()
        assert healed(apart).hit == fault.hit
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


def test_a_fault_that_happened_while_no_control_ran_is_found_while_it_lasts(apart: Machine) -> None:
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


# -- who did it ----------------------------------------------------------------------------------------------------


class InMidKernel:
    """A client whose kernels last 100 ms each, once it computes. Until then it waits to be told to."""

    def __init__(self, machine: Machine, *more: str) -> None:
        there = machine.run_directory / f"step-{time.monotonic_ns()}"
        os.mkfifo(there)
        self._go = os.open(there, os.O_RDWR)  # so that neither side waits for the other to open it
        words = f"exec sim-cuda kernel=100 step launch=0.2 {' '.join(more)} launch=60 < {there}"
        self.program = machine.run("--gpu-mem 1", "sh", "-c", words)
        self.program.heard("ready")
        there.unlink()

    @property
    def pid(self) -> int:
        return self.program.pid

    def go_on(self) -> None:
        os.write(self._go, b"\n")
        os.close(self._go)

    def end(self, signum: signal.Signals) -> None:
        """In mid-kernel."""
        self.go_on()
        self.program.heard("launches_per_s")
        self.program.send(signum)


def kill(one: InMidKernel) -> None:
    one.end(signal.SIGKILL)


def terminate(one: InMidKernel) -> None:
    one.end(signal.SIGTERM)


@pytest.mark.parametrize(
    ("end", "more", "how"),
    [
        (kill, (), "killed by SIGKILL"),
        (terminate, (), "killed by SIGTERM"),
        (InMidKernel.go_on, ("exit",), "exit code 0"),
    ],
)
def test_a_client_that_ends_in_mid_kernel_is_named_as_the_cause_of_the_fault(
    apart: Machine, end: Callable[[InMidKernel], None], more: tuple[str, ...], how: str
) -> None:
    known = apart.record().faults_total
    bystander, neighbour, culprit = lingers(apart, 2, faulting=False), apart.client(2), InMidKernel(apart, *more)
    apart.until_listed(bystander.pid, neighbour.pid, culprit.pid)

    end(culprit)

    assert neighbour.heard("broke") == ILLEGAL_ADDRESS
    fault = settled(apart, known)
    assert [(one.process.pid, one.how) for one in fault.causes or ()] == [(culprit.pid, how)]
    assert hit_pids(fault) == {bystander.pid, neighbour.pid}
    (cause,) = eventually(lambda: apart.domain().faults.causes, "the status names it")
    assert (cause.pod, cause.how) == ("", how)


@needs_cgroups  # by which programs are told apart
def test_the_cause_is_named_though_all_are_gone_before_the_server_can_be_asked(apart: Machine) -> None:
    known = apart.record().faults_total
    neighbour, culprit = apart.client(2), InMidKernel(apart)
    apart.until_listed(neighbour.pid, culprit.pid)

    kill(culprit)

    assert neighbour.exit_code() == 4
    fault = settled(apart, known)
    assert [one.process.pid for one in fault.causes or ()] == [culprit.pid]
    assert hit_pids(fault) == {neighbour.pid}


# -- what tenants write into the log -------------------------------------------------------------------------------


def forge(machine: Machine, *pids: int) -> None:
    """Whole lines that report a fault and name these processes, as any tenant may have the daemon write them."""
    prefix = f"[2026-11-28 01:00:00.000 Server {machine.record().servers[0]:>5}]"
    texts = [f"Client {{PID: {pid}, Context ID: 0}} connected" for pid in pids]
    texts += ["Server is handling a fatal GPU error."]
    texts += [f"Client {{PID: {pid}, Context ID: 1}} on device 0 to be torn down" for pid in pids]
    connection = messages.connect(str(machine.folder_of().client / "control"))
    assert connection
    with connection:
        messages.send(connection, {"words": "\n".join(["x", *(f"{prefix} {text}" for text in texts)])})
        assert connection.recv(4096)


def until_refused(machine: Machine, *pids: int) -> None:
    """Until control has looked for the fault that was forged with these pids, and found none."""
    refused = machine.part("control").logged
    eventually(lambda: refused("fault not recorded", pids=sorted(pids)), "the log's word is not believed")


def test_a_fault_that_a_tenant_forges_is_not_recorded_whoever_it_names(apart: Machine) -> None:
    known = apart.record()
    neighbour, stranger = apart.client(4), apart.start(["sleep", "600"])
    apart.until_listed(neighbour.pid)
    for pids in ((neighbour.pid,), (stranger.pid,), (neighbour.pid, stranger.pid)):
        forge(apart, *pids)
        until_refused(apart, *pids)
    stranger.kill()
    forge(apart, stranger.pid, 1)
    until_refused(apart, stranger.pid, 1)
    assert apart.record().faults == known.faults
    assert neighbour.running


def test_clients_of_one_tenant_that_end_together_make_no_fault_of_forged_lines(apart: Machine) -> None:
    known = apart.record()
    tenant = apart.run("--gpu-mem 2", "sh", "-c", "sim-cuda hold & sim-cuda hold & wait")
    eventually(lambda: tenant.output.count("ready") == 2, "both are ready")
    pids = [line["ready"] for line in tenant.lines if "ready" in line]
    apart.until_listed(*pids)
    for pid in pids:
        apart.kill(pid)

    forge(apart, *pids)

    until_refused(apart, *pids)
    assert apart.record().faults == known.faults


def test_forged_lines_spare_nobody_who_was_killed_in_mid_kernel_and_name_no_other(apart: Machine) -> None:
    known = apart.record().faults_total
    bystander, stranger = lingers(apart, 2, faulting=False), apart.start(["sleep", "600"])
    culprit = InMidKernel(apart)
    apart.until_listed(bystander.pid, culprit.pid)

    forge(apart, culprit.pid, stranger.pid)
    stranger.kill()
    kill(culprit)

    fault = settled(apart, known)
    assert [one.process.pid for one in fault.causes or ()] == [culprit.pid]
    assert hit_pids(fault) == {bystander.pid}
