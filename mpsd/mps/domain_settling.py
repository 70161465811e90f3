"""What is done with a daemon between its start or adoption and its first client.

One rule: limits first, then a server, then clients. Nobody is let in before what servers to come let in was read back.
"""

from mpsd.model.client_limits import DENY_MIB
from mpsd.model.domains import Domain
from mpsd.model.node_view import ServerLimit
from mpsd.model.policy import Policy
from mpsd.mps import control_process
from mpsd.mps.control_pipe import ControlFailed, ControlPipe, NoAnswer
from mpsd.mps.domain_daemon import DomainDaemon
from mpsd.mps.domain_drain import limit_mib
from mpsd.mps.rules import control_protocol
from mpsd.mps.rules.control_protocol import NotUnderstood, ServerStatus
from mpsd.platform import records
from mpsd.platform.domain_folder import DomainFolder
from mpsd.platform.logs import Logger
from mpsd.platform.nvml import NvmlFailed
from mpsd.platform.waiting import until


class NoServer(Exception):
    """The daemon started one, and it ended at once."""


_TROUBLES = (NoServer, ControlFailed, NotUnderstood, NvmlFailed, TimeoutError, OSError)


class DomainSettling:
    """Tells `daemon` what came of it: settled, unanswered, trouble, servers, server."""

    def __init__(self, domain: Domain, folder: DomainFolder, daemon: DomainDaemon, log: Logger) -> None:
        self._ordinals = range(len(domain.gpus))
        self._folder = folder
        self._daemon = daemon
        self._log = log

    async def settle(self, policy: Policy, *, in_use: bool, doubtful: bool = False) -> bool:
        """Runs the canary where it is due, sets and reads back the limits for servers to come, starts the server, then
        lets clients in. in_use: somebody holds a grant and waits for it. doubtful: the server may not come up, which is
        waited for; else its first client does.

        False leaves the reason in `trouble`. Only silence counts as unanswered: a daemon that says something else than
        it should is not wedged, it has its time to start (`start_s`) like one that does not listen yet.
        """
        daemon, pipe = self._daemon, self._daemon.pipe(policy.graces.command_s)
        memory_mib = self._memory_to_restore()
        try:
            await until(self._listens_or_ended, policy.graces.command_s, "the control socket listens")
            if daemon.canary.is_due(policy, in_use=in_use) and not await daemon.canary.run(pipe, policy):
                daemon.unanswered, daemon.trouble = 0, "its canary runs"
                daemon.servers = daemon.canary.servers or daemon.servers
                return False
            await self._restore_limits(pipe, memory_mib)
            await pipe.ask(control_protocol.start_server(control_process.server_user()))
            control_process.offer_to_clients(self._folder)  # at once: a client that finds no socket runs unlimited
            daemon.servers = await pipe.ask(control_protocol.server_list())  # those whose limits the agent must raise
            if doubtful or daemon.no_server:
                await self._until_server_is_up(policy.graces.command_s)
            # One that was adopted may be in a fault; one that has just been started says nothing of itself yet.
            _servers, status = await daemon.ask_for_health(pipe) if daemon.adopted else ((), ServerStatus.ACTIVE)
        except _TROUBLES as error:
            daemon.unanswered = daemon.unanswered + 1 if isinstance(error, NoAnswer) else 0
            daemon.trouble = str(error)
            return False
        daemon.settled, daemon.unanswered, daemon.trouble, daemon.server = True, 0, "", status
        return True

    def _listens_or_ended(self) -> bool:
        return not self._daemon.alive or control_process.listener(self._folder) is not None

    async def _restore_limits(self, pipe: ControlPipe, memory_mib: int) -> None:
        """For servers to come, and for those that the canary has left shut."""
        open_again = bool(self._daemon.canary.servers) and memory_mib != DENY_MIB
        servers = await pipe.ask(control_protocol.server_list()) if open_again else ()
        for ordinal in self._ordinals:
            for server in (None, *servers):
                await pipe.set_limit(ServerLimit(server, ordinal, memory_mib))

    def _memory_to_restore(self) -> int:
        """What the agent last set, else denial: no program may start unlimited before the agent has looked."""
        try:
            return limit_mib(self._folder)
        except records.UnreadableRecord as error:
            self._log.warning("limits ignored", reason=str(error))
            return DENY_MIB

    async def _until_server_is_up(self, deadline_s: float) -> None:
        """NoServer where it ends instead."""

        def has_spoken() -> bool:
            self._daemon.read_log()
            return self._daemon.coming is None

        await until(has_spoken, deadline_s, "an MPS server comes up")
        if self._daemon.no_server:
            raise NoServer("no MPS server comes up; see the daemon's log")

    async def try_canary_again(self, policy: Policy) -> None:
        """While it stands in the way; a daemon that does not answer is asked again later."""
        try:
            await self._daemon.canary.run_again(self._daemon.pipe(policy.graces.command_s), policy)
        except _TROUBLES as error:
            self._log.warning("canary not run", reason=str(error))
