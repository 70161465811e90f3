"""What makes each alert about a node fire, and what makes it clear: faults of a simulated machine.

One rule: a trial does what an accident or a user would do, and at its end undoes it; mpsd is told
nothing.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from mpsd.model.metrics import Exporter
from mpsd.platform import records
from mpsd.simulator.card import Quirk
from tests.prometheus.meanwhile import beside, stopped
from tests.prometheus.server import Prometheus
from tests.served import free_port
from tests.whole.machine.machine import Machine, Program, Service, eventually

LISTEN = "MPSD_LISTEN"
NODE = "here"
SLOWLY = 'case "$1" in -f) exec "${0%/*}/real" "$@";; esac; sleep 0.7; exec "${0%/*}/real" "$@"'
FAILS = "exit 1"
POLICY: Mapping[str, Any] = {
    "exclusive_process": False,  # so that processes may run beside MPS
    # who lingers is let
    "graces": {"command_s": 2, "start_s": 5, "drain_s": 30, "fault_grace_s": 60},
    "restarts": {"first_s": 0.2, "longest_s": 0.5},
}


@dataclass
class Node:
    """Two A30 with control and agent, and who scrapes them. control: the one that runs."""

    machine: Machine
    prometheus: Prometheus
    control: Service
    agent: Service

    def foreign_process(self) -> Program:
        """A process beside MPS that was given nothing."""
        environment = {"MPSD_SIMULATION": str(self.machine.simulation.folder)}
        program = self.machine.start([self.machine.program("sim-cuda"), "hold"], environment)
        program.heard("ready")
        return program

    def interloper(self) -> Program:
        """A client of MPS that was given nothing."""
        environment = {
            "MPSD_SIMULATION": str(self.machine.simulation.folder),
            "CUDA_MPS_PIPE_DIRECTORY": str(self.machine.folder_of().client),
        }
        program = self.machine.start([self.machine.program("sim-cuda"), "hold"], environment)
        program.heard("ready")
        return program


Trial = Callable[[Node], AbstractContextManager[None]]


@contextmanager
def on_node(machine: Machine, prometheus: Prometheus) -> Iterator[Node]:
    """Starts it, and has it scraped."""
    machine.set_policy(**POLICY)
    port = free_port()
    control, agent = (
        machine.service("control"),
        machine.service("agent", {LISTEN: f"127.0.0.1:{port}"}),
    )
    machine.until_ready()
    prometheus.scrape(Exporter.AGENT, NODE, port)
    yield Node(machine, prometheus, control, agent)


@contextmanager
def _no_daemon_starts(node: Node) -> Iterator[None]:
    node.machine.replace_control_program(FAILS)
    node.machine.kill(node.machine.daemon())
    yield
    node.machine.restore_control_program()


@contextmanager
def _daemon_stopped(node: Node) -> Iterator[None]:
    daemon = node.machine.daemon()
    os.kill(daemon, signal.SIGSTOP)
    yield
    os.kill(daemon, signal.SIGCONT)


@contextmanager
def _culprit_lingers(node: Node) -> Iterator[None]:
    culprit = node.machine.run("--gpu-mem 4 --wait --timeout 60", "sim-cuda", "fault", "linger")
    culprit.heard("lingering")
    yield
    culprit.kill()


@contextmanager
def _one_fault_after_the_other(node: Node) -> Iterator[None]:
    stop = threading.Event()

    def fault() -> None:
        while not stop.is_set():
            _one_fault(node)

    with beside(fault, stop):
        yield


def _one_fault(node: Node) -> None:
    node.machine.until_ready()
    before = _faults(node)
    with _culprit_lingers(node):
        eventually(lambda: _faults(node) > before, "the fault is counted")


def _faults(node: Node) -> int:
    counted = (domain.faults for domain in node.machine.node().domains)
    return sum(faults.count for faults in counted if faults)


@contextmanager
def _mig_on(node: Node) -> Iterator[None]:
    card = node.machine.card()
    card.mig = True
    node.machine.kill(node.machine.daemon())
    yield
    card.mig = False


@contextmanager
def _driver_does_not_obey(node: Node) -> Iterator[None]:
    """As after an upgrade of the driver, for which the canary is run anew."""
    machine, card = node.machine, node.machine.card()
    node.control.kill()
    machine.kill(machine.recorded_daemon())
    records.write(machine.folder_of().record, replace(machine.record(), canary=None))
    card.quirks = Quirk.IGNORES_MEMORY_LIMITS
    node.control = machine.service("control")
    yield
    card.quirks = Quirk(0)


@contextmanager
def _commands_take_long(node: Node) -> Iterator[None]:
    node.machine.replace_control_program(SLOWLY)
    yield
    node.machine.restore_control_program()


@contextmanager
def _agent_stopped(node: Node) -> Iterator[None]:
    with stopped(node.agent.process):
        yield


@contextmanager
def _gpu_lost(node: Node) -> Iterator[None]:
    card = node.machine.card(1)
    card.lost = True
    yield
    card.lost = False


@contextmanager
def _agent_has_no_processor(node: Node) -> Iterator[None]:
    """It runs for three tenths of a second, and then does not for four."""
    stop = threading.Event()

    def hold_up() -> None:
        while not stop.wait(0.3):
            with stopped(node.agent.process):
                stop.wait(0.4)

    with beside(hold_up, stop):
        yield


@contextmanager
def _policy_is_wrong(node: Node) -> Iterator[None]:
    node.machine.set_policy(**POLICY, placement="heap")
    yield
    node.machine.set_policy(**POLICY)


@contextmanager
def _somebody_beside_mps(node: Node) -> Iterator[None]:
    foreign = node.foreign_process()
    yield
    foreign.kill()


@contextmanager
def _somebody_without_a_grant(node: Node) -> Iterator[None]:
    neighbour = node.machine.client(4)  # without whom the daemon lets nobody in
    assert node.machine.gpu_of(neighbour) == "gpu0"
    interloper = node.interloper()
    yield
    interloper.kill()
    neighbour.kill()


@contextmanager
def _one_escape_after_the_other(node: Node) -> Iterator[None]:
    foreign: list[Program] = []
    stop = threading.Event()

    def come_and_go() -> None:
        while not stop.wait(0.1):
            foreign.append(node.foreign_process())
            eventually(lambda: _is_judged(node, foreign[-1].pid), "he is told of")
            foreign.pop().kill()

    with beside(come_and_go, stop):
        yield


def _is_judged(node: Node, pid: int) -> bool:
    seen = node.machine.node().violations
    return bool(seen) and any(one.pid == pid for one in seen.last)


@contextmanager
def _machine_is_full(node: Node) -> Iterator[None]:
    clients = [node.machine.client(20), node.machine.client(20)]
    waiting = node.machine.run("--gpu-mem 20 --wait", "true")
    yield
    for client in clients:
        client.kill()
    assert waiting.exit_code() == 0


def put_back(node: Node) -> None:
    """Whatever a trial that failed has left."""
    node.machine.end_programs()


TRIALS: Mapping[str, Trial] = {
    "MPSDDomainDown": _no_daemon_starts,
    "MPSDDaemonCrashLoops": _no_daemon_starts,
    "MPSDDomainWedged": _daemon_stopped,
    "MPSDFaultLasts": _culprit_lingers,
    "MPSDFaultsRepeat": _one_fault_after_the_other,
    "MPSDDomainRefused": _mig_on,
    "MPSDCanaryFailed": _driver_does_not_obey,
    "MPSDDaemonSlow": _commands_take_long,
    "MPSDAgentSilent": _agent_stopped,
    "MPSDThingsUnknown": _gpu_lost,
    "MPSDWatchdogLate": _agent_has_no_processor,
    "MPSDLimitsWrong": _policy_is_wrong,
    "MPSDOutsideMPS": _somebody_beside_mps,
    "MPSDWithoutGrant": _somebody_without_a_grant,
    "MPSDViolations": _one_escape_after_the_other,
    "MPSDRequestsWait": _machine_is_full,
}
