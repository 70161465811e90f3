"""Keeps the API server informed of a node: MPSNode, node condition, number of GPUs, pods' annotations, events.

One rule: the node never waits for the API server. What is reported is remembered as it is now, and told by tasks of
their own; an API server that is away for an hour finds the same node afterwards, and hears of it once.

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

from mpsd.agent.rules.node_happenings import happenings
from mpsd.model.events import Happening
from mpsd.model.node_view import NodeView, is_as_before
from mpsd.model.policy import Policy
from mpsd.platform.kube import Kube, KubeError
from mpsd.platform.kube_time import stamp
from mpsd.status.report_duty import Duty, Reachability, keep
from mpsd.status.report_events import EventsDuty
from mpsd.status.report_node import MPSNodeDuty, NodeConditionDuty, ReadyCondition, ThisNode
from mpsd.status.report_pods import PodMarksDuty
from mpsd.status.rules.pod_marks import PodMarks
from mpsd.watchdog.rules.reported import NodeViolations

_LAST_WORDS_S = 1.0  # what a stop waits for the API server


class NodeReport:
    """node: its name in the cluster. `report` and `happened` return at once, whatever the API server does."""

    def __init__(self, kube: Kube, node: str, policy: Callable[[], Policy]) -> None:
        self._node = node
        self._policy = policy
        self._view: NodeView | None = None  # None before the first one
        self._policy_then: Policy | None = None  # likewise
        self._ready = ReadyCondition()
        this_node = ThisNode(kube, node, self._ready)
        self._condition = NodeConditionDuty(kube, this_node, self._ready, policy)
        self._mpsnode = MPSNodeDuty(kube, this_node, self._ready, policy)
        self._pods = PodMarksDuty(kube)
        self._events = EventsDuty(kube, node)
        self._reachability = Reachability(time.time)
        self.on_happening: Callable[[Happening], None] = lambda _happening: None

    def report(self, view: NodeView, marks: Sequence[PodMarks] = (), violations: NodeViolations | None = None) -> None:
        """The node as it is now. marks: each pod of this node that holds devices, with the annotations it must have.

        violations: None where nobody watches.
        """
        news = self._policy() is not self._policy_then or not is_as_before(self._view, view)
        if news:
            for happening in happenings(self._view, view, self._node, stamp):
                self._events.note(happening)
            self._ready.see(view)
        self._view, self._policy_then = view, self._policy()
        self._condition.offer(view, news=news)
        self._mpsnode.offer_with(violations, view, news=news)
        self._pods.offer(marks)

    def happened(self, happening: Happening) -> None:
        """Something that a view does not show, such as an allocation that was refused. Told as an event."""
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
        await self._say_last_words()

    @property
    def _duties(self) -> tuple[Duty, ...]:
        return self._condition, self._mpsnode, self._pods, self._events

    async def _say_last_words(self) -> None:
        """What was about to be told; nobody else knows of the events."""
        if self.away_since is not None:
            return
        with suppress(TimeoutError, KubeError):
            async with asyncio.timeout(_LAST_WORDS_S):
                for duty in self._duties:
                    due_s = duty.due_in_s()
                    if due_s is not None and due_s <= _LAST_WORDS_S:
                        await duty.tell()
