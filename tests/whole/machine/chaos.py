"""What may befall a node, in an order left to chance, and who must not notice.

Nothing is waited for after a deed, so that the next one may come in the midst of what follows from
it.

`make soak MPSD_SOAK=N` plays N steps, from the seed MPSD_SOAK_SEED on. A failing sequence is
repeated by MPSD_SOAK=20 MPSD_SOAK_SEED=<its number>, as far as time allows to repeat anything.
"""

import os
import random
import signal
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from mpsd.model.domain import State
from mpsd.model.grants import Grant, evenly
from mpsd.model.identity import ProcessIdentity
from mpsd.model.node_view import RECORD_VERSION, DomainRecord, Fault, FaultHit
from mpsd.platform import clock, processes, records
from mpsd.platform.run_directory import ENDS
from tests.whole.machine.machine import CONTROL, Machine, Service, eventually

STEPS = 20  # of one sequence
# the longest way back: from wedged over restarts and their back-off, with other work here
IN_THE_END_S = 60.0
_QUIET_S = 0.5  # a kubelet that was started anew, for one, has not said anything yet
BREATHS_S = (0.0, 0.0, 0.05, 0.3)  # between two deeds

_END_SEEN_S = 5.0  # until a client is stopped, where one is about to be

GRACES = {"command_s": 1, "start_s": 5, "drain_s": 30, "fault_grace_s": 1, "end_drain_s": 2}
# Of who takes more than granted, and has half a second of kernels queued all the time.
ESCAPE = ("kernel=100", "alloc=3000", "launch=600")

Deed = Callable[[], None]


def seeds(steps: int) -> range:
    """So many as make these steps together, where nobody asked for another number."""
    first, asked = (
        int(os.environ.get("MPSD_SOAK_SEED", "0")),
        int(os.environ.get("MPSD_SOAK", steps)),
    )
    return range(first, first + -(-asked // STEPS))


class Chaos(ABC):
    """doomed: the GPUs whose domains deadly things befall. control, agent: those that run now."""

    def __init__(
        self,
        machine: Machine,
        chance: random.Random,
        doomed: Sequence[str],
        control: Service,
        agent: Service,
    ) -> None:
        self.machine = machine
        self.chance = chance
        self.doomed = doomed
        self.control = control
        self.agent = agent
        self.agents = [agent]  # all that have run
        self._stopped: list[int] = []

    @property
    def deeds(self) -> list[Deed]:
        return [
            self.kill_daemon,
            self.kill_server,
            self.stop_daemon,
            self.let_daemons_go_on,
            self.kill_agent,
            self.kill_control,
            self.kill_amid_an_end,
            self.kill_amid_an_end,
        ]

    def play(self) -> None:
        """One sequence; the deeds are printed, for whoever looks at a failure."""
        for _ in range(STEPS):
            deed = self.chance.choice(self.deeds)
            print(deed.__name__)
            deed()
            time.sleep(self.chance.choice(BREATHS_S))
            self.look()

    def kill_daemon(self) -> None:
        if daemon := self._daemon():
            self.machine.kill(daemon.pid)

    def kill_server(self) -> None:
        record = self._record()
        for server in record.servers if record else ():
            with suppress(ProcessLookupError):
                self.machine.kill(server)

    def stop_daemon(self) -> None:
        daemon = self._daemon()
        if daemon and processes.send_signal(daemon, signal.SIGSTOP):
            self._stopped.append(daemon.pid)

    def let_daemons_go_on(self) -> None:
        for pid in self._stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._stopped.clear()

    def kill_agent(self) -> None:
        self.agent.kill()
        self.replace_agent()

    def replace_agent(self) -> None:
        self.agent = self.new_agent()
        self.agents.append(self.agent)

    def new_agent(self) -> Service:
        return self.machine.service("agent")

    def kill_control(self) -> None:
        self.control.kill()
        self.control = self.machine.service("control")

    def kill_amid_an_end(self) -> None:
        """Agent, control or both, once who takes too much is stopped; or after a while, as where
        there is no room."""
        self.escape()
        with suppress(AssertionError):
            eventually(self.stopped_clients, "a client is stopped", within_s=_END_SEEN_S)
        whom = self.chance.choice(
            [(self.kill_agent,), (self.kill_control,), (self.kill_control, self.kill_agent)]
        )
        for kill in whom:
            kill()

    @abstractmethod
    def escape(self) -> None:
        """Somebody takes more than granted, sooner or later."""

    # -- ends of clients

    def recorded_ends(self) -> list[Path]:
        return [*(self.machine.run_directory / ENDS).glob("*")]

    def look(self) -> None:
        """What holds at any time: whoever is stopped has a record, by which the next agent goes
        on."""
        eventually(
            lambda: not self.stopped_without_record(),
            "no client is stopped without a record",
            _END_SEEN_S,
        )

    def stopped_without_record(self) -> list[int]:
        stopped = self.stopped_clients()
        recorded = {path.stem for path in self.recorded_ends()}
        return [pid for pid in stopped if str(pid) not in recorded]

    def stopped_clients(self) -> list[int]:
        """Their pids; daemons are stopped on purpose."""
        found = (
            pid
            for pid, line in self.machine.processes_left().items()
            if "cuda_client" in line or "sim-cuda" in line
        )
        known = (processes.identity_of(pid) for pid in found)
        return [one.pid for one in known if one and processes.is_stopped(one)]

    def ends_left(self) -> list[object]:
        return [*self.recorded_ends(), *self.stopped_clients()]

    def check_ends(self, due: Callable[[int], bool]) -> None:
        """None was stopped that was not due, and by no second agent, and none was ended twice. due:
        of a client's pid; true where nobody knows whose that was."""
        stopped_by = Counter[int]()
        ended = Counter[int]()
        for agent in self.agents:
            stopped_by.update({line["pid"] for line in agent.logged("client stopped")})
            ended.update(line["pid"] for line in agent.logged("ended"))
        resumed = sum(len(agent.logged("end resumed")) for agent in self.agents)
        print(f"{len(stopped_by)} clients were stopped, and {resumed} ends were gone on with")
        assert [pid for pid in stopped_by if not due(pid)] == []
        assert [pid for pid, agents in stopped_by.items() if agents > 1] == []
        assert [pid for pid, times in ended.items() if times > 1] == []

    @property
    def control_has_looked(self) -> bool:
        """Whether what is on disk is this control's word, and of every domain."""
        looked_at = {
            ordinal
            for line in self.control.logged("state")
            for ordinal in _ordinals(line["domain"])
        }
        return len(looked_at) == len(self.machine.simulation.gpus)

    def gpu(self) -> str:
        return self.chance.choice(self.doomed)

    def domain(self) -> str:
        """One that such a GPU is in now; of that GPU alone where it is in none."""
        gpu = self.gpu()
        found = (path.parent.name for path in self.machine.run_directory.glob("gpu*/record.json"))
        return next((name for name in sorted(found) if _ordinals(gpu) <= _ordinals(name)), gpu)

    def daemons_left(self) -> str:
        """In words. A question to a daemon has no -f, and the simulated servers, its children,
        have its command line."""
        found = {
            pid for pid, line in self.machine.processes_left().items() if f"{CONTROL} -f" in line
        }
        left = [pid for pid in found if processes.parent_of(pid) not in found]
        domains = self.machine.node().domains
        return (
            "" if len(left) == len(domains) else f"{left} for {[domain.name for domain in domains]}"
        )

    def _record(self) -> DomainRecord | None:
        with suppress(records.UnreadableRecord):
            return records.read(self.machine.folder_of(self.domain()).record, DomainRecord)
        return None

    def _daemon(self) -> ProcessIdentity | None:
        """Of one of the doomed domains; None where it is dead already."""
        record = self._record()
        daemon = record.daemon if record else None
        return daemon if daemon and processes.is_alive(daemon) else None


def _ordinals(domain: str) -> set[str]:
    return set(domain.removeprefix("gpu").split("-"))


class Bystander:
    """A process that every stale record of this machine names: its pid, with the start time of
    another."""

    def __init__(self, machine: Machine) -> None:
        """Before mpsd is started there."""
        self._program = machine.start(["sleep", "3600"])
        found = processes.identity_of(self._program.pid)
        assert found
        stale = replace(found, start_ticks=found.start_ticks - 1)
        folder, gpu = machine.folder_of(), machine.simulation.gpus[0].uuid
        folder.make()
        fault = Fault(time.time(), (FaultHit(stale, "gone", None),), at_s=clock.boot_s())
        past = (
            RECORD_VERSION,
            "gpu0",
            (gpu,),
            State.FAULT,
            0.0,
            "",
            stale,
            (found.pid,),
            0,
            0,
            0.0,
            {},
            True,
            (fault,),
        )
        records.write(folder.record, DomainRecord(*past, boot_id=processes.boot_id()))
        grants = machine.run_directory / "grants"
        grants.mkdir()
        records.write(
            grants / "old.json",
            Grant("old", "gpu0", evenly((gpu,), 20480, 0), 100, 8, stale, "gone"),
        )

    @property
    def is_well(self) -> bool:
        return self._program.running


def until_quiet(trouble: Callable[[], str]) -> None:
    """Until there is no trouble any more, and none that comes back; fails with what it still is at
    the end."""
    deadline = time.monotonic() + IN_THE_END_S
    quiet_since: float | None = None  # None while it is not
    while quiet_since is None or time.monotonic() < quiet_since + _QUIET_S:
        found = trouble()
        quiet_since = None if found else quiet_since or time.monotonic()
        if found and time.monotonic() > deadline:
            pytest.fail(f"not within {IN_THE_END_S:g} s: {found}")
        time.sleep(0.1)
