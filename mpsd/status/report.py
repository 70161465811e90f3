"""Keeps the API server informed of a node: MPSNode, node condition, labels, pods' annotations,
events.

The node never waits for the API server, which gets it as it is when it is written. None of the
rights that this takes (manifests/chart/templates/agent) can be limited to its own node by RBAC.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from mpsd.agent.rules.node_events import node_events
from mpsd.model import events
from mpsd.model.events import Event, EventCount, Reason
from mpsd.model.identity import PodName
from mpsd.model.node_report import SeenViolations
from mpsd.model.node_view import NodeView
from mpsd.model.policy import Policy
from mpsd.platform import clock
from mpsd.platform.event_loop import until_one_ends
from mpsd.platform.kube import (
    EVENTS,
    NODES,
    PODS,
    Conflict,
    Kube,
    KubeError,
    NotFound,
    Object,
    PatchKind,
    Unavailable,
)
from mpsd.platform.logs import Logger, logger
from mpsd.platform.rules.kubernetes_objects import KubernetesNode
from mpsd.status.report_node import (
    MPSNodeDuty,
    NodeConditionDuty,
    NodeLabelsDuty,
    StartupTaintDuty,
    ThisNode,
)
from mpsd.status.rules.events import EventAggregator, Writing
from mpsd.status.rules.pods import PodAnnotations

_BACK_OFF = wait_random_exponential(multiplier=0.5, max=30.0)


class Duty(Protocol):
    """A thing that the API server is kept informed of. changed: set when there may be something to
    write."""

    name: str
    changed: asyncio.Event

    def due_in_s(self) -> float | None:
        """None: nothing until `changed` is set."""

    async def write(self) -> None:
        """Writes what is due. KubeError where that failed, and it is tried again."""


class Reachability:
    """Logs when the API server goes and is back, and when other troubles begin and end."""

    def __init__(self) -> None:
        self._log = logger(role="agent", part="report")
        self._away: set[str] = set()  # the duties that do not reach it
        self._troubles: dict[str, str] = {}
        # seconds since 1970; None while the API server answers
        self.away_since: float | None = None

    def failed(self, duty: str, error: BaseException | None) -> None:
        if isinstance(error, Unavailable):
            self._away.add(duty)
            if self.away_since is None:
                self.away_since = clock.wall_s()
                then = "the node is reported as it is on its return"
                self._log.warning("API server away", reason=str(error), then=then)
        elif self._troubles.get(duty) != str(error):
            self._troubles[duty] = str(error)
            self._log.warning("not reported", what=duty, reason=str(error))

    def succeeded(self, duty: str) -> None:
        self._away.discard(duty)
        if self.away_since is not None and not self._away:
            self._log.info("API server back", after_s=round(clock.wall_s() - self.away_since))
            self.away_since = None
        if self._troubles.pop(duty, None):
            self._log.info("reported again", what=duty)


async def keep(duty: Duty, reachability: Reachability) -> None:
    def note(attempt: RetryCallState) -> None:
        reachability.failed(duty.name, attempt.outcome.exception() if attempt.outcome else None)

    retrying = AsyncRetrying(
        wait=_BACK_OFF, retry=retry_if_exception_type(KubeError), before_sleep=note
    )
    while True:
        duty.changed.clear()
        if (due_s := duty.due_in_s()) is not None and due_s <= 0:
            await retrying(duty.write)
            reachability.succeeded(duty.name)
            continue
        with suppress(TimeoutError):
            async with asyncio.timeout(due_s):
                await duty.changed.wait()


class EventsDuty:
    """Writes what happened as Kubernetes Events. One that the API server refuses is dropped, so
    that it holds up no other.
    """

    name = "events"

    def __init__(self, kube: Kube, node: str) -> None:
        self.changed = asyncio.Event()
        self._kube = kube
        self._node = node
        self._events = EventAggregator()
        self._dropped = 0
        self._log = logger(role="agent", part="report")

    def note(self, event: Event) -> None:
        self._note(event)
        if self._events.dropped > self._dropped:
            self._dropped = self._events.dropped
            lost = "more happened than could be reported; see the log of the agent"
            self._note(Event(events.node_subject(self._node), Reason.EVENTS_DROPPED, lost))
        self.changed.set()

    def _note(self, event: Event) -> None:
        at = event.at
        if at is None:
            at = clock.wall_s()
        self._events.note(event, time.monotonic(), at)

    def due_in_s(self) -> float | None:
        due = self._events.next_due(now := time.monotonic())
        return None if due is None else due - now

    async def write(self) -> None:
        while writing := self._events.take(time.monotonic()):
            try:
                await self._write(writing)
            except Unavailable:
                raise
            except KubeError as error:  # its namespace is being deleted, or a right is missing
                self._events.refused(writing.seen)
                self._dropped = self._events.dropped
                self._log.warning(
                    "event dropped", subject=str(writing.seen.event.subject), reason=str(error)
                )

    async def _write(self, writing: Writing) -> None:
        seen = writing.seen
        count = None
        if writing.is_new:
            try:
                namespace = seen.event.subject.event_namespace
                await self._kube.create(EVENTS, events.event_object(seen, self._node), namespace)
            except Conflict:  # an agent before this one wrote it
                count = await self._count_on(seen)
        else:
            try:
                await self._patch(seen, events.event_patch(seen))
            except NotFound:  # the API server keeps events for an hour
                self._events.gone(seen)
                return
        self._events.wrote(seen, time.monotonic(), count)

    async def _count_on(self, seen: EventCount) -> int:
        """Adds our count to the one that is there; gives the sum. An empty patch reads."""
        found = await self._patch(seen, {})
        if events.is_reported_by(found, seen):
            return events.count_in(found)
        count = events.count_in(found) + seen.count
        await self._patch(seen, events.event_patch(seen) | {"count": count})
        return count

    async def _patch(self, seen: EventCount, patch: Object) -> Object:
        namespace = seen.event.subject.event_namespace
        return await self._kube.patch(EVENTS, seen.name, patch, PatchKind.MERGE, namespace)


_AGAIN_S = 60.0  # between two writes of the same on one pod, should somebody else write otherwise


class PodAnnotationsDuty:
    """Writes what mpsd decided for a pod as annotations of it, through its status: the right to
    patch a pod itself includes its image. Another pod that has the name by now is left alone.
    """

    name = "the pods' annotations"

    def __init__(self, kube: Kube) -> None:
        self.changed = asyncio.Event()
        self._kube = kube
        self._offered: Sequence[PodAnnotations] | None = None  # None before the first offer
        self._annotations: dict[PodName, PodAnnotations] = {}
        # and when, by a monotonic clock
        self._written: dict[PodName, tuple[dict[str, str], float]] = {}

    def offer(self, annotations: Sequence[PodAnnotations]) -> None:
        """annotations: of all pods of this node. The very same object again is nothing new."""
        if annotations is self._offered:
            return
        self._offered = annotations
        self._annotations = {one.pod: one for one in annotations if one.missing}
        here = [one.pod for one in annotations if one.pod in self._written]
        self._written = {pod: self._written[pod] for pod in here}
        self.changed.set()

    def due_in_s(self) -> float | None:
        return min(map(self._due_in_s, self._annotations.values()), default=None)

    async def write(self) -> None:
        for annotations in [one for one in self._annotations.values() if self._due_in_s(one) <= 0]:
            pod = annotations.pod
            with suppress(NotFound, Conflict):  # it has gone
                await self._kube.patch(
                    PODS, pod.name, annotations.patch, PatchKind.MERGE, pod.namespace, "status"
                )
            self._written[pod] = dict(annotations.wants), time.monotonic()

    def _due_in_s(self, annotations: PodAnnotations) -> float:
        wants, at = self._written.get(annotations.pod, ({}, 0.0))
        return at + _AGAIN_S - time.monotonic() if wants == annotations.wants else 0.0


_REST_S = 1.0  # that a stop waits for the API server


class NodeReporter:
    """Reports a node, by its name in the cluster; no call waits for the API server. taint,
    is_offered: of StartupTaintDuty."""

    def __init__(
        self,
        kube: Kube,
        node: str,
        policy: Callable[[], Policy],
        taint: str = "",
        is_offered: Callable[[], bool] = lambda: False,
    ) -> None:
        self._policy = policy
        self._policy_then: Policy | None = None  # None before the first view
        self._upgrade_then = ""
        self._node = ThisNode(kube, node)
        self._condition = NodeConditionDuty(kube, self._node, policy)
        self._mpsnode = MPSNodeDuty(kube, self._node, policy)
        self._pods = PodAnnotationsDuty(kube)
        self._events = EventsDuty(kube, node)
        self._labels = NodeLabelsDuty(kube, self._node, policy)
        self._startup_taint = StartupTaintDuty(kube, self._node, taint, is_offered)
        self._duties: tuple[Duty, ...] = (
            *(self._condition, self._mpsnode, self._pods, self._events),
            *(self._labels, self._startup_taint),
        )
        self.reachability = Reachability()
        self.on_event: Callable[[Event], None] = lambda _event: None

    def report(
        self,
        view: NodeView,
        annotations: Sequence[PodAnnotations] = (),
        violations: SeenViolations | None = None,
    ) -> None:
        before = self._node.view
        policy = self._policy()
        upgrade = self._node.driver_upgrade
        same = (policy, upgrade) == (self._policy_then, self._upgrade_then)
        news = not same or before is None or replace(before, now=view.now, now_s=view.now_s) != view
        if news:
            for event in node_events(before, view, self._node.name):
                self._events.note(event)
            self._condition.changed.set()
            self._labels.changed.set()
        if news or violations != self._node.violations:
            self._mpsnode.changed.set()
        self._node.see(view, violations, news=news)
        self._policy_then = policy
        self._upgrade_then = upgrade
        self._pods.offer(annotations)

    def see(self, node: KubernetesNode) -> None:
        self._labels.see(node)
        self._startup_taint.see(node.taints)

    def add_event(self, pod: PodName | None, reason: Reason, message: str) -> None:
        subject = events.pod_subject(pod) if pod else events.node_subject(self._node.name)
        event = Event(subject, reason, message)
        self._events.note(event)
        self.on_event(event)

    async def run(self, stop: asyncio.Event) -> None:
        loops = [keep(duty, self.reachability) for duty in self._duties]
        tasks: list[asyncio.Task[object]] = [*map(asyncio.create_task, (stop.wait(), *loops))]
        try:
            # a duty ends only by a fault of ours, which must not stay unseen
            await until_one_ends(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self._write_the_rest()

    async def _write_the_rest(self) -> None:
        """The events are known only here."""
        if self.reachability.away_since is not None:
            return
        with suppress(TimeoutError, KubeError):
            async with asyncio.timeout(_REST_S):
                for duty in self._duties:
                    if (due_s := duty.due_in_s()) is not None and due_s <= _REST_S:
                        await duty.write()


_SETTLE_S = 1.0  # from a pod's binding to its Allocate: two watches and kubelet's admission
_DEADLINE_S = 1.0  # an agent goes, whether the API server answers or not


@dataclass(frozen=True, slots=True)
class ShutdownReport:
    """Reports that nothing is free here before an agent ends: kubelet refuses for good what comes
    to it without a plugin (UnexpectedAdmissionError; a Job burns a retry), and counts devices only
    every ten seconds. Once the next agent has registered, it counts again.
    """

    kube: Kube
    node: str
    policy: Callable[[], Policy]
    log: Logger

    async def announce(self) -> None:
        """While the plugin still serves. Returns when what was on its way has come."""
        if await self.write():
            self.log.info("nothing offered", reason="the agent stops")
            await asyncio.sleep(_SETTLE_S)

    async def write(self) -> bool:
        """Also when the plugin has gone: kubelet may have counted in between."""
        resources = self.policy().resources
        patch = {"status": {"allocatable": {resources.memory: "0", resources.percent: "0"}}}
        try:
            async with asyncio.timeout(_DEADLINE_S):
                await self.kube.patch(
                    NODES, self.node, patch, PatchKind.STRATEGIC, subresource="status"
                )
        except (KubeError, TimeoutError) as error:
            self.log.warning(
                "shutdown not reported", reason=str(error) or "the Kubernetes API does not answer"
            )
            return False
        return True
