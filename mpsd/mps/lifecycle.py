"""The life of one domain's daemon: adopted or started, settled before its first client, killed and
restarted. Each step is recorded at once, so that a later mpsd continues from there."""

import time

from mpsd.model.client_limits import DENY_MIB
from mpsd.model.domain import Domain, ServerStatus, State, restart_delay_s
from mpsd.model.identity import ProcessIdentity
from mpsd.model.node_view import ServerLimit
from mpsd.model.policy import Policy, Restarts
from mpsd.mps import control_daemon
from mpsd.mps.compute_modes import ComputeModes
from mpsd.mps.control_daemon import ControlPipe, DaemonSilent
from mpsd.mps.daemon import TROUBLES, DomainDaemon
from mpsd.mps.drain import limit_mib
from mpsd.mps.faults import DomainFaults
from mpsd.mps.records import KeptRecord
from mpsd.mps.rules import control_protocol
from mpsd.platform import clock, processes, records
from mpsd.platform.event_loop import until
from mpsd.platform.logs import Logger
from mpsd.platform.nvml import NvmlFailed
from mpsd.platform.run_directory import DomainFolder


class DomainRestarts:
    """Starts and ends a daemon when `DomainSupervisor` decides so, and counts its deaths."""

    def __init__(
        self,
        kept: KeptRecord,
        daemon: DomainDaemon,
        faults: DomainFaults,
        modes: ComputeModes,
        log: Logger,
    ) -> None:
        self._kept = kept
        self._daemon = daemon
        self._faults = faults
        self._modes = modes
        self._log = log
        self._start_at = 0.0
        # the last daemon that was ended for not coming back by itself
        self._killed: ProcessIdentity | None = None
        self._why_killed = ""

    def take_over(self, policy: Policy) -> None:
        """Adopts an earlier mpsd's record and daemon, or a daemon that somebody else started."""
        old = self._kept.earlier()
        recorded = None
        if old:
            recorded = old.daemon
        # before its record is changed: it may be tried again
        adopted = self._daemon.adopt(recorded)
        identity = self._daemon.identity
        if old:
            self._faults.take_over(
                old.faults, old.faults_total, same_daemon=adopted and identity == recorded
            )
            self._daemon.canary.result = old.canary
            kept = ("restarts_total", "started_s", "compute_modes", "served", "health")
            fields = {name: getattr(old, name) for name in kept}
            # in one step: whoever reads it must not find a domain without its daemon
            self._kept.change(**fields, **self._faults.as_recorded, daemon=identity)
        if adopted:
            self._log.info("daemon adopted", pid=identity and identity.pid)
            if not self._daemon.foreign:
                self._modes.try_to_follow(policy)
        self._kept.change(daemon=identity)

    @property
    def is_due(self) -> bool:
        """Whether there is no daemon, and the time to start one has come."""
        return self._daemon.identity is None and time.monotonic() >= self._start_at

    def start(self, policy: Policy) -> bool:
        """False where it cannot be started; the record has the reason, and it is due later."""
        try:
            self._modes.follow(policy)
            self._daemon.start()
        except (OSError, NvmlFailed) as error:
            self._start_at = time.monotonic() + policy.restarts.longest_s
            reason = f"the control daemon cannot be started: {error}"
            self._kept.change(reason=reason)
            self._log.warning("not started", reason=reason)
            return False
        self._kept.change(daemon=self._daemon.identity, started_s=clock.boot_s())
        return True

    def count_end(self, policy: Restarts) -> str:
        """Counts an end of the daemon; returns how it ended and when it is started again."""
        record = self._kept.now
        if self._daemon.identity is None:
            return ""
        is_killed = self._daemon.identity == self._killed
        how = self._daemon.forget()
        if is_killed:
            how += f", by mpsd: {self._why_killed}"
        if record.state is State.REFUSED:  # it was in the way, and its end is no loss
            self._kept.change(daemon=None)
            return ""
        restarts = record.restarts
        if clock.boot_s() - record.started_s > policy.stable_after_s:
            restarts = 0
        delay_s = restart_delay_s(restarts, policy)
        self._start_at = time.monotonic() + delay_s
        self._faults.daemon_gone()
        counts = {"restarts": restarts + 1, "restarts_total": record.restarts_total + 1}
        self._kept.change(daemon=None, servers=(), **counts, **self._faults.as_recorded)
        if not restarts:
            return how
        return f"{how}; {restarts + 1} times in a row, the next start is in {delay_s:g} s"

    def kill_after(self, limit_s: float, why: str, now_s: float) -> None:
        """Ends a daemon that has been in this state too long; its death starts the next one. now_s:
        when that was seen last, by CLOCK_BOOTTIME: a machine that wakes asks again first."""
        if now_s - self._kept.since_s >= limit_s:
            self.kill(f"{why}: {self._daemon.trouble}")

    def kill(self, why: str) -> None:
        """Ends the daemon, once; its death starts the next one."""
        if self._killed != self._daemon.identity:
            self._killed = self._daemon.identity
            self._why_killed = why
            self._log.warning("daemon killed", reason=why)
            self._daemon.kill()


_TROUBLES = (*TROUBLES, NvmlFailed)


class DomainSettling:
    """Makes a daemon ready: limits are set and read back, then a server starts, then clients may
    come. The outcome is in `daemon`: settled, unanswered, trouble, servers, server."""

    def __init__(
        self, domain: Domain, folder: DomainFolder, daemon: DomainDaemon, log: Logger
    ) -> None:
        self._ordinals = range(len(domain.gpus))
        self._folder = folder
        self._daemon = daemon
        self._log = log

    async def settle(self, policy: Policy, *, in_use: bool, doubtful: bool = False) -> bool:
        """Runs the canary where due, sets the limits of new servers, starts one, admits clients.
        in_use: holders of grants wait. doubtful: the server may fail to start, so that is waited
        for. False: see `trouble`; only silence counts as unanswered. OSError in a shortage."""
        daemon = self._daemon
        pipe = self._daemon.pipe(policy.graces.command_s)
        try:
            memory_mib = limit_mib(self._folder)
        except records.UnreadableRecord as error:
            self._log.warning("limits ignored", reason=str(error))
            memory_mib = DENY_MIB

        def has_socket_or_ended() -> bool:
            return not daemon.alive or control_daemon.listener(self._folder) is not None

        try:
            await until(has_socket_or_ended, policy.graces.command_s, "the control socket listens")
            if daemon.canary.is_due(policy, in_use=in_use) and not await daemon.canary.run(
                pipe, policy
            ):
                daemon.unanswered = 0
                daemon.trouble = "the canary is running"
                daemon.servers = daemon.canary.servers or daemon.servers
                return False
            await self._restore_limits(pipe, memory_mib)
            await daemon.start_server(pipe)
            # at once: a client that finds no socket runs unlimited
            control_daemon.offer_to_clients(self._folder)
            # those whose limits the agent must raise
            daemon.servers = await daemon.list_servers(pipe)
            if doubtful or daemon.no_server:
                await daemon.until_server_is_up(pipe, policy.graces.command_s)
            status = ServerStatus.ACTIVE  # as far as one says that was just started
            if daemon.adopted:
                _servers, status = await daemon.ask_for_health(pipe)
        except _TROUBLES as error:
            if processes.is_shortage(error):
                raise
            daemon.trouble = str(error)
            if isinstance(error, DaemonSilent):
                daemon.unanswered += 1
            else:
                daemon.unanswered = 0
            return False
        daemon.settled = True
        daemon.unanswered = 0
        daemon.trouble = ""
        daemon.server = status
        return True

    async def _restore_limits(self, pipe: ControlPipe, memory_mib: int) -> None:
        """For new servers, and for those that the canary has left under denial."""
        servers: tuple[int, ...] = ()
        if self._daemon.canary.servers and memory_mib != DENY_MIB:
            servers = await pipe.ask(control_protocol.server_list())
        for ordinal in self._ordinals:
            for server in (None, *servers):
                await pipe.set_limit(ServerLimit(server, ordinal, memory_mib))

    async def try_canary_again(self, policy: Policy) -> None:
        """While it keeps the domain from serving; a silent daemon is asked again later."""
        try:
            await self._daemon.canary.run_again(self._daemon.pipe(policy.graces.command_s), policy)
        except _TROUBLES as error:
            self._log.warning("canary not run", reason=str(error))
