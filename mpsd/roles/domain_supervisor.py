"""Keeps one domain served: looks at its control daemon, lets the table say the state, acts on it, writes it down.

One rule: what state follows from what was seen is decided in core.domain_states, and nowhere else.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace

from mpsd.core.client_limits import DENY_MIB
from mpsd.core.domain_states import SERVING, Seen, State, next_state, restart_delay_s
from mpsd.core.domains import Domain
from mpsd.core.identity import ProcessIdentity
from mpsd.core.node_view import RECORD_VERSION, DomainRecord, ServerLimit, is_of_boot
from mpsd.core.policy import Policy
from mpsd.edge import gate, processes, records
from mpsd.edge.logs import logger
from mpsd.edge.nvml import Nvml, NvmlFailed
from mpsd.roles.compute_modes import ComputeModes
from mpsd.roles.domain_daemon import DomainDaemon, Place
from mpsd.roles.domain_drain import DomainDrain, limit_mib
from mpsd.roles.domain_faults import DomainFaults
from mpsd.roles.domain_obstacles import DomainObstacles

# Seconds between two probes that nothing else asked for. A death, and a line in the log, are seen long before.
_PROBE_S = {State.READY: 5.0, State.FAULT: 0.25, State.DRAINING: 1.0, State.WEDGED: 1.0, State.DRAINED: 1.0}
_STOPPING_PROBE_S = 0.2
_LOOK_S = 0.25
_TRY_S = 5.0  # between two starts of a server while somebody has the GPU for himself
_TROUBLED = {State.DOWN, State.WEDGED, State.FAULT, State.REFUSED}
_WITHOUT_PROGRAMS = {State.DRAINED, State.DOWN, State.REFUSED}
_LOOKS_FOR_OBSTACLES = {State.DOWN, State.STARTING, State.REFUSED}


class DomainSupervisor:
    """One domain, from the start or adoption of its daemon to its stop. `record` is what others read of it."""

    def __init__(self, domain: Domain, place: Place, nvml: Nvml, policy: Callable[[], Policy]) -> None:
        place.folder.make()
        self._place = place
        self._folder = place.folder
        self._policy = policy
        self._log = logger(domain=domain.name)
        self._modes = ComputeModes(nvml, place.folder.path.parent, self._log)
        self._wake = asyncio.Event()
        self._daemon = DomainDaemon(place, domain.gpus, self._wake.set, self._log)
        self._drain = DomainDrain(place.folder)
        self._obstacles = DomainObstacles(place, domain.gpus, nvml, self._daemon)
        one_gpu = len(domain.gpus) == 1
        self._faults = DomainFaults(self._daemon, place.folder.log, self._log, one_gpu=one_gpu)
        self._probe_at = 0.0
        self._start_at = 0.0
        self._try_at = 0.0
        self._killed: ProcessIdentity | None = None  # the last daemon that was ended for not coming back by itself
        self._why = ""  # the reason of the state, which a trouble that passes must not outlive
        self.record = DomainRecord(
            version=RECORD_VERSION,
            domain=domain.name,
            gpus=domain.gpus,
            state=State.DOWN,
            since=time.time(),
            reason="",
            daemon=None,
            servers=(),
            restarts=0,
            restarts_total=0,
            started_at=0.0,
            compute_modes={},
            boot_id=processes.boot_id(),
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Looks, decides and acts until `stop`; the daemon is left as it is then."""
        self._take_over()
        while not stop.is_set():
            seen = await self._look()
            state = next_state(self.record.state, seen)
            ended_unseen = state is State.DOWN and self._daemon.identity is not None  # between its start and this look
            if state is not self.record.state or ended_unseen:
                self._enter(state, seen)
            else:
                await self._act()
                await self._pause()

    def wake(self) -> None:
        """Makes the loop look now."""
        self._wake.set()

    def drain(self) -> None:
        """Takes no new programs from now on, for mpsd stops; the state says when the last one is gone."""
        self._drain.stopping = True
        self._probe_at = 0.0
        self.wake()

    @property
    def is_empty(self) -> bool:
        """Whether nobody can lose anything by the end of this domain's daemon."""
        return self.record.state in _WITHOUT_PROGRAMS or self._daemon.out_of_reach

    @property
    def left(self) -> str:
        """Who would lose something by it, in words."""
        clients = "unknown" if self._daemon.clients is None else self._daemon.clients
        return f"{self.record.domain}, clients: {clients}{', and the holders of grants' if self._drain.granted else ''}"

    def look_at_files(self) -> None:
        """Makes the loop look if the daemon has written something or the agent has asked; costs two stats."""
        if self._daemon.has_written() or self._modes.is_news(self._policy()):
            self.wake()
        if self._drain.is_news():
            self._probe_at = 0.0
            self.wake()

    async def _pause(self) -> None:
        """Until something happens, or the next look is due."""
        pause_s = _LOOK_S
        if self.record.state in _PROBE_S:
            heals = self._faults.look_again_s(self._policy().graces) is not None
            pause_s = max(self._probe_at - time.monotonic(), 0.0 if heals else _LOOK_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._wake.wait()
        self._wake.clear()

    # -- look ----------------------------------------------------------------------------------------------------

    def _take_over(self) -> None:
        """Finds what an earlier mpsd left: its record, its daemon, or a daemon that somebody else started here."""
        old = self._old_record()
        if old:
            self._change(
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
            self._write_faults()
        if adopted:
            self._log.info("daemon adopted", pid=self._daemon.identity and self._daemon.identity.pid)
            self._set_modes_of_adopted()
        self._change(daemon=self._daemon.identity)

    def _set_modes_of_adopted(self) -> None:
        if self._daemon.foreign:
            return
        try:
            self._set_modes()
        except NvmlFailed as error:
            self._log.warning("compute mode not set", reason=str(error))

    def _old_record(self) -> DomainRecord | None:
        """What is on disk of this boot; another boot's pids and compute modes mean nothing now."""
        try:
            old = records.read(self._folder.record, DomainRecord)
        except records.UnreadableRecord as error:
            self._log.warning("record ignored", reason=str(error))
            return None
        stale = old is None or old.version != RECORD_VERSION or old.gpus != self.record.gpus
        if stale or (old and not is_of_boot(old, processes.boot_id())):
            return None
        return old

    async def _look(self) -> Seen:
        state, daemon = self.record.state, self._daemon
        obstacle = self._obstacles.to_daemon(self._policy()) if state in _LOOKS_FOR_OBSTACLES else ""
        self._change(canary=self._daemon.canary.result)
        self._drain.look()
        if daemon.read_log():
            self._probe_at = 0.0
        if daemon.alive and state in _PROBE_S and time.monotonic() >= self._probe_at:
            graces = self._policy().graces
            await daemon.probe(graces.command_s, with_clients=self._drain.asked)
            if not daemon.unanswered:
                await self._faults.look(graces)
            self._probe_at = time.monotonic() + self._probe_pause_s()
            self._change(servers=daemon.servers, reason=daemon.trouble or self._why)
            self._write_faults()
        return Seen(
            alive=daemon.alive,
            obstacle=obstacle,
            unanswered=daemon.unanswered,
            settled=daemon.settled,
            server=daemon.server,
            no_server=daemon.no_server,
            clients=daemon.clients,
            granted=self._drain.asked and self._drain.granted,
            drain_asked=self._drain.asked,
        )

    def _probe_pause_s(self) -> float:
        if self._daemon.unanswered:
            return _LOOK_S
        soon_s = self._faults.look_again_s(self._policy().graces)
        if soon_s is not None:
            return min(soon_s, _LOOK_S)
        return _STOPPING_PROBE_S if self._drain.stopping else _PROBE_S[self.record.state]

    # -- act -----------------------------------------------------------------------------------------------------

    def _enter(self, state: State, seen: Seen) -> None:
        """Goes into a new state, with its reason, and writes it down."""
        self._set_gate(state)
        reasons: dict[State, Callable[[], str]] = {
            State.DOWN: self._bury,
            State.REFUSED: lambda: seen.obstacle,
            State.WEDGED: lambda: self._daemon.trouble,
            State.FAULT: lambda: self._faults.reason(self._policy().graces),
            State.DRAINING: lambda: self._drain.reason,
            State.DRAINED: lambda: self._drain.reason,
        }
        reason = reasons.get(state, lambda: "")()
        self._probe_at, self._why = 0.0, reason
        served = self.record.served or state is State.READY
        self._change(state=state, since=time.time(), reason=reason, served=served)
        say = self._log.warning if state in _TROUBLED else self._log.info
        say("state", state=state.value, reason=reason)

    def _set_gate(self, state: State) -> None:
        """Before the record says so, so that who reads `ready` there finds the gate. Again at every look: it must hold.

        It stays as it is while starting: the clients of an adopted daemon that served go on being served. No agent has
        set a limit in this boot before there is a file of limits: a container that starts then would be denied its GPU.
        """
        if state in SERVING and self._place.with_gate and self._folder.limits.exists():
            gate.make(self._folder)
        elif state is not State.STARTING or self._daemon.no_server:
            gate.remove(self._folder)

    def _bury(self) -> str:
        """Counts a death of the daemon; says how it ended and when it is started again."""
        if self._daemon.identity is None:
            return ""
        if self.record.state is State.REFUSED:  # it was in the way, and its end is no loss
            self._daemon.bury()
            self._change(daemon=None)
            return ""
        restarts, policy = self.record.restarts, self._policy().restarts
        if time.time() - self.record.started_at > policy.stable_after_s:
            restarts = 0
        delay_s = restart_delay_s(restarts, policy)
        self._start_at = time.monotonic() + delay_s
        how = self._daemon.bury()
        self._faults.daemon_gone()
        self._write_faults()
        self._change(daemon=None, servers=(), restarts=restarts + 1, restarts_total=self.record.restarts_total + 1)
        return how if not restarts else f"{how}; {restarts + 1} times in a row, the next start is in {delay_s:g} s"

    async def _act(self) -> None:
        if self._daemon.alive and self._modes.is_news(self._policy()):
            self._set_modes_of_adopted()
        state, graces = self.record.state, self._policy().graces
        if state is State.DOWN and self._daemon.identity is None and time.monotonic() >= self._start_at:
            self._start()
        elif state is State.STARTING and not self._daemon.settled:
            await self._settle()
        elif state is State.REFUSED and self._daemon.alive and not self._daemon.foreign:
            await self._daemon.try_canary_again(self._policy())
        elif state is State.WEDGED:
            self._kill_after(graces.wedged_limit_s, "it answered nothing for too long")
        elif why := self._faults.why_stuck(graces):
            self._kill(why)
        else:
            self._set_gate(state)

    async def _settle(self) -> None:
        policy, now = self._policy(), time.monotonic()
        in_use = self.record.served and self._drain.granted
        usurped = self._obstacles.to_server()
        if usurped and (now < self._try_at or not in_use):
            if usurped != self.record.reason:
                self._log.warning("no server", reason=usurped)
            self._change(reason=usurped)
            return
        self._try_at = now + _TRY_S
        settled = await self._daemon.settle(self._limits_to_restore(), policy, in_use=in_use, doubtful=bool(usurped))
        self._change(reason=usurped or self._daemon.trouble, servers=self._daemon.servers)
        if settled:
            self.wake()
        elif not usurped and not self._daemon.canary.running:
            self._kill_after(policy.graces.start_s, "it could not be made ready")

    def _kill_after(self, limit_s: float, why: str) -> None:
        """Ends a daemon that has been in this state too long; its death starts the next one."""
        if time.time() - self.record.since >= limit_s:
            self._kill(f"{why}: {self._daemon.trouble}")

    def _kill(self, why: str) -> None:
        """Ends the daemon, once; its death starts the next one."""
        if self._killed != self._daemon.identity:
            self._killed = self._daemon.identity
            self._log.warning("daemon killed", reason=why)
            self._daemon.kill()

    def _start(self) -> None:
        gate.remove(self._folder)
        try:
            self._set_modes()
            self._daemon.start()
        except (OSError, NvmlFailed) as error:
            self._start_at = time.monotonic() + self._policy().restarts.longest_s
            self._change(reason=f"the control daemon cannot be started: {error}")
            self._log.warning("not started", reason=self.record.reason)
            return
        self._change(daemon=self._daemon.identity, started_at=time.time())
        self.wake()

    def _set_modes(self) -> None:
        """Gives the GPUs the policy's compute mode; what they had is on disk before a crash can lose it."""
        policy = self._policy()
        self._change(compute_modes=self._modes.take(self.record, policy))
        self._change(compute_modes=self._modes.apply(self.record, policy))

    def _limits_to_restore(self) -> list[ServerLimit]:
        """What the agent last set, else denial: no program may start unlimited before the agent has looked."""
        try:
            memory_mib = limit_mib(self._folder)
        except records.UnreadableRecord as error:
            self._log.warning("limits ignored", reason=str(error))
            memory_mib = DENY_MIB
        return [ServerLimit(None, ordinal, memory_mib) for ordinal in range(len(self.record.gpus))]

    def _write_faults(self) -> None:
        self._change(faults=self._faults.all, faults_total=self._faults.total)

    def _change(self, **fields: object) -> None:
        """The record with these fields, on disk too where that changes anything."""
        changed = replace(self.record, **fields)  # type: ignore[arg-type]
        if changed != self.record or not self._folder.record.exists():
            self.record = changed
            records.write(self._folder.record, changed, mode=0o644)

    async def stop(self, timeout_s: int) -> None:
        """Ends the daemon, giving its clients so many seconds; puts everything back as it was found.

        A daemon that is another's is left as it is, its files too.
        """
        gate.remove(self._folder)
        foreign = self._daemon.foreign
        if foreign:
            self._daemon.release()
        else:
            await self._daemon.quit(timeout_s, self._policy().graces)
        self._modes.put_back(self.record.compute_modes)
        self._folder.clear(with_pipe=not foreign)
        self._log.info("stopped")

    def release(self) -> None:
        """Leaves the daemon running for the next mpsd to adopt."""
        self._daemon.release()
