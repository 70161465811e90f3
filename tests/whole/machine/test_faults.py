"""A program's fault takes the others on its GPU with it; the GPU is back once the last of them is
gone or was ended."""

import os
import time
from typing import Any

from mpsd.model.domain import State
from mpsd.model.node_view import Fault
from tests.contract import raw_control
from tests.whole.machine.machine import MPSD, Machine, Program, eventually

ILLEGAL_ADDRESS = "700:CUDA_ERROR_ILLEGAL_ADDRESS"
KILLED = 128 + 9
GRACE_S = 1.0


def policy(**more_s: float) -> dict[str, Any]:
    return {
        "canary": "skip",
        "graces": {"command_s": 1, "start_s": 5, "fault_grace_s": GRACE_S, **more_s},
    }


GPUS, POLICY = "A30×2", policy()


def lingers(machine: Machine, gib: int = 4, *, faulting: bool) -> Program:
    program = machine.run(
        f"--gpu-mem {gib}", "sim-cuda", *(["fault"] if faulting else []), "linger"
    )
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


def test_those_who_linger_are_ended_and_the_gpu_serves_again_while_its_neighbour_never_notices(
    apart: Machine,
) -> None:
    control, before = apart.part("control"), [domain.restarts for domain in apart.node().domains]
    unharmed, known = apart.record("gpu0").faults, apart.record("gpu1").faults_total
    neighbour = apart.client(20)
    bystander = lingers(apart, 7, faulting=False)
    assert [apart.gpu_of(program) for program in (neighbour, bystander)] == ["gpu0", "gpu1"]
    culprit = apart.run("--gpu-mem 7", "sim-cuda", "fault", "linger")
    assert culprit.heard("bad") == ILLEGAL_ADDRESS

    fault = fault_of(apart, "gpu1", known)
    assert hit_pids(fault) == {bystander.pid, culprit.pid}
    # logs and records live long
    assert not [hit.command for hit in fault.hit if "linger" in hit.command]

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


# -- who did it


class InMidKernel:
    """A client whose kernels last 100 ms each, once it computes. Until then it waits to be told
    to."""

    def __init__(self, machine: Machine) -> None:
        there = machine.run_directory / f"step-{time.monotonic_ns()}"
        os.mkfifo(there)
        self._go = os.open(there, os.O_RDWR)  # so that neither side waits for the other to open it
        words = f"exec sim-cuda kernel=100 step launch=0.2 launch=60 < {there}"
        self.program = machine.run("--gpu-mem 1", "sh", "-c", words)
        self.program.heard("ready")
        there.unlink()

    @property
    def pid(self) -> int:
        return self.program.pid

    def kill(self) -> None:
        """In mid-kernel."""
        os.write(self._go, b"\n")
        os.close(self._go)
        self.program.heard("launches_per_s")
        self.program.kill()


def test_a_client_that_is_killed_in_mid_kernel_is_named_as_the_cause(apart: Machine) -> None:
    known = apart.record().faults_total
    bystander, neighbour, culprit = (
        lingers(apart, 2, faulting=False),
        apart.client(2),
        InMidKernel(apart),
    )
    apart.until_listed(bystander.pid, neighbour.pid, culprit.pid)
    grants = [apart.grant_of(one).id for one in (bystander, neighbour, culprit.program)]

    culprit.kill()

    assert neighbour.heard("broke") == ILLEGAL_ADDRESS
    fault = settled(apart, known)
    assert [(one.process.pid, one.how) for one in fault.causes or ()] == [
        (culprit.pid, "killed by SIGKILL")
    ]
    assert hit_pids(fault) == {bystander.pid, neighbour.pid}
    (cause,) = eventually(lambda: apart.domain().faults.causes, "the status names it")
    assert (cause.pod, cause.how) == ("", "killed by SIGKILL")
    assert cause.program.startswith(f"{grants[2]}: pid {culprit.pid} "), (
        "though its grant has ended"
    )
    named = {one.program.partition(" ")[0]: one.processes for one in apart.domain().faults.hit}
    assert named == dict.fromkeys(grants[:2], 1)


def test_a_client_that_mpsd_ends_in_mid_kernel_is_named_as_ended_by_it(machine: Machine) -> None:
    machine.set_policy(**policy(end_drain_s=0.5))
    machine.up()
    neighbour = machine.client(2)
    culprit = machine.run("--gpu-mem 1", "sim-cuda", "kernel=60000", "launch=60000")
    machine.until_listed(neighbour.pid, culprit.pid)
    stop = machine.start([MPSD, "stop", machine.grant_of(culprit).id, "--grace", "0"])
    assert stop.exit_code() == 0, stop
    (cause,) = settled(machine).causes or ()
    assert (cause.process.pid, cause.how) == (culprit.pid, "ended by mpsd (mpsd stop)")
    assert neighbour.heard("broke") == ILLEGAL_ADDRESS


# -- what tenants write into the log


def write(machine: Machine, *texts: str, name: str = "gpu0") -> None:
    """Whole lines of its server and its daemon, as any tenant may have the daemon write them."""
    lines = [f"[2026-11-28 01:00:00.000 {text}" for text in texts]
    path = machine.folder_of(name).client / "control"
    assert raw_control.say(path, raw_control.command("\n".join(["x", *lines]).encode()))
    log = machine.folder_of(name).log
    eventually(lambda: lines[-1] in log.read_text(), "they stand in the log")


def forge(machine: Machine, *pids: int, name: str = "gpu0") -> None:
    """A fault that names these processes."""
    server = f"Server {machine.record(name).servers[0]:>5}]"
    texts = [f"Client {{PID: {pid}, Context ID: 0}} connected" for pid in pids]
    texts += ["Server is handling a fatal GPU error."]
    texts += [f"Client {{PID: {pid}, Context ID: 1}} on device 0 to be torn down" for pid in pids]
    texts += ["The following client process have a sticky error set:", *map(str, pids)]
    write(machine, *(f"{server} {text}" for text in texts), name=name)


def test_a_fault_that_a_tenant_forges_is_not_recorded_whoever_it_names(apart: Machine) -> None:
    known = apart.record()
    neighbour, stranger = apart.client(4), apart.start(["sleep", "600"])
    apart.until_listed(neighbour.pid)
    gone = apart.start(["true"])
    gone.exit_code()
    forge(apart, neighbour.pid, stranger.pid, gone.pid, 1)
    eventually(
        lambda: apart.part("control").logged("fault not recorded"), "the log is not believed"
    )
    assert apart.record().faults == known.faults
    assert neighbour.running


def test_a_server_whose_end_a_tenant_forges_serves_on(apart: Machine) -> None:
    neighbour = apart.client(4)
    before = apart.record()
    for number in range(3):
        started, ended = f"Starting new server 77{number} for user 0", f"Server 77{number} exited"
        write(apart, f"Control    77] {started}", f"Control    77] {ended} with status 1")
    last = f"Server {before.servers[0]} exited with status 1"
    write(apart, f"Control    77] {last}")
    control = apart.part("control")
    eventually(lambda: control.logged("daemon says", text=last), "control has read it")
    assert apart.client(4).running, "who asks for a GPU now gets it"
    now = apart.record()
    assert (now.state, now.reason, now.servers) == (State.READY, "", before.servers)
    assert (now.restarts_total, now.faults_total) == (before.restarts_total, before.faults_total)
    assert neighbour.running


def test_a_neighbour_on_another_gpu_of_the_domain_is_not_ended_whatever_the_log_names(
    pair: Machine,
) -> None:
    """Whom a fault hit there NVML tells, by the Xid of the GPU."""
    pair.set_policy(**policy(), domains=[[0, 1]], placement="spread")
    pair.apart()
    name = "gpu0-1"
    neighbour = pair.client(7)
    culprit = pair.run("--gpu-mem 7", "sim-cuda", "fault", "linger")
    assert culprit.heard("bad") == ILLEGAL_ADDRESS
    assert culprit.heard("uuid") != neighbour.heard("uuid")

    forge(pair, neighbour.pid, name=name)

    assert culprit.exit_code() == KILLED
    fault = healed(pair, name)
    assert hit_pids(fault) == {culprit.pid}
    assert pair.record(name).faults_total == 1
    assert pair.record(name).restarts_total == 0
    assert neighbour.running
