"""`mpsd agent`: looks at the node, decides, acts, and answers programs that ask for a GPU.

One rule: everything it knows can be found again on the node, so it may be killed at any time and no client notices.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping

from mpsd.core.control_protocol import NotUnderstood
from mpsd.core.decide import Action, Admit, EndGrant, Forget, Refuse, SetLimit, decide, domain_of
from mpsd.core.grants import Gpu
from mpsd.core.node_view import Client, NodeView
from mpsd.core.policy import Policy
from mpsd.edge.client_eyes import ClientEyes
from mpsd.edge.control_pipe import ControlFailed
from mpsd.edge.domain_records import DomainRecords
from mpsd.edge.logs import logger
from mpsd.edge.nvml import Nvml, NvmlFailed
from mpsd.edge.settings import GRANT, Settings
from mpsd.roles.domain_limits import DomainLimits
from mpsd.roles.local_grants import LocalGrants
from mpsd.roles.waiting_room import WaitingRoom

_LOOK_S = 2.0  # between two looks that nothing asked for
_SOON_S = 0.2  # after an action failed, or while a grant has clients left and its holder is gone
_RECORDS_LOOK_S = 0.25  # between two looks for a change of the domains' records, which costs a stat each


class AgentRole:
    """One node's agent. gpus, driver: as NVML gave them at the start; they do not change while a driver is loaded."""

    def __init__(
        self,
        settings: Settings,
        nvml: Nvml,
        gpus: tuple[Gpu, ...],
        environment: Mapping[str, str],
        policy: Callable[[], Policy],
    ) -> None:
        self._policy = policy
        self._nvml = nvml
        self._gpus = gpus
        self._driver = nvml.driver()
        self._log = logger(role="agent")
        self._wake = asyncio.Event()
        self._records = DomainRecords(settings.run_directory, self._log)
        self._limits = DomainLimits(settings, environment, policy)
        self._eyes = ClientEyes(nvml, GRANT)
        self._grants = LocalGrants(settings.grants, self.wake, self._log)
        self._troubles: dict[str, str] = {}
        self.waiting = WaitingRoom(self.wake)

    def wake(self) -> None:
        """Makes the loop look now."""
        self._wake.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Looks, decides and acts until `stop`; grants, limits and clients are left as they are then."""
        self._grants.load()
        while not stop.is_set():
            self._wake.clear()
            acted = await self._act(decide(self.look(), self._policy()))
            quiet = acted and all(held.holder_alive for held in self._grants.held())
            await self._pause(_LOOK_S if quiet else _SOON_S, stop)
        self._grants.close()

    async def _pause(self, longest_s: float, stop: asyncio.Event) -> None:
        """Until something asks for a look: a program, a death, a domain's record; at most `longest_s`."""
        until = time.monotonic() + longest_s
        while not self._wake.is_set() and not stop.is_set() and (left_s := until - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, _RECORDS_LOOK_S)):
                    await self._wake.wait()
            if self._records.changed():
                return

    def look(self) -> NodeView:
        """The node as it is now."""
        now, unknown = time.time(), []
        held = tuple(self._grants.held())
        domains = tuple(self._limits.view(record, now) for record in self._records.read())
        servers = {server for domain in domains for server in domain.record.servers}
        clients: tuple[Client, ...] | None = None
        try:
            grants = {one.grant.id for one in held}
            clients = self._eyes.look((gpu.uuid for gpu in self._gpus), servers, grants, self._grants.holders())
        except NvmlFailed as error:
            unknown.append(str(error))
        return NodeView(
            now=now,
            driver=self._driver,
            gpus=self._gpus,
            domains=domains,
            grants=held,
            clients=clients,
            waiting=self.waiting.everyone(),
            unknown=tuple(unknown),
        )

    async def _act(self, actions: tuple[Action, ...]) -> bool:
        """Does one after the other; what fails in one domain keeps the rest of that domain for the next look."""
        troubles: dict[str, str] = {}
        for action in actions:
            domain = domain_of(action)
            if domain in troubles:
                continue
            try:
                await self._do(action)
            except (ControlFailed, NotUnderstood, OSError) as error:
                troubles[domain] = str(error)
                if self._troubles.get(domain) != str(error):
                    self._log.warning("action failed", action=type(action).__name__, domain=domain, reason=str(error))
        self._troubles = troubles
        return not troubles

    async def _do(self, action: Action) -> None:
        match action:
            case EndGrant(grant):
                self._grants.end(grant)
                self._log.info("grant ended", grant=grant.id, holder=grant.holder.pid)
            case SetLimit(domain, limit):
                if await self._limits.set(domain, limit, time.time()):
                    of_whom = limit.server or "servers to come"
                    self._log.info("limit set", domain=domain, server=of_whom, memory_mib=limit.memory_mib)
            case Admit(grant):
                if not self.waiting.expects(grant.id):  # its program has gone while a limit was raised for it
                    return
                self._grants.add(grant)
                self.waiting.answer(action)
                self._log.info(
                    "granted",
                    grant=grant.id,
                    holder=grant.holder.pid,
                    gpus=grant.gpus,
                    memory_mib=grant.memory_mib,
                )
            case Refuse(waiting, reason):
                self.waiting.answer(action)
                self._log.info("refused", request=waiting, reason=reason)
            case Forget(waiting):
                self.waiting.forget(waiting)
                self._log.info("request dropped", request=waiting, reason="its program is gone")
