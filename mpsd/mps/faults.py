"""The faults of one domain: finds who was hit, and ends those that stay, so that the GPU recovers:
only whom the faulty server still lists, by pid, start time and boot id."""

import math
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from mpsd.model.domain import ServerStatus
from mpsd.model.node_view import Fault, FaultHit
from mpsd.model.policy import Graces
from mpsd.mps.clients import DomainClients
from mpsd.mps.daemon import DomainDaemon
from mpsd.mps.rules import faults
from mpsd.mps.rules.control_protocol import ControlFailed, LogEvent, LogLine
from mpsd.mps.rules.faults import ClientDeath, FaultSigns
from mpsd.platform import clock, processes
from mpsd.platform.logs import Logger

_MAY_BE_OF_FAULT = {LogEvent.FAULT, LogEvent.LEFT_OUT}
_REFUTE_S = 60.0  # between two lines that say so
_SOON_S = 0.05  # between two looks while somebody who was ended may still be there


class DomainFaults:
    """all, total: as in its record. on_last_end, on_unlisted_end, ends: of DomainClients. struck:
    the clients on those of several GPUs that had an Xid since (CLOCK_BOOTTIME); None where all
    clients are on one."""

    def __init__(
        self,
        daemon: DomainDaemon,
        log: Logger,
        on_last_end: Callable[[ClientDeath], None],
        on_unlisted_end: Callable[[], None],
        ends: Path,
        struck: Callable[[float], frozenset[int]] | None,
    ) -> None:
        self._daemon = daemon
        self._struck = struck
        self._one_gpu = struck is None
        self._log = log
        daemon.on_line = self._hear
        self._clients = DomainClients(daemon.note_end, on_last_end, on_unlisted_end, ends)
        self._servers: tuple[int, ...] = ()
        # since when the log speaks of a fault that was not looked for yet
        self._heard_s: float | None = None
        self._refuted_at = -math.inf  # when that was last logged, monotonic
        self._clear_s = 0.0  # as of FaultSigns
        self._signs: FaultSigns | None = None  # of the last fault, until it is settled
        # whether this daemon was asked for the clients that it had when it was taken over
        self._asked = False
        self._ended_at = -math.inf
        self._kept: dict[int, str] = {}  # why nobody may end a process, by pid
        self.all: tuple[Fault, ...] = ()
        self.total = 0

    def take_over(self, earlier: tuple[Fault, ...], total: int, *, same_daemon: bool) -> None:
        """Starts from the record of an earlier mpsd. Whose end it saw died with it."""
        self.all = tuple(replace(fault, causes=fault.causes or ()) for fault in earlier)
        self.total = total
        if not same_daemon:
            self._heal()

    @property
    def as_recorded(self) -> dict[str, object]:
        return {"faults": self.all, "faults_total": self.total}

    def daemon_gone(self) -> None:
        self._settle()
        self._heal()
        self._clients.forget()
        self._heard_s = None
        self._asked = True  # of the next one all clients are seen as they come

    # -- look

    def _hear(self, line: LogLine) -> None:
        """Notes what to ask for; a tenant may have written it."""
        if line.event is LogEvent.CLIENT_CONNECTED and line.pid:
            if not self._daemon.is_own(line.pid):
                self._clients.connected(line.pid)
        elif line.event is LogEvent.LEFT_OUT:
            self._clients.ask_for_list()
        if line.event in _MAY_BE_OF_FAULT and self._heard_s is None:
            self._heard_s = clock.boot_s()

    async def look(self, graces: Graces) -> None:
        """After each proper answer of the daemon: what faults there are, whom to end for them."""
        in_fault = self._daemon.server is ServerStatus.FAULT
        if in_fault:
            self._daemon.read_log()  # so that no later look takes it for another one
        self._follow_servers()
        listed: dict[int, FaultHit | None] = {}
        if self._must_list(graces, in_fault=in_fault):
            listed = await self._listed(graces)
        self._note(listed, in_fault=in_fault)
        if self._signs and clock.boot_s() >= self._signs.noticed_s + faults.LATE_S:
            self._settle()
        if in_fault:
            self._end(faults.to_end(self.all, listed, clock.boot_s(), graces))
        elif open_faults := faults.unhealed(self.all):
            self._heal()
            self._log.info("fault healed", after_s=round(clock.boot_s() - open_faults[0].at_s, 2))

    def _heal(self) -> None:
        self.all = faults.healed(self.all, clock.wall_s())

    def _follow_servers(self) -> None:
        if self._servers and self._servers != self._daemon.servers:
            self._clients.forget()
            self._asked = False
        self._servers = self._daemon.servers

    def _must_list(self, graces: Graces, *, in_fault: bool) -> bool:
        """Each list costs a process."""
        if not self._asked or self._clients.list_due_s == 0 or self._heard_s is not None:
            return True
        open_faults = faults.unhealed(self.all)
        lingers = faults.to_end(open_faults, None, clock.boot_s(), graces)
        return in_fault and bool(lingers or not open_faults or not self._one_gpu)

    async def _listed(self, graces: Graces) -> dict[int, FaultHit | None]:
        """By pid, whom its servers list, None for who is gone since; nobody without an answer."""
        pipe = self._daemon.pipe(graces.command_s)
        asked_s = clock.boot_s()
        try:
            pids = await pipe.clients(self._daemon.servers)
        except (ControlFailed, OSError) as error:
            self._log.warning("clients not listed", reason=str(error))
            return {}
        known = self._clients.listed(pids, asked_s)
        self._asked = True
        return {pid: known.get(pid) for pid in pids}

    def _note(self, listed: dict[int, FaultHit | None], *, in_fault: bool) -> None:
        """What this look shows of a fault."""
        heard_s = self._heard_s
        self._heard_s = None
        known: dict[int, FaultHit] = {}
        gone = []
        if in_fault:
            here = set(listed)
            if self._struck:
                here &= self._struck(self._clear_s)
            for pid in here:
                who = listed[pid]
                if who is None:
                    gone.append(pid)
                # who is about to be gone may be its cause, whose end the server has not noticed
                elif not processes.is_ending(who.process):
                    known[pid] = who
        signs = FaultSigns(heard_s or clock.boot_s(), self._clear_s, known)
        if self._signs:
            return
        if faults.unhealed(self.all):
            if self._struck:  # NVML may tell of it later
                self.all = faults.also_hit(self.all, known)
        elif in_fault:
            self._begin(signs, gone)
        elif heard_s and self._has_vanished(over := replace(signs, over_s=clock.boot_s())):
            self._begin(over)
        else:
            self._clear_s = self._daemon.asked_s
            if heard_s and time.monotonic() - self._refuted_at > _REFUTE_S:
                self._refuted_at = time.monotonic()
                reason = "the log may report one, but neither server nor ends of clients confirm it"
                self._log.warning("fault not recorded", reason=reason)

    def _has_vanished(self, signs: FaultSigns) -> bool:
        survivors = self._clients.living(signs.noticed_s)
        near = faults.near(self._clients.deaths, signs, self.all)
        return self._one_gpu and faults.vanished_together(near, signs.noticed_s, survivors)

    def _begin(self, signs: FaultSigns, unidentified: Iterable[int] = ()) -> None:
        deaths = faults.near(self._clients.deaths, signs, self.all)
        hit = faults.hit_by(signs, deaths, one_gpu=self._one_gpu)
        self._signs = signs
        fault = Fault(clock.wall_s(), hit, tuple(unidentified), causes=None, at_s=clock.boot_s())
        self.all = faults.noted(self.all, fault)
        self.total += 1
        named = [f"{one.process}: {one.command}" for one in hit]
        named += [f"pid {pid}: already gone" for pid in unidentified]
        self._log.warning("fault", hit=named)

    def _settle(self) -> None:
        """Says who caused the last fault, as far as that can be told."""
        if self._signs is None:
            return
        *earlier, last = self.all
        deaths = faults.near(self._clients.deaths, self._signs, earlier)
        now = faults.settled(last, self._signs, deaths, one_gpu=self._one_gpu)
        self.all = (*earlier, now)
        self._signs = None
        named = [f"{one.process}: {one.command}, {one.how}" for one in now.causes or ()]
        self._log.info(
            "fault settled", hit=[one.process.pid for one in now.hit], ended_before=named
        )

    # -- act

    def _end(self, lingering: Iterable[FaultHit]) -> None:
        """SIGKILL for those; the server learns of their end within milliseconds."""
        for hit in lingering:
            try:
                signalled = processes.send_signal(hit.process, signal.SIGKILL)
            except PermissionError as error:
                if self._kept.get(hit.process.pid) != str(error):
                    why = f"{error}; end it by hand"
                    self._log.warning("client not ended", pid=hit.process.pid, reason=why)
                self._kept[hit.process.pid] = str(error)
                continue
            if signalled:
                self._ended_at = time.monotonic()
                self.all = faults.ended(self.all, hit.process, clock.wall_s())
                why = "a fault has ended its work, and its server admits no client until it is gone"
                who = {"pid": hit.process.pid, "command": hit.command, "pod": hit.pod}
                self._log.warning("client ended", **who, reason=why)

    def reason(self, graces: Graces) -> str:
        how = f"processes that remain are killed {graces.fault_grace_s:g} s after it"
        return f"a program's fault has ended the work of every program on the GPU; {how}"

    def why_stuck(self, graces: Graces) -> str:
        """Why only another daemon can help; empty where this one may heal yet, as after a sleep of
        the machine, when its processes are ended first."""
        if time.monotonic() - self._ended_at < graces.wedged_limit_s:
            return ""
        return faults.why_stuck(self.all, self._daemon.asked_s, graces)

    def look_again_s(self, graces: Graces) -> float | None:
        """Seconds until the next look is worth it; None where nothing is waited for."""
        waits = [self._clients.list_due_s]
        if self._signs:
            waits.append(max(0.0, self._signs.noticed_s + faults.LATE_S - clock.boot_s()))
        if faults.unhealed(self.all):
            due_s = faults.next_due_s(self.all, clock.boot_s(), graces)
            if time.monotonic() - self._ended_at < graces.command_s:
                due_s = _SOON_S
            waits.append(due_s)
        return min((wait for wait in waits if wait is not None), default=None)
