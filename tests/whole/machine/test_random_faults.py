"""In the end every domain serves, and the ledger holds exactly the living programs, whatever
happens in whatever order.

Of programs that wait for their grants; tests/whole/node/test_soak.py is about pods.
"""

import os
import random
from contextlib import suppress

import pytest

from mpsd.model.domain import State
from mpsd.mps import drain
from mpsd.platform import local_api
from tests.whole.machine.chaos import ESCAPE, GRACES, Bystander, Chaos, Deed, seeds, until_quiet
from tests.whole.machine.machine import Machine, Program, eventually

DOMAINS = ("gpu0", "gpu1")


class ProgramsChaos(Chaos):
    def __init__(self, machine: Machine, chance: random.Random) -> None:
        machine.set_policy(graces=GRACES)
        super().__init__(machine, chance, DOMAINS, *machine.apart())
        self.programs: list[Program] = []
        self.escapes: list[Program] = []

    @property
    def deeds(self) -> list[Deed]:
        ours = [self.start_program, self.start_program, self.start_program, self.end_program]
        faults = [self.fault, self.fault_and_stay, self.escape, self.escape]
        return [*super().deeds, *ours, *faults, self.start_pair, self.cordon, self.uncordon]

    def start_program(self) -> None:
        self._start(self.chance.choice([2, 7, 12, 20]), "hold")

    def start_pair(self) -> None:
        """On two GPUs, which are joined for it."""
        self._start(self.chance.choice([4, 12]), "hold", gpus=2)

    def fault(self) -> None:
        self._start(2, "fault", "linger=0.5")

    def fault_and_stay(self) -> None:
        """Nobody else gets onto that GPU before it is ended for it."""
        self._start(2, "fault", "linger")

    def escape(self) -> None:
        self.escapes.append(self._start(2, "lift=garbage", *ESCAPE))

    def _start(self, gib: int, *actions: str, gpus: int = 1) -> Program:
        asked = f"--gpu-mem {gib} --gpus {gpus} --wait --timeout 60"
        program = self.machine.run(asked, "sim-cuda", *actions)
        self.programs.append(program)
        return program

    def end_program(self) -> None:
        if self.living:
            self.chance.choice(self.living).kill()

    def kill_agent(self) -> None:
        """A program that asks where none answers is refused, so somebody must."""
        super().kill_agent()
        eventually(self._answers, "the agent answers")

    def cordon(self) -> None:
        drain.ask(self.machine.folder_of(self.domain()), "chance has it")

    def uncordon(self) -> None:
        drain.withdraw(self.machine.folder_of(self.domain()))

    def end(self) -> None:
        self.let_daemons_go_on()
        for folder in self.machine.run_directory.glob("gpu*"):
            drain.withdraw(self.machine.folder_of(folder.name))

    def _answers(self) -> bool:
        with suppress(local_api.NotRunning):
            return bool(self.machine.node())
        return False

    @property
    def living(self) -> list[Program]:
        return [program for program in self.programs if program.running]

    def trouble(self) -> str:
        """Why not every domain serves, or who lives and neither has what it asked for nor waits for
        room."""
        if not self.control_has_looked:
            return "control has not looked yet"
        node, living = self.machine.node(), {program.pid for program in self.living}
        served = {grant.holder_pid for grant in node.grants} | {
            waiting.holder_pid for waiting in node.waiting
        }
        if served != living or any(domain.state != State.READY for domain in node.domains):
            return f"{living} live, {node}"
        if sum(len(domain.gpus) for domain in node.domains) != len(node.gpus):
            return f"a GPU is in no domain: {node.domains}"
        if over := [
            program.pid
            for program in self.escapes
            if program.running and program.pid in self.machine.holders
        ]:
            return f"over their grant: {over}"
        if left := self.ends_left():
            return f"ends under way: {left}"
        return self.daemons_left()


@pytest.mark.parametrize("seed", seeds(20))
def test_after_any_sequence_of_faults_the_ledger_holds_exactly_the_living_programs(
    pair: Machine, seed: int
) -> None:
    bystander = Bystander(pair)
    chaos = ProgramsChaos(pair, random.Random(seed))
    chaos.play()
    chaos.end()

    until_quiet(chaos.trouble)
    escapes = {program.pid for program in chaos.escapes}
    chaos.check_ends(lambda pid: pid in escapes)
    node = pair.node()
    holders = [grant.holder_pid for grant in node.grants]
    assert len(holders) == len(set(holders))
    assert all(gpu.granted_mib <= gpu.promised_mib for gpu in node.gpus)
    if os.geteuid() == 0:  # who else may make gates
        eventually(
            lambda: all(pair.folder_of(one.name).gate.exists() for one in node.domains),
            "every gate is open",
        )
    assert bystander.is_well
