"""`mpsd control`: holds the control daemons of this node, one a domain, and outlives nothing of what it starts.

Its clients die with its daemons, so it stops them only when asked to, and not before the programs have ended
or their time is over.
"""

import asyncio
from collections.abc import Callable, Sequence

from mpsd.grants.ledger import living
from mpsd.model.domain import Domain
from mpsd.model.identity import process_of
from mpsd.model.node_status import program_of
from mpsd.model.policy import Policy
from mpsd.mps import gate
from mpsd.mps.canary import CanarySetup
from mpsd.mps.daemon import DaemonPlace
from mpsd.mps.daemon_cgroup import DaemonCgroup
from mpsd.mps.node import Node
from mpsd.mps.supervisor import DomainSupervisor
from mpsd.platform.logs import logger
from mpsd.platform.settings import Settings
from mpsd.platform.waiting import until

_FILES_LOOK_S = 0.25
_LAST_WORDS_S = 1  # what `quit` gives programs that are still there after the drain


class ControlRole:
    """Every domain of this node."""

    def __init__(self, settings: Settings, domains: Sequence[Domain], node: Node, policy: Callable[[], Policy]) -> None:
        self._policy = policy
        self._grants = settings.grants
        self._log = logger(role="control")
        self._hurry = asyncio.Event()
        gate.remove_all_but(settings.run_directory, {domain.name for domain in domains})
        no_gate = gate.why_impossible(settings.run_directory)
        if no_gate:
            self._log.info("no gates", reason=f"{no_gate}; a container would not wait for its domain to serve")
        self._supervisors = [
            DomainSupervisor(domain, self._place(domain, settings, node, with_gate=not no_gate), node.nvml, policy)
            for domain in domains
        ]

    def _place(self, domain: Domain, settings: Settings, node: Node, *, with_gate: bool) -> DaemonPlace:
        tree = settings.daemon_cgroup
        gpus = [gpu for gpu in node.gpus if gpu.uuid in domain.gpus]
        return DaemonPlace(
            settings.domain(domain.name),
            node.environment,
            with_gate,
            DaemonCgroup(tree, domain.name) if tree else None,
            CanarySetup(node.canary, gpus, node.nvml.driver),
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Serves until `stop`, then drains, ends the daemons and puts everything back as it was found."""
        ended = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for supervisor in self._supervisors:
                tasks.create_task(supervisor.run(ended))
            tasks.create_task(self._watch_files(ended))
            await stop.wait()
            await self._drain()
            ended.set()
            for supervisor in self._supervisors:
                supervisor.wake()
        await asyncio.gather(*(supervisor.stop(_LAST_WORDS_S) for supervisor in self._supervisors))

    async def _watch_files(self, ended: asyncio.Event) -> None:
        """One timer for all domains, so that an idle node is seldom woken."""
        while not ended.is_set():
            await asyncio.sleep(_FILES_LOOK_S)
            for supervisor in self._supervisors:
                supervisor.look_at_files()

    def hurry(self) -> None:
        """Ends the drain that is under way: the programs that are left lose their GPU."""
        self._hurry.set()

    async def _drain(self) -> None:
        """Waits until no domain has programs left, the policy's drain time is over, or somebody is in a hurry."""
        drain_s = self._policy().graces.drain_s
        for supervisor in self._supervisors:
            supervisor.drain()
        self._log.info("draining", deadline_s=drain_s, again="a second signal ends the programs that are left")
        try:
            await until(self._is_drained, drain_s, "the drain ends", look_again_s=0.05)
        except TimeoutError:
            self._log.warning("drain given up", reason=f"programs are left after {drain_s:g} s")
        left = [f"{process_of(grant.holder)}: {program_of(grant.command)}" for grant in living(self._grants)]
        left += [supervisor.left for supervisor in self._supervisors if not supervisor.is_empty]
        if left:
            self._log.warning("programs lose their GPU", programs=left)

    def _is_drained(self) -> bool:
        """A granted program counts as long as it lives: without mpsd it would come to its GPU unlimited."""
        if self._hurry.is_set():
            return True
        return all(supervisor.is_empty for supervisor in self._supervisors) and not living(self._grants)
