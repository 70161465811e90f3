"""Whatever happens in whatever order: in the end every domain serves, and the books hold exactly the living programs.

MPSD_SOAK=N runs N sequences instead of three; a failing one is repeated by its number.
"""

import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from mpsd.core.domain_states import State
from mpsd.core.grants import Grant
from mpsd.core.identity import ProcessIdentity
from mpsd.core.node_view import RECORD_VERSION, DomainRecord
from mpsd.edge import drain_requests, local_api, processes, records
from tests.roles.machine import Machine, Program, eventually

_SEQUENCES = int(os.environ.get("MPSD_SOAK", "3"))
_STEPS = 8
_IN_THE_END_S = 40.0  # the longest way back: from wedged over a restart, with other work on this machine


class Sequence:
    """Control and agent on two GPUs, and what is done to them."""

    def __init__(self, machine: Machine, chance: random.Random) -> None:
        self._machine = machine
        self._chance = chance
        machine.set_policy(graces={"command_s": 1, "start_s": 5, "drain_s": 30, "fault_grace_s": 1})
        self._stopped: list[int] = []
        self.programs: list[Program] = []
        self._control = machine.service("control")
        self._agent = machine.service("agent")
        machine.until_ready()

    def step(self) -> None:
        deeds: list[Callable[[], None]] = [
            self.start_program,
            self.start_program,
            self.end_program,
            self.kill_daemon,
            self.kill_server,
            self.stop_daemon,
            self.let_daemon_go_on,
            self.restart_agent,
            self.restart_control,
            self.cordon,
            self.uncordon,
            self.fault,
            self.fault_and_stay,
        ]
        deed = self._chance.choice(deeds)
        print(deed.__name__)
        deed()

    def start_program(self) -> None:
        gib = self._chance.choice([2, 7, 12, 20])
        self._start(gib, "hold")

    def fault(self) -> None:
        self._start(2, "fault", "linger=0.5")

    def fault_and_stay(self) -> None:
        """Nobody else gets onto that GPU before it is ended for it."""
        self._start(2, "fault", "linger")

    def _start(self, gib: int, *actions: str) -> None:
        """Not waited for: it may have to wait itself."""
        self.programs.append(self._machine.run(f"--gpu-mem {gib} --wait --timeout 60", "sim-cuda", *actions))

    def end_program(self) -> None:
        if self.living:
            self._chance.choice(self.living).kill()

    def kill_daemon(self) -> None:
        if daemon := self._daemon():
            self._machine.kill(daemon.pid)

    def kill_server(self) -> None:
        for server in self._machine.record(self._domain()).servers:
            with suppress(ProcessLookupError):
                self._machine.kill(server)

    def stop_daemon(self) -> None:
        daemon = self._daemon()
        if daemon and processes.send_signal(daemon, signal.SIGSTOP):
            self._stopped.append(daemon.pid)

    def let_daemon_go_on(self) -> None:
        for pid in self._stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._stopped.clear()

    def restart_agent(self) -> None:
        self._agent.kill()
        self._agent = self._machine.service("agent")
        eventually(self._answers, "the agent answers")

    def restart_control(self) -> None:
        """Not waited for: what comes next may come while it adopts."""
        self._control.kill()
        self._control = self._machine.service("control")

    @property
    def control_has_looked(self) -> bool:
        return {line["domain"] for line in self._control.logged("state")} == {"gpu0", "gpu1"}

    def cordon(self) -> None:
        drain_requests.ask(self._machine.folder_of(self._domain()), "chance has it")

    def uncordon(self) -> None:
        drain_requests.withdraw(self._machine.folder_of(self._domain()))

    def uncordon_all(self) -> None:
        for domain in ("gpu0", "gpu1"):
            drain_requests.withdraw(self._machine.folder_of(domain))

    def _answers(self) -> bool:
        with suppress(local_api.NotRunning):
            return bool(self._machine.node())
        return False

    def _domain(self) -> str:
        return self._chance.choice(["gpu0", "gpu1"])

    def _daemon(self) -> ProcessIdentity | None:
        """Of either domain; None where it is dead already."""
        daemon = self._machine.record(self._domain()).daemon
        return daemon if daemon and processes.is_alive(daemon) else None

    @property
    def living(self) -> list[Program]:
        return [program for program in self.programs if program.running]


@pytest.fixture
def bystander(pair: Machine) -> Program:
    """A process that stale records name: its pid, with the start time of another."""
    program = pair.start(["sleep", "600"])
    found = processes.identity_of(program.pid)
    assert found
    stale = replace(found, start_ticks=found.start_ticks - 1)
    folder = pair.folder_of()
    folder.make()
    gpu = pair.simulation.gpus[0].uuid
    records.write(
        folder.record,
        DomainRecord(RECORD_VERSION, "gpu0", (gpu,), State.READY, 0.0, "", stale, (found.pid,), 0, 0, 0.0, {}),
    )
    grants = pair.run_directory / "grants"
    grants.mkdir()
    records.write(grants / "old.json", Grant("old", "gpu0", (gpu,), 20480, 100, 0, 8, stale, "gone"))
    return program


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", range(_SEQUENCES))
def test_after_any_sequence_of_faults_the_books_hold_exactly_the_living_programs(
    pair: Machine, bystander: Program, number: int
) -> None:
    chance = random.Random(number)
    sequence = Sequence(pair, chance)
    for _ in range(_STEPS):
        sequence.step()

    sequence.let_daemon_go_on()
    sequence.uncordon_all()

    eventually(lambda: is_quiet(pair, sequence), f"the end of it: {pair.node()}", _IN_THE_END_S)
    node = pair.node()
    holders = [grant.holder_pid for grant in node.grants]
    assert len(holders) == len(set(holders))
    assert all(gpu.granted_mib <= gpu.promised_mib for gpu in node.gpus)
    if os.geteuid() == 0:  # who else may make gates
        eventually(lambda: all(pair.folder_of(one.name).gate.exists() for one in node.domains), "every gate is open")
    assert bystander.running


def is_quiet(machine: Machine, sequence: Sequence) -> bool:
    """Whether every domain serves and everyone who lives has what it asked for, or waits for room."""
    if not sequence.control_has_looked:
        return False
    node = machine.node()
    served = {grant.holder_pid for grant in node.grants} | {waiting.holder_pid for waiting in node.waiting}
    return all(domain.state is State.READY for domain in node.domains) and served == {
        program.pid for program in sequence.living
    }
