"""`mpsd control`: supervises the control daemons, and can put back what an earlier mpsd left.

It stops daemons only when asked to, since programs end with their daemon.
"""

import asyncio
import shutil
import sys
from collections.abc import Callable, Collection
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

from mpsd.cli import foreground
from mpsd.grants.kept import living
from mpsd.model.domain import GONE, Domain
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.metrics import LogLoss
from mpsd.model.node_view import DomainRecord
from mpsd.model.policy import Policy
from mpsd.mps import compute_modes, gate
from mpsd.mps.canary import CanarySetup
from mpsd.mps.compute_modes import Released, ReleaseOutcome
from mpsd.mps.daemon import DaemonPlace
from mpsd.mps.daemon_cgroup import DaemonCgroup
from mpsd.mps.memory_caps import CapFiles, CapProbe, MemoryCaps
from mpsd.mps.node_gpus import Node
from mpsd.mps.records import NodeDomains, domain_of, of_this_boot
from mpsd.mps.supervisor import DomainSupervisor
from mpsd.platform import event_loop, life, logs, processes, records, run_directory
from mpsd.platform.command_line import OUTPUT, flag, takes
from mpsd.platform.console import ExitCode, Format, answers, complaints, print_json
from mpsd.platform.event_loop import FolderWatch, Shortages, until
from mpsd.platform.limits_files import LimitsFiles
from mpsd.platform.nvml import NvmlFailed
from mpsd.platform.settings import NODE_SETTINGS, Settings, settings
from mpsd.simulator.machine import find_node, find_tools

LATER = ("psutil", "pynvml", "rich")
_LOOK_S = 1.0  # at what no file tells, such as a stopped daemon
_POLL_S = 0.25  # where folders cannot be watched
_CALM_S = 0.02
_LAST_WORDS_S = 1  # for programs that are left after the drain
_COMMANDS = 3  # deadlines of commands that the end of a daemon takes


class ControlRole:
    """Every domain of this node: one whose GPUs are of others now, or that an earlier mpsd left, is
    drained and ended, and the others begin once it has."""

    def __init__(
        self,
        settings: Settings,
        domains: NodeDomains,
        node: Node,
        facts: GpuFacts,
        policy: Callable[[], Policy],
    ) -> None:
        self._settings = settings
        self._domains = domains
        self._node = node
        self._facts = facts
        self._policy = policy
        self._grants = settings.grants
        self._log = logs.logger(role="control")
        self._shortages = Shortages(self._log)
        self._hurry = asyncio.Event()
        wanted = {(domain.name, domain.gpus) for domain in domains.now}
        gate.remove_all_but(settings.run_directory, {name for name, _gpus in wanted})
        self._probe = CapProbe(node.nvml, settings.daemon_cgroup or Path("/sys/fs/cgroup"))
        self._caps = MemoryCaps(
            CapFiles(settings.run_directory, self._log), self._probe, policy, self._log
        )
        self._no_gate = gate.why_impossible(settings.run_directory)
        if self._no_gate:
            why = f"{self._no_gate}; a container would not wait for its domain to serve"
            self._log.info("no gates", reason=why)
        # by domain, and the event ends it
        self._running: dict[str, tuple[asyncio.Event, asyncio.Task[None]]] = {}
        self._supervisors: dict[str, DomainSupervisor] = {}
        self._leaving: dict[str, DomainSupervisor] = {}  # whose daemons are being ended
        self._replaced: dict[str, DomainSupervisor] = {}  # whose records are needed
        for _folder, record in of_this_boot(settings.run_directory):
            if isinstance(record, DomainRecord) and (record.domain, record.gpus) not in wanted:
                self._add(domain_of(record))
        self._tell_to_leave(wanted)

    def _add(self, domain: Domain) -> None:
        settings = self._settings
        node = self._node
        name = domain.name
        cgroup = DaemonCgroup(settings.daemon_cgroup, name) if settings.daemon_cgroup else None
        gpus = [gpu for gpu in node.gpus if gpu.uuid in domain.gpus]
        canary = CanarySetup(node.canary, gpus, node.nvml.driver, self._probe, name)
        place = DaemonPlace(
            settings.domain(name), node.environment, not self._no_gate, cgroup, canary
        )
        self._supervisors[name] = DomainSupervisor(
            domain, place, node.nvml, self._facts, self._policy
        )
        self._follow_troubles()

    def _follow_troubles(self) -> None:
        for one in self._supervisors.values():
            troubles = map(self._node.troubles.get, one.record.gpus)
            one.follow_trouble("; ".join(filter(None, troubles)))

    def _begin(self, name: str, tasks: asyncio.TaskGroup) -> None:
        ended = asyncio.Event()
        self._running[name] = ended, tasks.create_task(self._supervisors[name].run(ended))

    async def run(self, stop: event_loop.Stop) -> None:
        """Until `stop`; then it drains, and puts everything back as it was found."""

        async def watch_files() -> None:  # for all domains: an idle node is seldom woken
            with closing(FolderWatch()) as folders:
                while True:
                    with self._shortages.survived("follow domains"):
                        if not stop.is_set():
                            self._follow_domains(tasks)
                        watched = {self._settings.run_directory}
                        for name in self._supervisors:
                            watched.update(self._settings.domain(name).written)
                        folders.follow(watched)
                    longest_s = _LOOK_S
                    serving = self._supervisors.values()
                    if not folders.works or any(one.record.unwatched for one in serving):
                        longest_s = _POLL_S
                    if await folders.happened_within(longest_s):
                        await asyncio.sleep(_CALM_S)
                    for supervisor in self._supervisors.values():
                        with self._shortages.survived("look at files"):
                            supervisor.look_at_files()
                    with self._shortages.survived("follow memory caps"):
                        self._caps.follow([one.record for one in self._supervisors.values()])

        async with life.Tasks() as tasks:
            for name in self._supervisors:
                self._begin(name, tasks)
            watching = tasks.create_task(watch_files())
            await stop.wait()
            await self._drain(stop.signal)
            life.end_within(life.STOPPING_S + _COMMANDS * self._policy().graces.command_s)
            watching.cancel()
            for name, supervisor in self._supervisors.items():
                self._running[name][0].set()
                supervisor.wake()
        every = (*self._supervisors.values(), *self._leaving.values(), *self._replaced.values())
        await asyncio.gather(*(supervisor.stop(_LAST_WORDS_S) for supervisor in every))
        self._caps.end()

    def _follow_domains(self, tasks: asyncio.TaskGroup) -> None:
        """Ends what is no domain any more once it is empty, and begins others once their GPUs and
        names are free: a MIG instance leaves its name to the next with its ids."""
        self._node.look()
        self._follow_troubles()
        self._domains.follow(self._node.gpus)
        self._domains.look()
        wanted = {domain.name: domain for domain in self._domains.now}
        self._tell_to_leave({(domain.name, domain.gpus) for domain in self._domains.now})
        here = {gpu for domain in wanted.values() for gpu in domain.gpus}
        for name, one in list(self._replaced.items()):
            if here.isdisjoint(one.record.gpus):
                self._replaced.pop(name).forget()
        for name, one in list(self._supervisors.items()):
            if one.may_end:
                self._leaving[name] = self._supervisors.pop(name)
                tasks.create_task(self._end(name))
        for domain in wanted.values():
            every = {**self._supervisors, **self._leaving}
            own = set(domain.gpus)
            free = all(own.isdisjoint(one.record.gpus) for one in every.values())
            if free and domain.name not in every:
                replaced = self._replaced.values()
                earlier = [one for one in replaced if own.intersection(one.record.gpus)]
                self._replaced.pop(domain.name, None)
                self._add(domain)
                if earlier:
                    self._supervisors[domain.name].replace(earlier)
                self._begin(domain.name, tasks)
        held: set[str] = set()
        for name in wanted.keys() & self._supervisors.keys():
            held.update(self._supervisors[name].record.gpus)
        for name, one in list(self._replaced.items()):
            if held.issuperset(here & {*one.record.gpus}):
                self._replaced.pop(name).clear()

    def _tell_to_leave(self, wanted: Collection[tuple[str, tuple[str, ...]]]) -> None:
        """wanted: names and GPUs."""
        for name, supervisor in self._supervisors.items():
            gpus = supervisor.record.gpus
            others = [one.name for one in self._domains.now if not set(one.gpus).isdisjoint(gpus)]
            reason = GONE
            if (name, gpus) in wanted:
                reason = ""
            elif others:
                reason = f"its GPUs become {' and '.join(others)}"
            supervisor.leave(reason)

    async def _end(self, name: str) -> None:
        """Ends the daemon of a domain that leaves."""
        supervisor, (ended, loop) = self._leaving[name], self._running.pop(name)
        ended.set()
        supervisor.wake()
        await loop
        while True:
            with self._shortages.survived("end a domain"):
                try:
                    await supervisor.end(_LAST_WORDS_S)
                    break
                except TimeoutError as error:
                    self._log.warning("daemon does not end", domain=name, reason=str(error))
            await asyncio.sleep(_POLL_S)
        self._log.info("domain ended", domain=name)
        self._replaced[name] = self._leaving.pop(name)

    def hurry(self) -> None:
        """Ends the drain: the programs that are left lose their GPU."""
        self._hurry.set()

    async def _drain(self, signal: str) -> None:
        """Waits until no programs are left, their time is over, or somebody is in a hurry."""
        drain_s = self._policy().graces.drain_s
        for supervisor in self._supervisors.values():
            supervisor.drain()
        again = "a second signal ends the programs that are left"
        self._log.info("draining", signal=signal, deadline_s=drain_s, again=again)
        try:
            await until(self._is_drained, drain_s, "the drain ends", look_again_s=0.05)
        except TimeoutError:
            self._log.warning("drain given up", reason=f"programs are left after {drain_s:g} s")
        left: list[str] = []
        with self._shortages.survived("look at grants"):
            left += living(self._grants)
        left += [one.left for one in self._supervisors.values() if not one.is_empty]
        if left:
            self._log.warning("programs lose their GPU", programs=left)

    def _is_drained(self) -> bool:
        """A granted program counts while it lives: without mpsd it would be unlimited."""
        is_empty = False
        with self._shortages.survived("look at grants"):
            domains = self._supervisors.values()
            is_empty = all(one.is_empty for one in domains) and not living(self._grants)
        return self._hurry.is_set() or is_empty


@takes(
    flag("--release", help="Restore the compute modes that an earlier mpsd left behind, and exit."),
    OUTPUT,
    settings=NODE_SETTINGS,
)
def control(*, release: bool = False, output: Format = Format.TEXT, **flags: str | None) -> None:
    """Supervise this node's MPS control daemons: start, adopt, restart and drain them, in the
    foreground.

    Programs end with their daemon, so this part is small and seldom restarted; `mpsd agent` does
    the rest. If it is killed, its daemons continue, and the next `mpsd control` takes them over.

    If there will be no next one, --release restores the compute mode that each GPU had when mpsd
    first found it in this boot, and reports each GPU (-o json for programs); it may be repeated. It
    exits with 0 when nothing is left to restore, and with 1 when something is: mpsd still runs,
    programs use MPS, or NVML refuses the change.

        mpsd control --release
    """
    given: dict[str, Any] = flags
    chosen = settings(**given)
    if release:
        _release(chosen, output)
    foreground.serve("control", chosen, lambda: _run(chosen), with_control=True)


async def _run(chosen: Settings) -> int:
    files = LimitsFiles(chosen.limits_directory)
    node = find_node(chosen, files.facts)
    domains = NodeDomains(
        chosen.run_directory, node.gpus, files.policy, logs.logger(role="control")
    )
    role = ControlRole(chosen, domains, node, files.facts, files.policy_now)
    stop = event_loop.until_signalled(role.hurry)
    async with foreground.watching(chosen, files), life.Tasks() as tasks:
        telling = tasks.create_task(_tell_log_loss(chosen.log_loss))
        await role.run(stop)
        telling.cancel()
    chosen.log_loss.unlink(missing_ok=True)
    node.nvml.close()
    if chosen.simulate:
        shutil.rmtree(chosen.simulation)
    return ExitCode.YES


async def _tell_log_loss(path: Path) -> NoReturn:
    """Keeps there what was lost of this process's log, for the agent's metrics."""
    shortages = Shortages(logs.logger(role="control"))
    written = None
    while True:
        loss = LogLoss(processes.boot_id(), logs.dropped())
        if loss != written:
            with shortages.survived("write log-loss.json"):
                records.write(path, loss, mode=0o644)
                written = loss
        await asyncio.sleep(_LOOK_S)


def _release(chosen: Settings, output: Format) -> NoReturn:
    try:
        released: tuple[Released, ...] = ()
        if chosen.run_directory.exists():
            with run_directory.held(chosen.run_directory):
                released = compute_modes.release(chosen.run_directory, lambda: find_tools(chosen))
    except (run_directory.AlreadyHeld, NvmlFailed, OSError) as error:
        complaints().print(f"mpsd control --release: {error}")
        sys.exit(ExitCode.NO)
    if output is Format.JSON:
        print_json(released)
    else:
        for row in released:
            words = "compute mode not restored"
            if row.gpu:
                words = f"compute mode {row.mode} {_WORDS[row.outcome]}"
            where = " ".join(filter(None, (row.domain, row.gpu)))
            answers().print(": ".join(filter(None, (where, words, row.reason))))
        if not released:
            why = f"no record of this boot in {chosen.run_directory} has a compute mode"
            answers().print(f"nothing to restore: {why}")
    sys.exit(ExitCode.of(not any(row.is_left for row in released)))


_WORDS = {
    ReleaseOutcome.PUT_BACK: "restored",
    ReleaseOutcome.WAS_SO: "is already set",
    ReleaseOutcome.LEFT: "not restored",
}
