"""Keeps the API server informed of a node as a whole: its MPSNode, its condition MPSReady, its number of GPUs.

Of the Node only our condition and our resources are touched; of the MPSNode never the spec, which is the operator's.

Rights: get nodes; patch nodes/status; get, create, patch mpsnodes; patch mpsnodes/status.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import mpsd
from mpsd.model.conditions import Condition, condition_in, condition_object, mps_ready, node_status_patch
from mpsd.model.node_view import NodeView
from mpsd.model.policy import Policy
from mpsd.model.times import stamp
from mpsd.platform.kube import MPS_NODES, NODES, Kube, NotFound, Object, PatchKind
from mpsd.status.rules.mpsnode import (
    CHANGE_S,
    HEARTBEAT_S,
    WrittenStatus,
    belonging_patch,
    gave_back,
    given_back_patch,
    mpsnode_for,
    mpsnode_status,
    write_due,
)
from mpsd.watchdog.rules.reported import NodeViolations, with_violations


class ReadyCondition:
    """The condition MPSReady, with since when it is so across restarts of the agent."""

    def __init__(self) -> None:
        self._condition: Condition | None = None
        self._object: Object = {}
        self._ours = False  # whether it has changed since we look, so that the time of the change is ours

    def see(self, view: NodeView) -> None:
        condition = mps_ready(view)
        self._ours = self._ours or (self._condition is not None and condition.status is not self._condition.status)
        self._condition = condition
        self._object = condition_object(condition, self._object, stamp(view.now))

    def adopt(self, node: Object) -> None:
        """Takes over since when it is so from what an earlier agent reported."""
        if self._condition and not self._ours:
            self._object = condition_object(self._condition, condition_in(node), self._object["lastTransitionTime"])

    def object(self) -> Object:
        return dict(self._object)


class ThisNode:
    """The Node that this agent runs on, looked up when something of it is needed that does not change."""

    def __init__(self, kube: Kube, name: str, ready: ReadyCondition) -> None:
        self.name = name
        self._kube = kube
        self._ready = ready
        self._uid = ""

    async def uid(self, *, afresh: bool = False) -> str:
        if afresh or not self._uid:
            node = await self._kube.get(NODES, self.name)
            self._ready.adopt(node)
            self._uid = str(node["metadata"]["uid"])
        return self._uid


class _NodeDuty:
    """A report of the last view."""

    def __init__(self, kube: Kube, node: ThisNode, ready: ReadyCondition, policy: Callable[[], Policy]) -> None:
        self.changed = asyncio.Event()
        self._kube = kube
        self._node = node
        self._ready = ready
        self._policy = policy
        self._view: NodeView | None = None  # None before the first one

    def offer(self, view: NodeView, *, news: bool) -> None:
        """news: whether anything but the time is another than at the last offer."""
        self._view = view
        if news:
            self.changed.set()


class NodeConditionDuty(_NodeDuty):
    """The Node's condition and its number of GPUs."""

    name = "the node's condition"

    def __init__(self, kube: Kube, node: ThisNode, ready: ReadyCondition, policy: Callable[[], Policy]) -> None:
        super().__init__(kube, node, ready, policy)
        self._reported: Any = None
        self._reported_at = float("-inf")
        self._count = ""

    def due_in_s(self) -> float | None:
        if self._view is None:
            return None
        pause_s = HEARTBEAT_S if self._reported == self._now(self._view) else CHANGE_S
        return self._reported_at + pause_s - time.monotonic()

    async def write(self) -> None:
        await self._node.uid()
        view = self._view
        assert view, "it is not due before the first view"
        now = condition, count, gpus = self._now(view)
        patch = node_status_patch(condition, count, gpus, stamp(time.time()), self._count)
        await self._kube.patch(NODES, self._node.name, patch, PatchKind.STRATEGIC, subresource="status")
        self._reported, self._reported_at, self._count = now, time.monotonic(), count

    def _now(self, view: NodeView) -> tuple[Object, str, int]:
        return self._ready.object(), self._policy().resources.count, len(view.gpus)


class MPSNodeDuty(_NodeDuty):
    """The status of this node's MPSNode, which is made where it is missing."""

    name = "the MPSNode"

    def __init__(self, kube: Kube, node: ThisNode, ready: ReadyCondition, policy: Callable[[], Policy]) -> None:
        super().__init__(kube, node, ready, policy)
        self._violations: NodeViolations | None = None  # not reported while nobody has said
        self._written: WrittenStatus | None = None
        self._looked_at = float("-inf")  # making a status of hundreds of grants is not free
        self._belongs = False  # whether there is an MPSNode that belongs to its Node

    def offer_with(self, violations: NodeViolations | None, view: NodeView, *, news: bool) -> None:
        """As `offer`, with what programs did that they may not."""
        news = news or violations != self._violations
        self._violations = violations
        self.offer(view, news=news)

    def due_in_s(self) -> float | None:
        if self._view is None:
            return None
        now = time.monotonic()
        rest_s = self._looked_at + CHANGE_S - now
        if rest_s > 0:
            return rest_s
        self._looked_at = now
        return write_due(self._status(self._view), self._written) - now

    async def write(self) -> None:
        if not self._belongs:
            await self._make_belong()
        view = self._view
        assert view, "it is not due before the first view"
        status = self._status(view)
        try:
            await self._patch({"status": status}, "status")
        except NotFound:  # somebody deleted it
            self._belongs = False
            raise
        # After the MPSNode, which has room by then for the pods that are tried again.
        if self._written is None or gave_back(status, self._written.status):
            patch = given_back_patch(int(time.time()))
            await self._kube.patch(NODES, self._node.name, patch, PatchKind.MERGE, subresource="status")
        self._written = WrittenStatus(status, time.monotonic())

    async def _make_belong(self) -> None:
        uid = await self._node.uid(afresh=True)
        try:
            found = await self._kube.get(MPS_NODES, self._node.name)
        except NotFound:
            await self._create(uid)
        else:
            patch = belonging_patch(found, self._node.name, uid)
            if patch:
                await self._patch(patch, "")
        self._belongs = True

    async def _create(self, node_uid: str) -> None:
        try:
            await self._kube.create(MPS_NODES, mpsnode_for(self._node.name, node_uid))
        except NotFound as error:
            raise NotFound(f"{error}; this cluster does not know MPSNode: kubectl apply -k manifests") from None

    async def _patch(self, patch: Object, subresource: str) -> None:
        await self._kube.patch(MPS_NODES, self._node.name, patch, PatchKind.MERGE, subresource=subresource)

    def _status(self, view: NodeView) -> Object:
        status = mpsnode_status(view, self._policy(), self._ready.object(), mpsd.__version__)
        return with_violations(status, self._violations) if self._violations else status
