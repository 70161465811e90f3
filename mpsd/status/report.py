"""Keeps the API server informed of a node: MPSNode, node condition, number of GPUs, pods' annotations, events.

The node never waits for the API server: what is to be reported is remembered as it is now, and written by tasks of
their own. After an hour without an API server it gets the node as it is then, once.

Rights of the agent's service account, none of which can be limited to its own node by RBAC:

    get                   nodes
    patch                 nodes/status
    get, create, patch    mpsnodes.mpsd.io (list, watch too for spec.cordoned)
    patch                 mpsnodes.mpsd.io/status
    patch                 pods (list, watch too for the pods of the node)
    create, patch         events
    create                pods/eviction (for whoever evicts, not here)
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from mpsd.agent.rules.node_events import node_events
from mpsd.model.events import Event, EventCount, count_in, event_object, event_patch, is_told_by, node_subject
from mpsd.model.identity import PodName
from mpsd.model.node_view import NodeView, is_as_before
from mpsd.model.policy import Policy
from mpsd.platform.kube import (
    NODES,
    PODS,
    Conflict,
    Kube,
    KubeError,
    NotFound,
    Object,
    PatchKind,
    Resource,
    Unavailable,
)
from mpsd.platform.logs import Logger, logger
from mpsd.status.report_node import MPSNodeDuty, NodeConditionDuty, ReadyCondition, ThisNode
from mpsd.status.rules.events import EventAggregator, Writing, dropped_happening
from mpsd.status.rules.pods import PodAnnotations, marks_patch
from mpsd.watchdog.rules.reported import NodeViolations

EVENTS = Resource("v1", "events")
_BACK_OFF = wait_random_exponential(multiplier=0.5, max=30.0)


class Duty(Protocol):
    """A thing that the API server is kept informed of. changed: set when there may be something to write.

    What is written is true at that moment; nothing waits in a queue for the API server to return.
    """

    name: str
    changed: asyncio.Event

    def due_in_s(self) -> float | None:
        """None: nothing until `changed` is set."""

    async def write(self) -> None:
        """Writes what is due. KubeError where that failed, and it is tried again."""


class Reachability:
    """Logs once that the API server is away, and once that it is back; other troubles when they begin and end."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._log = logger(role="agent", part="report")
        self._away: set[str] = set()  # the duties that do not reach it
        self._troubles: dict[str, str] = {}
        self.away_since: float | None = None

    def failed(self, duty: str, error: BaseException | None) -> None:
        if isinstance(error, Unavailable):
            self._away.add(duty)
            if self.away_since is None:
                self.away_since = self._now()
                self._log.warning(
                    "API server away", reason=str(error), then="the node is reported as it is on its return"
                )
        elif self._troubles.get(duty) != str(error):
            self._troubles[duty] = str(error)
            self._log.warning("not reported", what=duty, reason=str(error))

    def succeeded(self, duty: str) -> None:
        self._away.discard(duty)
        if self.away_since is not None and not self._away:
            self._log.info("API server back", after_s=round(self._now() - self.away_since))
            self.away_since = None
        if self._troubles.pop(duty, None):
            self._log.info("reported again", what=duty)


async def keep(duty: Duty, reachability: Reachability) -> None:
    """Writes what is due when it is due, until it is cancelled."""

    def note(attempt: RetryCallState) -> None:
        reachability.failed(duty.name, attempt.outcome.exception() if attempt.outcome else None)

    retrying = AsyncRetrying(wait=_BACK_OFF, retry=retry_if_exception_type(KubeError), before_sleep=note)
    while True:
        await _until_due(duty)
        await retrying(duty.write)
        reachability.succeeded(duty.name)


async def _until_due(duty: Duty) -> None:
    while True:
        duty.changed.clear()
        due_s = duty.due_in_s()
        if due_s is not None and due_s <= 0:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(due_s):
                await duty.changed.wait()


class EventsDuty:
    """Writes what happened as Kubernetes Events; `status.rules.events` decides which and when.

    An event that the API server refuses is dropped, so that it holds up no other.
    """

    name = "events"

    def __init__(self, kube: Kube, node: str) -> None:
        self.changed = asyncio.Event()
        self._kube = kube
        self._node = node
        self._events = EventAggregator()
        self._dropped = 0
        self._log = logger(role="agent", part="report")

    def note(self, happening: Event) -> None:
        self._events.note(happening, time.time() if happening.at is None else happening.at)
        if self._events.dropped > self._dropped:
            self._dropped = self._events.dropped
            self._events.note(dropped_happening(node_subject(self._node)), time.time())
        self.changed.set()

    def due_in_s(self) -> float | None:
        now = time.time()
        due = self._events.next_due(now)
        return None if due is None else due - now

    async def write(self) -> None:
        while writing := self._events.take(time.time()):
            try:
                await self._write(writing)
            except Unavailable:
                raise
            except KubeError as error:  # its namespace is being deleted, or a right is missing
                self._events.refused(writing.event)
                self._dropped = self._events.dropped
                self._log.warning("event dropped", subject=str(writing.event.happening.subject), reason=str(error))

    async def _write(self, writing: Writing) -> None:
        event = writing.event
        namespace = event.happening.subject.event_namespace
        if writing.is_new:
            try:
                await self._kube.create(EVENTS, event_object(event, self._node), namespace)
            except Conflict:  # an agent before this one wrote it
                self._events.wrote(event, time.time(), await self._count_on(event, namespace))
                return
        else:
            try:
                await self._patch(event, event_patch(event), namespace)
            except NotFound:  # the API server keeps events for an hour
                self._events.gone(event)
                return
        self._events.wrote(event, time.time())

    async def _count_on(self, event: EventCount, namespace: str) -> int:
        """Adds our count to the one that is there; gives the sum. The first patch changes nothing: it reads."""
        found = await self._patch(event, {}, namespace)
        if is_told_by(found, event):
            return count_in(found)
        count = count_in(found) + event.count
        await self._patch(event, event_patch(event) | {"count": count}, namespace)
        return count

    async def _patch(self, event: EventCount, patch: Object, namespace: str) -> Object:
        return await self._kube.patch(EVENTS, event.name, patch, PatchKind.MERGE, namespace)


_AGAIN_S = 60.0  # between two writes of the same on one pod, should somebody else write otherwise


@dataclass(frozen=True, slots=True)
class _ReportedAnnotations:
    wants: dict[str, str]
    at: float


class PodAnnotationsDuty:
    """Writes what mpsd decided for a pod as annotations of it.

    A pod that has gone, or whose name another has by now, is left alone.
    """

    name = "the pods' annotations"

    def __init__(self, kube: Kube) -> None:
        self.changed = asyncio.Event()
        self._kube = kube
        self._offered: Sequence[PodAnnotations] | None = None  # None before the first offer
        self._marks: dict[PodName, PodAnnotations] = {}
        self._told: dict[PodName, _ReportedAnnotations] = {}

    def offer(self, marks: Sequence[PodAnnotations]) -> None:
        """The pods of this node as they are now, and no others. The very same marks again are nothing new."""
        if marks is self._offered:
            return
        self._offered = marks
        self._marks = {one.pod: one for one in marks if one.missing}
        here = {one.pod for one in marks}
        self._told = {pod: told for pod, told in self._told.items() if pod in here}
        self.changed.set()

    def due_in_s(self) -> float | None:
        return min(map(self._due_in_s, self._marks.values()), default=None)

    async def write(self) -> None:
        for marks in [one for one in self._marks.values() if self._due_in_s(one) <= 0]:
            pod = marks.pod
            with suppress(NotFound, Conflict):  # it has gone
                await self._kube.patch(PODS, pod.name, marks_patch(marks), PatchKind.MERGE, pod.namespace)
            self._told[pod] = _ReportedAnnotations(dict(marks.wants), time.monotonic())

    def _due_in_s(self, marks: PodAnnotations) -> float:
        told = self._told.get(marks.pod)
        if told is None or told.wants != marks.wants:
            return 0.0
        return told.at + _AGAIN_S - time.monotonic()


_REST_S = 1.0  # what a stop waits for the API server


class NodeReport:
    """Reports a node. node: its name in the cluster. `report` and `happened` return at once, whatever the API server
    does.
    """

    def __init__(self, kube: Kube, node: str, policy: Callable[[], Policy]) -> None:
        self._node = node
        self._policy = policy
        self._view: NodeView | None = None  # None before the first one
        self._policy_then: Policy | None = None  # likewise
        self._ready = ReadyCondition()
        this_node = ThisNode(kube, node, self._ready)
        self._condition = NodeConditionDuty(kube, this_node, self._ready, policy)
        self._mpsnode = MPSNodeDuty(kube, this_node, self._ready, policy)
        self._pods = PodAnnotationsDuty(kube)
        self._events = EventsDuty(kube, node)
        self._reachability = Reachability(time.time)
        self.on_happening: Callable[[Event], None] = lambda _happening: None

    def report(
        self, view: NodeView, marks: Sequence[PodAnnotations] = (), violations: NodeViolations | None = None
    ) -> None:
        """The node as it is now. marks: each pod of this node that holds devices, with the annotations it must have.

        violations: None where nobody watches.
        """
        news = self._policy() is not self._policy_then or not is_as_before(self._view, view)
        if news:
            for happening in node_events(self._view, view, self._node):
                self._events.note(happening)
            self._ready.see(view)
        self._view, self._policy_then = view, self._policy()
        self._condition.offer(view, news=news)
        self._mpsnode.offer_with(violations, view, news=news)
        self._pods.offer(marks)

    def happened(self, happening: Event) -> None:
        """Something that a view does not show, such as an allocation that was refused. Reported as an event."""
        self._events.note(happening)
        self.on_happening(happening)

    @property
    def away_since(self) -> float | None:
        """Seconds since 1970 since when the API server does not answer; None while it does."""
        return self._reachability.away_since

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`, and a second more at most."""
        tasks: list[asyncio.Task[object]] = [
            asyncio.create_task(keep(duty, self._reachability)) for duty in self._duties
        ]
        stopping: asyncio.Task[object] = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()  # a duty ends only by a fault of ours, which must not stay unseen
        finally:
            for task in (*tasks, stopping):
                task.cancel()
            await asyncio.gather(*tasks, stopping, return_exceptions=True)
        await self._write_the_rest()

    @property
    def _duties(self) -> tuple[Duty, ...]:
        return self._condition, self._mpsnode, self._pods, self._events

    async def _write_the_rest(self) -> None:
        """What was about to be written; nobody else knows of the events."""
        if self.away_since is not None:
            return
        with suppress(TimeoutError, KubeError):
            async with asyncio.timeout(_REST_S):
                for duty in self._duties:
                    due_s = duty.due_in_s()
                    if due_s is not None and due_s <= _REST_S:
                        await duty.write()


_SETTLE_S = 1.0  # from a pod's binding to its Allocate: two watches and kubelet's admission
_DEADLINE_S = 1.0  # an agent goes, whether the API server answers or not


class ShutdownReport:
    """Reports that nothing is free here before an agent ends, so that no pod is on its way when its plugin is gone.

    Kubelet refuses for good what comes to it without a plugin (UnexpectedAdmissionError; a Job burns a retry), and
    counts devices only every ten seconds. So the scheduler gets it from us, and from kubelet a little later; when the
    next agent has registered, kubelet counts again and the node is open. node: its name in the cluster.
    """

    def __init__(self, kube: Kube, node: str, policy: Callable[[], Policy], log: Logger) -> None:
        self._kube = kube
        self._node = node
        self._policy = policy
        self._log = log

    async def announce(self) -> None:
        """While the plugin still serves. Returns when what was on its way has come; at once where nobody hears it."""
        if await self._write():
            self._log.info("nothing offered", reason="the agent stops")
            await asyncio.sleep(_SETTLE_S)

    async def repeat(self) -> None:
        """When the plugin has gone: kubelet may have counted in between."""
        await self._write()

    async def _write(self) -> bool:
        resources = self._policy().resources
        patch = {"status": {"allocatable": {resources.memory: "0", resources.percent: "0"}}}
        try:
            async with asyncio.timeout(_DEADLINE_S):
                await self._kube.patch(NODES, self._node, patch, PatchKind.STRATEGIC, subresource="status")
        except (KubeError, TimeoutError) as error:
            self._log.warning("shutdown not reported", reason=str(error) or "the Kubernetes API does not answer")
            return False
        return True
