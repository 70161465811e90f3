"""How the daemon of one domain comes and goes: taken over or started, ended where nothing else helps, started again.

One rule: what was done is in the record at once, so that a later mpsd goes on from there: with the same daemon, the
same count of deaths, the same faults and compute modes.
"""

import time

from mpsd.model.domain_states import State, restart_delay_s
from mpsd.model.identity import ProcessIdentity
from mpsd.model.policy import Policy, Restarts
from mpsd.mps.compute_modes import ComputeModes
from mpsd.mps.domain_daemon import DomainDaemon
from mpsd.mps.faults import DomainFaults
from mpsd.mps.kept_record import KeptRecord
from mpsd.platform.logs import Logger
from mpsd.platform.nvml import NvmlFailed


class DomainRestarts:
    """`DomainSupervisor` says whether a daemon is to be started or to be ended; this does it, and counts."""

    def __init__(
        self, kept: KeptRecord, daemon: DomainDaemon, faults: DomainFaults, modes: ComputeModes, log: Logger
    ) -> None:
        self._kept = kept
        self._daemon = daemon
        self._faults = faults
        self._modes = modes
        self._log = log
        self._start_at = 0.0
        self._killed: ProcessIdentity | None = None  # the last daemon that was ended for not coming back by itself

    def take_over(self, policy: Policy) -> None:
        """Finds what an earlier mpsd left: its record, its daemon, or a daemon that somebody else started here."""
        old = self._kept.earlier()
        if old:
            self._kept.change(
                restarts_total=old.restarts_total,
                started_at=old.started_at,
                compute_modes=old.compute_modes,
                served=old.served,
            )
            self._daemon.canary.result = old.canary
        adopted = self._daemon.adopt(old.daemon if old else None)
        if old:
            same = adopted and self._daemon.identity == old.daemon
            self._faults.take_over(old.faults, old.faults_total, old.started_at, same_daemon=same)
            self._kept.change(**self._faults.as_recorded)
        if adopted:
            self._log.info("daemon adopted", pid=self._daemon.identity and self._daemon.identity.pid)
            if not self._daemon.foreign:
                self._modes.try_to_follow(policy)
        self._kept.change(daemon=self._daemon.identity)

    @property
    def is_due(self) -> bool:
        """Whether there is no daemon, and the time to start one has come."""
        return self._daemon.identity is None and time.monotonic() >= self._start_at

    def start(self, policy: Policy) -> bool:
        """False where it cannot be; the record says why, and it is due again later."""
        try:
            self._modes.follow(policy)
            self._daemon.start()
        except (OSError, NvmlFailed) as error:
            self._start_at = time.monotonic() + policy.restarts.longest_s
            reason = f"the control daemon cannot be started: {error}"
            self._kept.change(reason=reason)
            self._log.warning("not started", reason=reason)
            return False
        self._kept.change(daemon=self._daemon.identity, started_at=time.time())
        return True

    def bury(self, policy: Restarts) -> str:
        """Counts a death of the daemon; says how it ended and when it is started again."""
        record = self._kept.now
        if self._daemon.identity is None:
            return ""
        if record.state is State.REFUSED:  # it was in the way, and its end is no loss
            self._daemon.bury()
            self._kept.change(daemon=None)
            return ""
        restarts = 0 if time.time() - record.started_at > policy.stable_after_s else record.restarts
        delay_s = restart_delay_s(restarts, policy)
        self._start_at = time.monotonic() + delay_s
        how = self._daemon.bury()
        self._faults.daemon_gone()
        counts = {"restarts": restarts + 1, "restarts_total": record.restarts_total + 1}
        self._kept.change(daemon=None, servers=(), **counts, **self._faults.as_recorded)
        return how if not restarts else f"{how}; {restarts + 1} times in a row, the next start is in {delay_s:g} s"

    def kill_after(self, limit_s: float, why: str) -> None:
        """Ends a daemon that has been in this state too long; its death starts the next one."""
        if time.time() - self._kept.now.since >= limit_s:
            self.kill(f"{why}: {self._daemon.trouble}")

    def kill(self, why: str) -> None:
        """Ends the daemon, once; its death starts the next one."""
        if self._killed != self._daemon.identity:
            self._killed = self._daemon.identity
            self._log.warning("daemon killed", reason=why)
            self._daemon.kill()
