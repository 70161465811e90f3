"""The supervisor of one domain: looks at its control daemon, takes the state from
`model.domain.next_state`, acts on it and records it."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection

from mpsd.model.domain import DRAINS, SERVING, DaemonView, Domain, State, next_state
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.node_view import DomainRecord
from mpsd.model.policy import Policy
from mpsd.model.problem import program_of
from mpsd.mps import control_daemon, gate
from mpsd.mps.compute_modes import ComputeModes
from mpsd.mps.daemon import DaemonPlace, DomainDaemon
from mpsd.mps.drain import DomainDrain
from mpsd.mps.faults import DomainFaults
from mpsd.mps.health import DomainHealth
from mpsd.mps.heartbeats import Heartbeats
from mpsd.mps.lifecycle import DomainRestarts, DomainSettling
from mpsd.mps.records import KeptRecord
from mpsd.mps.rules.faults import ClientDeath
from mpsd.mps.rules.health import HealthRules
from mpsd.platform import clock, processes, records
from mpsd.platform.event_loop import Shortages
from mpsd.platform.logs import logger
from mpsd.platform.nvml import EXCLUSIVE_PROCESS, Nvml, NvmlFailed
from mpsd.platform.run_directory import ENDS

# Seconds between two probes that nothing asked for: a death or a line in the log does.
_PROBE_S = {
    State.READY: 20.0,
    State.FAULT: 0.25,
    State.DRAINING: 1.0,
    State.WEDGED: 1.0,
    State.DRAINED: 1.0,
}
_STOPPING_PROBE_S = 0.2  # while mpsd itself ends, and waits for the last program
_LOOK_S = 0.25
_APART_S = 0.05  # between two probes, whatever calls for them: a tenant may write lines all day
_CONTEXT_S = 5.0  # between two contexts of mpsd's own because programs may get none
_TRY_S = 5.0  # between two starts of a server while another process has the GPU exclusively
_TROUBLED = {State.DOWN, State.WEDGED, State.FAULT, State.REFUSED}


class DomainSupervisor:
    """One domain, from the start or adoption of its daemon to its stop."""

    def __init__(
        self,
        domain: Domain,
        place: DaemonPlace,
        nvml: Nvml,
        facts: GpuFacts,
        policy: Callable[[], Policy],
    ) -> None:
        place.folder.make()
        self._place = place
        self._folder = place.folder
        self._nvml = nvml
        self._policy = policy
        self._log = logger(domain=domain.name)
        self._kept = KeptRecord(domain, place.folder, self._log)
        self._modes = ComputeModes(nvml, self._kept, place.folder.path.parent, self._log)
        self._wake = asyncio.Event()
        self._daemon = DomainDaemon(place, domain.gpus, self._wake.set, self._log)
        self._settling = DomainSettling(domain, place.folder, self._daemon, self._log)
        self._drain = DomainDrain(place.folder)
        self._heartbeats = Heartbeats(place.folder.path.parent)
        self._began_s = clock.boot_s()
        end_records = place.folder.path.parent / ENDS
        self._health = DomainHealth(
            place.canary.gpus, nvml, lambda: HealthRules(facts, policy().health), self._log
        )
        struck = None
        if len(domain.gpus) > 1:
            struck = self._health.struck
        self._faults = DomainFaults(
            self._daemon,
            self._log,
            self._last_client_ended,
            self._try_context,
            end_records,
            struck,
        )
        self._restarts = DomainRestarts(
            self._kept, self._daemon, self._faults, self._modes, self._log
        )
        self._daemon.first_context.on_outcome = self._health.context_ended
        self._probe_at = self._probed_at = self._try_at = self._context_at = 0.0
        self._taken_over = self._ends_foreign = False
        self._why = ""  # the reason of the state, restored once a passing trouble is over

    @property
    def record(self) -> DomainRecord:
        return self._kept.now

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; the daemon is left as it is then."""
        shortages = Shortages(self._log)
        while not stop.is_set():
            done = False
            with shortages.survived("supervise"):
                await self._step()
                done = True
            if not done:
                await asyncio.sleep(_LOOK_S)

    async def _step(self) -> None:
        if not self._taken_over:
            self._restarts.take_over(self._policy())
            self._health.take_over(self.record.health)
            self._taken_over = True
        seen = await self._look()
        state = next_state(self.record.state, seen)
        # between its start and this look
        ended_unseen = state is State.DOWN and self._daemon.identity is not None
        if state is not self.record.state or ended_unseen:
            self._enter(state, seen)
        else:
            self._follow_reason(state, seen)
            await self._act()
            await self._pause()

    def wake(self) -> None:
        self._wake.set()

    def drain(self) -> None:
        """Admits no new programs, because mpsd stops."""
        self._drain.stopping = True
        self._probe_at = 0.0
        self.wake()

    def leave(self, reason: str) -> None:
        """Drains, and starts no daemon: its GPUs are of other domains. Empty: it serves again."""
        if reason != self._drain.leaving:
            self._drain.leaving = reason
            self._probe_at = 0.0
            self.wake()

    def follow_trouble(self, why: str) -> None:
        """Admits no programs while one of its GPUs is in trouble. Empty: it serves again."""
        if why != self._drain.trouble:
            self._drain.trouble = why
            if not why and self._daemon.alive and not self._daemon.foreign:
                self._modes.try_to_follow(self._policy())  # a reset GPU has forgotten its own
            self._probe_at = 0.0
            self.wake()

    @property
    def may_end(self) -> bool:
        return bool(self._taken_over and self._drain.leaving and self.is_empty)

    def replace(self, earlier: "Collection[DomainSupervisor]") -> None:
        """Records that it has the GPUs of others, which have ended."""
        self._kept.change(
            reason=f"its GPUs were of {' and '.join(sorted(one.record.domain for one in earlier))}",
            served=all(one.record.served for one in earlier),
        )

    @property
    def is_empty(self) -> bool:
        """Whether no program is affected by the end of this domain's daemon."""
        # we started it, and it admitted none
        no_client_yet = not self._daemon.adopted and not self._daemon.settled
        return self.record.state in {State.DRAINED, State.DOWN, State.REFUSED} or no_client_yet

    @property
    def left(self) -> str:
        clients = self._daemon.clients
        found = f"{self.record.domain}, clients: {'unknown' if clients is None else clients}"
        if self._drain.granted:
            found += ", and the holders of grants"
        return found

    def look_at_files(self) -> None:
        """Wakes the loop where there is news in them, or something else is to be looked at."""
        is_news = self._daemon.tail.has_grown() or self._modes.is_news(self._policy())
        if is_news or self._health.is_due or self._why_unwatched() != self.record.unwatched:
            self.wake()
        if self._drain.is_news() or (self._daemon.is_stopped and not self._daemon.unanswered):
            self._probe_at = 0.0
            self.wake()

    async def _pause(self) -> None:
        pause_s = _LOOK_S
        if self.record.state in _PROBE_S:
            pause_s = self._probe_at - time.monotonic()
            if pause_s <= 0 and self._faults.look_again_s(self._policy().graces) is None:
                pause_s = _LOOK_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(pause_s, 0.0)):
                await self._wake.wait()
        self._wake.clear()

    # -- look

    async def _look(self) -> DaemonView:
        state = self.record.state
        daemon = self._daemon
        graces = self._policy().graces
        self._look_at_health()
        self._follow_watch()
        obstacle = ""
        if state in {State.DOWN, State.STARTING, State.REFUSED}:
            obstacle = self._obstacle(self._policy())
        self._drain.look()
        if daemon.is_news():
            self._probe_at = min(self._probe_at, self._probed_at + _APART_S)
        elif not daemon.unanswered:
            soon_s = self._faults.look_again_s(graces)
            if soon_s is not None:
                self._probe_at = min(self._probe_at, time.monotonic() + soon_s)
        if daemon.alive and state in _PROBE_S and time.monotonic() >= self._probe_at:
            self._probed_at = time.monotonic()
            await daemon.probe(graces.command_s, with_clients=self._drain.asked)
            with contextlib.suppress(OSError):  # such as a full disk, which the record tells of
                records.write(self._folder.commands, daemon.commands, mode=0o644)
            if not daemon.unanswered:
                await self._faults.look(graces)
            self._probe_at = time.monotonic() + self._probe_pause_s()
            self._kept.change(
                servers=daemon.servers,
                reason=daemon.trouble or self._why,
                **self._faults.as_recorded,
            )
        return DaemonView(
            alive=daemon.alive,
            obstacle=obstacle,
            unanswered=daemon.unanswered,
            settled=daemon.settled,
            server=daemon.server,
            no_server=daemon.no_server,
            clients=daemon.clients,
            granted=self._drain.waits_for_grants and self._drain.granted,
            drain_asked=self._drain.asked,
        )

    def _look_at_health(self) -> None:
        """A sick GPU is drained, and well again once a canary has passed that began after."""
        canary = self._daemon.canary
        if self._health.look():
            canary.forget()
        elif canary.has_passed and self._health.reason:
            self._health.canary_passed()
        if self._health.reason != self._drain.sick:
            self._drain.sick = self._health.reason
            self._probe_at = 0.0
        self._kept.change(canary=canary.result, health=self._health.as_recorded)

    def _follow_watch(self) -> None:
        why = self._why_unwatched()
        if why and not self.record.unwatched:
            self._log.warning("gate closed", reason=why)
        self._kept.change(unwatched=why)

    def _why_unwatched(self) -> str:
        """An agent that starts with it has as long as one that stops."""
        return self._heartbeats.why_unwatched(self.record.gpus, self._began_s, clock.boot_s())

    def _probe_pause_s(self) -> float:
        if self._daemon.unanswered:
            return _LOOK_S
        soon_s = self._faults.look_again_s(self._policy().graces)
        if soon_s is not None:
            return min(soon_s, _LOOK_S)
        if self._drain.stopping or self._drain.leaving:
            return _STOPPING_PROBE_S
        if self.record.state in SERVING and self._daemon.is_server_due:
            return _LOOK_S
        return _PROBE_S[self.record.state]

    # -- what prevents it from serving

    def _obstacle(self, policy: Policy) -> str:
        """Why no daemon of ours can serve here, with the remedy; empty where one can."""
        if self._drain.trouble:
            return self._drain.trouble
        if not control_daemon.program_found(self._place.environment):
            return "nvidia-cuda-mps-control is not on PATH; install the driver's compute utilities"
        try:
            if why := self._daemon.canary.why_no_caps(policy):
                return why
            unreliable = self._daemon.canary.obstacle(policy)
        except NvmlFailed as error:
            return f"{error}; see that the driver works (nvidia-smi)"
        if self._daemon.foreign:
            whose = f"another control daemon ({self._daemon.identity})"
            return f"{whose} listens in {self._folder.pipe} for other GPUs; stop it (quit)"
        if not self._daemon.alive:
            return ""
        # an adopted daemon may have clients, and is drained
        was_tried = not self._daemon.adopted and not self._daemon.canary.is_awaited
        if self._drain.sick and (was_tried or unreliable):
            return "; ".join(filter(None, (self._drain.sick, unreliable)))
        return unreliable

    def _usurper(self) -> str:
        """Why no server can start beside the process that has a GPU exclusively, or empty."""
        with contextlib.suppress(NvmlFailed):
            for uuid in self.record.gpus:
                if self._nvml.compute_mode(uuid) != EXCLUSIVE_PROCESS:
                    continue
                for pid in self._beside_mps(uuid):
                    # The program alone: the whole cluster reads it, and arguments may be secret.
                    program = program_of(processes.command_of(pid))
                    if processes.identity_of(pid):  # else it has ended, and has the GPU no more
                        why = f"no MPS server can start while pid {pid} uses {uuid} exclusively"
                        return f"{why}; end it: {program}"
        return ""

    def _beside_mps(self, uuid: str) -> list[int]:
        """Processes on a GPU that are neither on MPS nor our daemon's server. NvmlFailed."""
        on_mps = self._nvml.mps_pids(uuid)
        others = [pid for pid, _used in self._nvml.uses(uuid) if pid not in on_mps]
        daemon = self._daemon.identity
        if not others or daemon is None:
            return others
        ours = processes.descendants_of(daemon.pid)
        return [pid for pid in others if pid not in ours]

    # -- act

    def _enter(self, state: State, seen: DaemonView) -> None:
        self._set_gate(state)
        reasons: dict[State, Callable[[], str]] = {
            State.DOWN: lambda: self._restarts.count_end(self._policy().restarts),
            State.REFUSED: lambda: seen.obstacle,
            State.WEDGED: lambda: self._daemon.trouble,
            State.FAULT: lambda: self._faults.reason(self._policy().graces),
            State.DRAINING: lambda: self._drain.reason,
            State.DRAINED: lambda: self._drain.reason,
        }
        reason = reasons.get(state, lambda: "")()
        self._probe_at = 0.0
        self._why = reason
        served = self.record.served or state is State.READY
        self._kept.change(state=state, since=clock.wall_s(), reason=reason, served=served)
        log = self._log.info
        if state in _TROUBLED:
            log = self._log.warning
        log("state", state=state.value, reason=reason)

    def _follow_reason(self, state: State, seen: DaemonView) -> None:
        """One thing may prevent it from serving after another."""
        reason = self._why
        if state is State.REFUSED:
            reason = seen.obstacle
        elif state in DRAINS and self._drain.asked:
            reason = self._drain.reason
        if reason != self._why:
            self._why = reason
            self._kept.change(reason=reason)
            self._log.info("state", state=state.value, reason=reason)

    def _last_client_ended(self, death: ClientDeath) -> None:
        """Has mpsd make a context before others may, unless it ended well."""
        if death.is_well:
            return
        self._daemon.first_context.is_awaited = True
        if self.record.state in SERVING:
            self._hold_back()
        self.wake()

    def _try_context(self) -> None:
        """A program that connected is gone before it was listed, as one that gets no context: mpsd
        makes one of its own, now and then, which holds nobody back."""
        now = time.monotonic()
        if self.record.state in SERVING and now >= self._context_at:
            self._context_at = now + _CONTEXT_S
            self._begin_context()

    def _hold_back(self) -> None:
        gate.remove(self._folder)
        if not self._daemon.first_context.is_begun:
            self._kept.change(held_until_s=clock.boot_s() + self._policy().graces.start_s)
        self._begin_context()

    def _begin_context(self) -> None:
        graces = self._policy().graces
        daemon = self._daemon
        if not daemon.first_context.is_begun:
            pipe = daemon.pipe(graces.command_s)
            daemon.first_context.begin(pipe, daemon.servers, graces.start_s)

    def _set_gate(self, state: State) -> None:
        """Before the record says so. While starting it stays: clients of an adopted daemon go on.
        Without a file of limits there is none: a container would be denied its GPU."""
        if state in SERVING and self._daemon.first_context.is_awaited:
            self._hold_back()
        elif self.record.unwatched:
            gate.remove(self._folder)
        elif state in SERVING and self._place.with_gate and self._folder.limits.exists():
            gate.make(self._folder)
        elif state is not State.STARTING or self._daemon.no_server:
            gate.remove(self._folder)

    async def _act(self) -> None:
        state = self.record.state
        policy = self._policy()
        graces = policy.graces
        if self._daemon.alive and self._modes.is_news(policy) and not self._daemon.foreign:
            self._modes.try_to_follow(policy)
        if state is State.DOWN and self._restarts.is_due and not self._drain.leaving:
            gate.remove(self._folder)
            if self._restarts.start(policy):
                self.wake()
        elif state is State.REFUSED and not self._daemon.alive:
            self._restarts.count_end(policy.restarts)
        elif state is State.STARTING and not self._daemon.settled:
            await self._settle()
        elif state is State.REFUSED and self._daemon.alive and not self._daemon.foreign:
            if not self._drain.trouble:
                await self._settling.try_canary_again(policy)
        elif state is State.WEDGED:
            self._daemon.end_holders()
            why = "it did not answer for too long"
            self._restarts.kill_after(graces.wedged_limit_s, why, self._daemon.silent_s)
        elif state is State.DRAINED and self._drain.is_for_sickness:
            self._restarts.kill("a canary on a new one is to show whether its GPU is well")
        elif why := self._faults.why_stuck(graces):
            self._restarts.kill(why)
        else:
            self._set_gate(state)
        if self.record.held_until_s and not self._daemon.first_context.is_awaited:
            self._kept.change(held_until_s=0.0)

    async def _settle(self) -> None:
        policy = self._policy()
        now = time.monotonic()
        in_use = self.record.served and self._drain.granted
        usurped = self._usurper()
        if usurped and (now < self._try_at or not in_use):
            if usurped != self.record.reason:
                self._log.warning("no server", reason=usurped)
            self._kept.change(reason=usurped)
            return
        self._try_at = now + _TRY_S
        settled = await self._settling.settle(policy, in_use=in_use, doubtful=bool(usurped))
        self._kept.change(reason=usurped or self._daemon.trouble, servers=self._daemon.servers)
        if settled:
            self.wake()
        elif not usurped and not self._daemon.canary.running:
            why = "it could not be made ready"
            self._restarts.kill_after(policy.graces.start_s, why, clock.boot_s())

    async def stop(self, timeout_s: int) -> None:
        """After so many seconds for clients, and undoes all; another's daemon is left alone."""
        await self.end(timeout_s)
        self.forget()
        self._log.info("stopped")

    async def end(self, timeout_s: int) -> None:
        """As `stop`, but the record and the compute mode stay."""
        gate.remove(self._folder)
        self._ends_foreign = self._ends_foreign or self._daemon.foreign
        if self._ends_foreign:
            self._daemon.release()
            return
        if self.is_empty and self._daemon.alive:
            # before the daemon ends: its end is no loss to anybody
            self._kept.change(state=State.DRAINED, reason=self._drain.reason)
        await self._daemon.quit(timeout_s, self._policy().graces)

    def forget(self) -> None:
        """After `end`, where nobody has these GPUs next."""
        self._modes.put_back()
        self.clear()

    def clear(self) -> None:
        """Removes the domain's files, after `end`."""
        self._folder.clear(with_pipe=not self._ends_foreign)

    def release(self) -> None:
        """Leaves the daemon running for the next mpsd to adopt."""
        self._daemon.release()
