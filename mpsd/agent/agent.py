"""The agent of one node: in each reconcile cycle it looks at the node, decides and acts; `GrantQueue` holds the
requests that wait for an answer.

Everything it knows can be found again on the node, so it may be killed at any time without an effect on clients.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mpsd.agent.rules.decide import Action, Admit, EndGrant, Forget, Refuse, SetLimit, decide, stages
from mpsd.agent.rules.node_events import REFUSED, VIOLATION_REASONS, node_events
from mpsd.grants.ledger import Ledger
from mpsd.model.domain import SERVING, after_is
from mpsd.model.events import Event, PastEvent
from mpsd.model.identity import ProcessIdentity, process_of
from mpsd.model.node_view import DomainRecord, DomainView, NodeView, ServerLimit, WaitingRequest
from mpsd.model.policy import Policy
from mpsd.mps import gate
from mpsd.mps.control_daemon import ControlFailed, ControlPipe
from mpsd.mps.node import Node
from mpsd.mps.records import DomainRecords
from mpsd.mps.rules.control_protocol import NotUnderstood
from mpsd.platform import records
from mpsd.platform.event_loop import DeathWatch
from mpsd.platform.logs import logger
from mpsd.platform.settings import Settings
from mpsd.watchdog.watchdog import Watchdog

_KEPT, _VIOLATIONS_KEPT, _REFUSALS_KEPT = 80, 20, 20


class EventHistory:
    """The last events of this node since the agent began, for its page. since: seconds since 1970.

    It is bounded by kind, so that neither refusals, violations nor repeated events push anything else out.
    """

    def __init__(self) -> None:
        self.since = time.time()
        self._kept: deque[PastEvent] = deque(maxlen=_KEPT)
        self._violations: deque[PastEvent] = deque(maxlen=_VIOLATIONS_KEPT)
        self._refusals: deque[PastEvent] = deque(maxlen=_REFUSALS_KEPT)

    def compare(self, before: NodeView | None, now: NodeView) -> None:
        """Adds the events between two consecutive views. before: None for the first."""
        self._kept.extend(_past(event) for event in node_events(before, now, ""))

    def add(self, event: Event) -> None:
        """An event that no view shows; a repeated one is kept once, at its last time."""
        new = _past(event)
        kept = self._violations if new.what in VIOLATION_REASONS else self._kept
        again = next((one for one in kept if replace(one, at=new.at) == new), None)
        if again:
            kept.remove(again)
        kept.append(new)

    def refused(self, command: str, reason: str) -> None:
        self._refusals.append(PastEvent(time.time(), REFUSED, command, reason))

    def all(self) -> Sequence[PastEvent]:
        return (*self._kept, *self._violations, *self._refusals)


def _past(event: Event) -> PastEvent:
    subject = event.subject
    where = f"{subject.namespace}/{subject.name}" if subject.namespace else subject.name
    at = time.time() if event.at is None else event.at
    return PastEvent(at, event.reason.value, where, event.message, subject.uid)


_CONFIRMED_S = 120.0  # a confirmed limit counts so long: root programs can change it (docs/mps-observed.md, section 4)


class DomainLimits:
    """Sets the memory limits of the domains' daemons, and knows which are in force.

    A limit counts as in force only after it was read back from this very daemon and server. environment: of the control
    commands.
    """

    def __init__(self, settings: Settings, environment: Mapping[str, str], policy: Callable[[], Policy]) -> None:
        self._settings = settings
        self._environment = environment
        self._policy = policy
        self._confirmed: dict[str, dict[tuple[int | None, int], tuple[ServerLimit, float]]] = {}
        self._of: dict[str, ProcessIdentity | None] = {}

    def view(self, record: DomainRecord, now: float) -> DomainView:
        """The domain with the limits that are known to be in force."""
        if self._of.get(record.domain) != record.daemon:
            self._of[record.domain] = record.daemon
            self._confirmed[record.domain] = {}
        confirmed = self._confirmed.setdefault(record.domain, {})
        here = {None, *record.servers}
        fresh = (limit for limit, at in confirmed.values() if limit.server in here and now - at < _CONFIRMED_S)
        return DomainView(record, frozenset(fresh))

    async def set(self, domain: str, limit: ServerLimit, now: float) -> bool:
        """False where it was only set again. ControlFailed or NotUnderstood where it cannot be set and read back."""
        folder = self._settings.domain(domain)
        if limit.server is None:  # first, so that a daemon that is started meanwhile gets it too
            records.write(folder.limits, limit.memory_mib)
        pipe = ControlPipe(folder.pipe, self._environment, self._policy().graces.command_s)
        confirmed = self._confirmed.setdefault(domain, {})
        before = confirmed.pop((limit.server, limit.ordinal), None)
        await pipe.set_limit(limit)
        confirmed[limit.server, limit.ordinal] = (limit, now)
        return before is None or before[0] != limit


class ReconcileCycle:
    """Lets tasks wait for a whole cycle of a loop, one that began after they asked and so saw what they had done."""

    def __init__(self) -> None:
        self._asked: list[asyncio.Future[None]] = []
        self._under_way: list[asyncio.Future[None]] = []

    def begin(self) -> None:
        """Who asks from now on waits for the next cycle."""
        self._under_way, self._asked = self._under_way + self._asked, []

    def end(self) -> None:
        served, self._under_way = self._under_way, []
        for one in served:
            if not one.done():
                one.set_result(None)

    async def next(self) -> None:
        """Returns after a whole cycle. The caller sees to it that there is one, and to a deadline."""
        one: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked.append(one)
        await one


@dataclass(slots=True)
class _QueueEntry:
    waiting: WaitingRequest
    answer: asyncio.Future[Admit | Refuse]
    watch: DeathWatch


class GrantQueue:
    """The requests that have no answer yet, in the order they came; each gets exactly one answer, or is dropped.

    wake: called when a request comes or goes.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._entries: dict[str, _QueueEntry] = {}

    async def wait(self, waiting: WaitingRequest) -> Admit | Refuse:
        """The answer, once there is one; a caller that is cancelled leaves the queue."""
        answer: asyncio.Future[Admit | Refuse] = asyncio.get_running_loop().create_future()
        watch = DeathWatch(process_of(waiting.holder), self._wake)
        self._entries[waiting.id] = _QueueEntry(waiting, answer, watch)
        self._wake()
        try:
            return await answer
        finally:
            self._entries.pop(waiting.id, None)
            watch.close()
            self._wake()

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
        waiting_id = answer.grant.id if isinstance(answer, Admit) else answer.id
        if self.get(waiting_id):
            self._entries[waiting_id].answer.set_result(answer)

    def forget(self, waiting_id: str) -> None:
        entry = self._entries.pop(waiting_id, None)
        if entry:
            entry.answer.cancel()


_CYCLE_S = 2.0  # between two cycles that nothing asked for
_SOON_S = 0.2  # after an action failed, or while a grant has clients left and its holder is gone
_RECORDS_S = 0.25  # between two checks of the domains' records, which cost a stat each


class AgentRole:
    """One node's agent. wake: begins a cycle now; the ledger sets it too."""

    def __init__(
        self, settings: Settings, node: Node, policy: Callable[[], Policy], ledger: Ledger, wake: asyncio.Event
    ) -> None:
        self._policy = policy
        self._node = node
        self._driver = node.nvml.driver()
        self._log = logger(role="agent")
        self._wake = wake
        self._cycles = ReconcileCycle()
        self._cycle_lock = asyncio.Lock()  # held while it looks, decides and acts
        self._run_directory = settings.run_directory
        self._records = DomainRecords(settings.run_directory, self._log)
        self._limits = DomainLimits(settings, node.environment, policy)
        self.watchdog = Watchdog(settings, node, policy, ledger, self._records)
        self._ledger = ledger
        self._troubles: dict[str, str] = {}
        self.queue = GrantQueue(self._wake.set)
        self.on_view: Callable[[NodeView], None] | None = None  # called with each view, after the actions
        self.view: NodeView | None = None  # None before the first cycle
        self.events = EventHistory()

    async def run(self, stop: asyncio.Event) -> None:
        """Looks, decides and acts until `stop`; grants, limits and clients are left as they are then."""
        self._ledger.load()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.watchdog.run(stop))
            await self._follow(stop)
        self._ledger.close()

    async def _follow(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self._wake.clear()
            self._cycles.begin()
            async with self._cycle_lock:
                acted = await self._cycle()
            self._cycles.end()
            quiet = acted and all(held.holder_alive for held in self._ledger.held())
            await self._pause(_CYCLE_S if quiet else _SOON_S, stop)

    async def _cycle(self) -> bool:
        """Look, decide, act; False where an action failed."""
        await self._ledger.refresh()
        view = self.look()
        actions = decide(view, self._policy())
        acted = await self._act(actions)
        before, self.view = self.view, self.look() if actions else view
        self.events.compare(before, self.view)
        if self.on_view:
            self.on_view(self.view)
        return acted

    @contextlib.asynccontextmanager
    async def between_cycles(self) -> AsyncIterator[None]:
        """For changes of what a cycle decides by, which must stay the same until it has acted."""
        async with self._cycle_lock:
            yield

    async def until_allowed(self, domain: str, memory_mib: int, deadline_s: float) -> str:
        """Waits until the domain's servers are known to admit a client of this size; else why they do not."""
        why = f"{domain} has no control daemon yet"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                self._wake.set()
                while why:
                    await self._cycles.next()
                    why = self._why_not(domain, memory_mib)
        return why

    def _why_not(self, name: str, memory_mib: int) -> str:
        domain = self.view.domain(name) if self.view else None
        if domain is None:
            return f"{name} has no control daemon yet"
        if domain.state not in SERVING:
            return f"{name} is {after_is(domain.state)}{f': {domain.record.reason}' if domain.record.reason else ''}"
        if domain.allowed_mib < memory_mib:
            return f"{name} has not confirmed a limit of {memory_mib} MiB: {self._troubles.get(name, 'not yet')}"
        return ""

    async def _pause(self, longest_s: float, stop: asyncio.Event) -> None:
        """Until something asks for a cycle: a program, a death, a domain's record; at most `longest_s`."""
        until = time.monotonic() + longest_s
        while not self._wake.is_set() and not stop.is_set() and (left_s := until - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, _RECORDS_S)):
                    await self._wake.wait()
            if self._records.changed():
                return

    def look(self) -> NodeView:
        """The node as it is now."""
        now, unknown = time.time(), list(self._ledger.unknown)
        held = tuple(self._ledger.held())
        records = self._records.read()
        gate.close_unguarded(self._run_directory, records, self._log)
        domains = tuple(self._limits.view(record, now) for record in records)
        scan = self.watchdog.scan()
        unknown.extend(scan.unknown)
        return NodeView(
            now=now,
            driver=self._driver,
            gpus=self._node.gpus,
            domains=domains,
            grants=held,
            clients=None if scan.unknown else scan.clients,
            waiting=self.queue.everyone(),
            grants_known=not self._ledger.unknown,
            ungranted=self._ledger.ungranted,
            unknown=tuple(unknown),
        )

    async def _act(self, actions: tuple[Action, ...]) -> bool:
        """Does stage after stage; after a failure in one domain the rest of that domain waits for the next cycle."""
        troubles: dict[str, str] = {}
        for stage in stages(actions):
            await asyncio.gather(*(self._act_on(domain, own, troubles) for domain, own in stage.items()))
        self._troubles = troubles
        return not troubles

    async def _act_on(self, domain: str, actions: Sequence[Action], troubles: dict[str, str]) -> None:
        """One domain's actions of a stage, one after the other."""
        for action in actions:
            if domain in troubles:
                return
            try:
                await self._do(action)
            except (ControlFailed, NotUnderstood, OSError) as error:
                troubles[domain] = str(error)
                if self._troubles.get(domain) != str(error):
                    self._log.warning("action failed", action=type(action).__name__, domain=domain, reason=str(error))

    async def _do(self, action: Action) -> None:
        match action:
            case EndGrant(grant):
                self._ledger.end(grant)
                self._log.info("grant ended", grant=grant.id, holder=str(grant.holder))
            case SetLimit(domain, limit):
                if await self._limits.set(domain, limit, time.time()):
                    of_whom = limit.server or "default for new servers"
                    self._log.info("limit set", domain=domain, server=of_whom, memory_mib=limit.memory_mib)
            case Admit(grant):
                if not self.queue.get(grant.id):  # its program has gone while a limit was raised for it
                    return
                self._ledger.add(grant)
                self.queue.answer(action)
                self._log.info(
                    "granted",
                    grant=grant.id,
                    holder=str(grant.holder),
                    gpus=grant.gpus,
                    memory_mib=grant.memory_mib,
                )
            case Refuse(waiting, reason):
                request = self.queue.get(waiting)
                self.events.refused(request.command if request else "", reason)
                self.queue.answer(action)
                self._log.info("refused", request=waiting, reason=reason)
            case Forget(waiting):
                self.queue.forget(waiting)
                self._log.info("request dropped", request=waiting, reason="its program is gone")
