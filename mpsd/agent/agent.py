"""The agent of one node: in each cycle it looks, decides and acts; `GrantQueue` holds requests that
wait. All it knows can be found again on the node, so it may be killed at any time."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mpsd.agent.rules.decide import (
    Action,
    Admit,
    EndGrant,
    Forget,
    Refuse,
    SetLimit,
    decide,
    is_open,
    no_daemon,
    stages,
    why_closed,
)
from mpsd.agent.rules.node_events import EventHistory
from mpsd.grants.ledger import Ledger
from mpsd.grants.rules.messages import join_s
from mpsd.model.identity import PodName, ProcessIdentity, process_of
from mpsd.model.node_view import (
    DomainRecord,
    DomainView,
    NodeView,
    ServerLimit,
    WaitingRequest,
    past_pods,
)
from mpsd.model.policy import Policy
from mpsd.mps import gate
from mpsd.mps.control_daemon import ControlPipe
from mpsd.mps.memory_caps import CapFiles, CapRequests
from mpsd.mps.node_gpus import Node
from mpsd.mps.records import DomainRecords, NodeDomains
from mpsd.mps.rules.control_protocol import ControlFailed
from mpsd.mps.rules.faults import reasons
from mpsd.platform import clock, life, records
from mpsd.platform.event_loop import DeathWatch, Shortages
from mpsd.platform.logs import logger
from mpsd.platform.run_directory import why_unsaved
from mpsd.platform.settings import Settings
from mpsd.watchdog.watchdog import Watchdog

# a confirmed limit counts so long: root programs can change it (docs/mps-observed.md, section 4)
_CONFIRMED_S = 120.0
_CYCLE_S = 2.0  # between two cycles that nothing asked for
_SOON_S = 0.2  # after an action failed, or while a grant has clients left and its holder is gone
_RECORDS_S = 0.25  # between two checks of the domains' records, which cost a stat each


_Confirmed = dict[tuple[int | None, int], tuple[ServerLimit, float]]


@dataclass(slots=True)
class DomainLimits:
    """Sets the memory limits of daemons. One is in force once it was read back from this very
    daemon and server. environment: of the commands."""

    settings: Settings
    environment: Mapping[str, str]
    policy: Callable[[], Policy]
    # by domain, its daemon, and by server and ordinal the limit and when it was read back
    _confirmed: dict[str, tuple[ProcessIdentity | None, _Confirmed]] = field(default_factory=dict)

    def view(self, record: DomainRecord, now_s: float) -> DomainView:
        """The domain with the limits that are known to be in force."""
        daemon, confirmed = self._confirmed.get(record.domain, (None, {}))
        if daemon != record.daemon:
            confirmed = {}
        self._confirmed[record.domain] = record.daemon, confirmed
        limits = set()
        for limit, at in confirmed.values():
            if now_s - at < _CONFIRMED_S and limit.server in (None, *record.servers):
                limits.add(limit)
        return DomainView(record, frozenset(limits))

    async def set(self, domain: str, limit: ServerLimit, now_s: float) -> bool:
        """False where it was only set again. ControlFailed."""
        folder = self.settings.domain(domain)
        if limit.server is None:  # first, so that a daemon that is started meanwhile gets it too
            records.write(folder.limits, limit.memory_mib)
        pipe = ControlPipe(folder.pipe, self.environment, self.policy().graces.command_s)
        _daemon, confirmed = self._confirmed.setdefault(domain, (None, {}))
        before = confirmed.pop((limit.server, limit.ordinal), None)
        await pipe.set_limit(limit)
        confirmed[limit.server, limit.ordinal] = (limit, now_s)
        return before is None or before[0] != limit


@dataclass(slots=True)
class _QueueEntry:
    waiting: WaitingRequest
    answer: asyncio.Future[Admit | Refuse]
    watch: DeathWatch


@dataclass(slots=True)
class GrantQueue:
    """Requests without an answer, in order. wake: called for each change."""

    wake: Callable[[], None]
    _entries: dict[str, _QueueEntry] = field(default_factory=dict)

    async def wait(self, waiting: WaitingRequest) -> Admit | Refuse:
        """The answer, once there is one; a caller that is cancelled leaves the queue."""
        answer: asyncio.Future[Admit | Refuse] = asyncio.get_running_loop().create_future()
        watch = DeathWatch(process_of(waiting.holder), self.wake)
        self._entries[waiting.id] = _QueueEntry(waiting, answer, watch)
        self.wake()
        try:
            return await answer
        finally:
            self._entries.pop(waiting.id, None)
            watch.close()
            self.wake()

    def everyone(self) -> tuple[WaitingRequest, ...]:
        return tuple(
            replace(entry.waiting, holder_alive=entry.watch.alive)
            for entry in self._entries.values()
            if not entry.answer.done()
        )

    def get(self, waiting_id: str) -> WaitingRequest | None:
        """None where nobody waits for its answer any more."""
        entry = self._entries.get(waiting_id)
        return entry.waiting if entry and not entry.answer.done() else None

    def answer(self, answer: Admit | Refuse) -> None:
        """Does nothing where nobody waits for it any more."""
        if self.get(answer.id):
            self._entries[answer.id].answer.set_result(answer)

    def forget(self, waiting_id: str) -> None:
        if entry := self._entries.pop(waiting_id, None):
            entry.answer.cancel()


class AgentRole:
    """One node's agent. wake: begins a cycle now; the ledger sets it too."""

    def __init__(
        self,
        settings: Settings,
        node: Node,
        policy: Callable[[], Policy],
        ledger: Ledger,
        domains: NodeDomains,
        wake: asyncio.Event,
    ) -> None:
        self._policy = policy
        self._node = node
        self._driver = node.nvml.driver()
        self._log = logger(role="agent")
        self._shortages = Shortages(self._log)
        self._wake = wake
        self._next_cycle = asyncio.Event()  # set at the end of the cycle that begins next
        # held while it looks, decides and acts: what it decides by must stay the same until then
        self.cycle_lock = asyncio.Lock()
        self._run_directory = settings.run_directory
        self._records = DomainRecords(settings.run_directory, self._log)
        self._caps = CapRequests(CapFiles(settings.run_directory, self._log), node.nvml, policy)
        self._limits = DomainLimits(settings, node.environment, policy)
        self.watchdog = Watchdog(settings, node, policy, ledger, self._records)
        self._ledger = ledger
        self.domains = domains
        self._troubles: dict[str, str] = {}
        self.queue = GrantQueue(self._wake.set)
        # called with each view, after the actions
        self.on_view: Callable[[NodeView], None] | None = None
        self.view: NodeView | None = None  # None before the first cycle
        self.events = EventHistory(clock.wall_s)
        self._past_pods: Mapping[str, PodName] = {}  # as of NodeView

    async def run(self, stop: asyncio.Event) -> None:
        """Looks, decides and acts until `stop`; grants, limits and clients stay as they are."""
        loaded = False
        while not loaded and not stop.is_set():
            with self._shortages.survived("load the ledger"):
                self._ledger.load()
                loaded = True
            await asyncio.sleep(0 if loaded else _SOON_S)
        async with life.Tasks() as tasks:
            tasks.create_task(self.watchdog.run(stop))
            await self._follow(stop)
        with self._shortages.survived("divide domains"):
            if self._ledger.view.is_complete:
                self.domains.divide(self._ledger.view.gpus)
        self._ledger.close()

    async def _follow(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self._wake.clear()
            cycle = self._next_cycle
            self._next_cycle = asyncio.Event()
            acted = False
            async with self.cycle_lock:
                with self._shortages.survived("cycle"):
                    acted = await self._cycle()
            cycle.set()
            pause_s = _SOON_S
            if acted and not self._ends_soon():
                pause_s = _CYCLE_S
            await self._pause(pause_s, stop)

    def _ends_soon(self) -> bool:
        """Whether a grant without its holder waits for clients that can be seen to end."""
        for held in self._ledger.view.held:
            if not held.holder_alive and self.view and self.view.sees(held.grant.gpus):
                return True
        return False

    async def _cycle(self) -> bool:
        """Looks, decides and acts. False where an action failed; the rest of that domain then waits
        for the next cycle."""
        with self._shortages.survived("follow the GPUs"):
            self._node.look()
            self.domains.follow(self._node.gpus)
            self.domains.keep_gone(self._records.read())
        with self._shortages.survived("refresh the ledger"):
            await self._ledger.refresh()
        with self._shortages.survived("keep the domains"):
            ledger = self._ledger.view
            self.domains.keep()
            if self.view and ledger.is_complete:
                self.domains.divide_idle(ledger.gpus)
        view = self._close_gates_and_look()
        actions = decide(view, self._policy())
        troubles: dict[str, Exception] = {}
        for stage in stages(actions):
            acts = [self._act_on(domain, own, troubles) for domain, own in stage.items()]
            await asyncio.gather(*acts)
        self._troubles = {domain: str(error) for domain, error in troubles.items()}
        with self._shortages.survived("ask for memory caps"):
            self._caps.ask(self._ledger.view, pods_known=self._ledger.pods_known)
        before = self.view
        if actions:
            view = self._close_gates_and_look()
        self.view = view
        self.events.compare(before, view)
        if self.on_view:
            self.on_view(view)
        return not troubles

    async def granted(self, waiting: WaitingRequest) -> Admit | Refuse:
        """The answer; where GPUs are joined for it, once they serve, else it is taken back."""
        answer = await self.queue.wait(waiting)
        if isinstance(answer, Refuse) or not answer.joins:
            return answer
        grant = answer.grant
        deadline_s = max(join_s(len(grant.gpus)), (waiting.deadline_s or 0.0) - clock.boot_s())
        if why := await self.until_allowed(grant.domain, grant.memory_mib, deadline_s):
            async with self.cycle_lock:
                self._ledger.end(grant)
            reason = f"its GPUs could not be joined in time: {why}"
            return Refuse(waiting.id, reason, for_ever=False)
        return answer

    async def until_allowed(self, domain: str, memory_mib: int, deadline_s: float) -> str:
        """Waits until the domain admits a client of this size; else why it does not."""
        if self._admits(domain, memory_mib):
            return ""
        why = no_daemon(domain)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                self._wake.set()
                while why:
                    await self._next_cycle.wait()
                    why = self._why_not(domain, memory_mib)
        return why

    def _admits(self, name: str, memory_mib: int) -> bool:
        """Whether the domain admits a client of this size now, and no cycle lowers that: none is
        under way, the last saw it as it is, and a grant as large is held."""
        ledger = self._ledger.view
        seen = self._seen(name)
        if seen is None or self.cycle_lock.locked() or ledger.unknown:
            return False
        if self.domains.replaced(seen.record):
            return False
        is_held = any(
            held.grant.domain == name and held.grant.memory_mib >= memory_mib
            for held in ledger.held
            if held.holder_alive
        )
        if not is_held or seen.record not in self._records.read():
            return False
        now = self._limits.view(seen.record, clock.boot_s())
        return is_open(now, clock.boot_s()) and now.allowed_mib >= memory_mib

    def _seen(self, domain: str) -> DomainView | None:
        """As of the last cycle; None where none has seen it."""
        return self.view.domain(domain) if self.view else None

    async def until_ended(self, grant_id: str, deadline_s: float) -> bool:
        """Waits until the grant ends with its holder and processes. Whether it did."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                self._wake.set()
                while self._ledger.view.holds(grant_id):
                    await self._next_cycle.wait()
        return not self._ledger.view.holds(grant_id)

    def _why_not(self, name: str, memory_mib: int) -> str:
        domain = self._seen(name)
        if domain is None:
            return no_daemon(name)
        if not is_open(domain, clock.boot_s()):
            return why_closed(domain)
        if domain.allowed_mib < memory_mib:
            why = self._troubles.get(name, "not yet")
            return f"{name} has not confirmed a limit of {memory_mib} MiB: {why}"
        return ""

    async def _pause(self, longest_s: float, stop: asyncio.Event) -> None:
        """Waits until a program, a death or a record asks for a cycle; `longest_s` at most."""
        until = time.monotonic() + longest_s
        while (
            not self._wake.is_set()
            and not stop.is_set()
            and (left_s := until - time.monotonic()) > 0
        ):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, _RECORDS_S)):
                    await self._wake.wait()
            with self._shortages.survived("look at records"):
                if self._records.changed():
                    return

    def _close_gates_and_look(self) -> NodeView:
        """Closes the gate of each domain without a living daemon, and looks."""
        gate.close_unguarded(self._run_directory, self._records.read(), self._log)
        return self.look()

    def look(self) -> NodeView:
        now_s = clock.boot_s()
        ledger = self._ledger.view
        scan = self.watchdog.scan()
        capped, uncapped = self._caps.in_force(ledger)
        serving: list[DomainView] = []
        leaving: list[DomainView] = []
        for record in self._records.read():
            kept = leaving if self.domains.ends(record) else serving
            kept.append(self._limits.view(record, now_s))
        view = NodeView(
            now=clock.wall_s(),
            now_s=now_s,
            driver=self._driver,
            gpus=self._node.gpus,
            domains=tuple(serving),
            leaving=tuple(leaving),
            grants=ledger.held,
            clients=scan.clients,
            unseen=scan.unseen,
            waiting=self.queue.everyone(),
            grants_known=not ledger.unknown,
            ungranted=ledger.ungranted,
            unknown=ledger.unknown,
            unexplained_mib=scan.unexplained_mib,
            unreadable=ledger.unreadable,
            capped=capped,
            uncapped=uncapped,
            past_pods=self._past_pods,
            troubles=self._node.troubles,
        )
        self._past_pods = past_pods(view)
        before = self.view.reasons if self.view else {}
        unknown = (*dict.fromkeys(view.ungrantable.values()), *view.unknown)
        return replace(view, unknown=unknown, reasons=reasons(view, ledger.ends, before))

    async def _act_on(
        self, domain: str, actions: Sequence[Action], troubles: dict[str, Exception]
    ) -> None:
        for action in actions:
            if domain not in troubles:
                try:
                    await self._do(action)
                    continue
                except (ControlFailed, OSError) as error:
                    troubles[domain] = error
                    if self._troubles.get(domain) != str(error):
                        what = {"action": type(action).__name__, "domain": domain}
                        self._log.warning("action failed", **what, reason=str(error))
            self._refuse_unsaved(action, troubles[domain])

    def _refuse_unsaved(self, action: Action, error: Exception) -> None:
        """Answers a request whose grant or limit cannot be saved, but one that waits its time out:
        what fills a run directory does not go away within a moment."""
        unsaved = why_unsaved(self._run_directory, error)
        if not unsaved or not isinstance(action, Admit):
            return
        waiting = self.queue.get(action.id)
        if waiting and (waiting.deadline_s is None or clock.boot_s() >= waiting.deadline_s):
            self._refuse(Refuse(action.id, unsaved, for_ever=False))

    def _refuse(self, refusal: Refuse) -> None:
        if request := self.queue.get(refusal.id):
            self.events.refused(request, refusal.reason)
        self.queue.answer(refusal)
        self._log.info("refused", request=refusal.id, reason=refusal.reason)

    async def _do(self, action: Action) -> None:
        match action:
            case EndGrant(grant):
                self._ledger.end(grant)
                self._log.info("grant ended", grant=grant.id, holder=str(grant.holder))
            case SetLimit(domain, limit):
                if await self._limits.set(domain, limit, clock.boot_s()):
                    of_whom = limit.server or "default for new servers"
                    self._log.info(
                        "limit set", domain=domain, server=of_whom, memory_mib=limit.memory_mib
                    )
            case Admit(grant, joins):
                # its program has gone while a limit was raised for it
                if not self.queue.get(grant.id):
                    return
                if joins and not self.domains.form(grant.gpus, self._ledger.view.gpus):
                    return  # decided again in the next cycle
                formed = {one.name: set(one.gpus) for one in self.domains.now}
                if not formed.get(grant.domain, set()).issuperset(grant.gpus):
                    return  # likewise
                self._ledger.add(grant)
                self.queue.answer(action)
                size = {"gpus": grant.gpus, "memory_mib": grant.memory_mib}
                self._log.info("granted", grant=grant.id, holder=str(grant.holder), **size)
            case Refuse():
                self._refuse(action)
            case Forget(waiting):
                self.queue.forget(waiting)
                self._log.info("request dropped", request=waiting, reason="its program is gone")
