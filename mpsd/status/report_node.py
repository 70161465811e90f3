"""Keeps the API server informed of a node as a whole: its MPSNode, and of the Node the condition
MPSReady, our resources and labels and the startup taint.

The spec of the MPSNode is the operator's, and never touched.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import mpsd
from mpsd.model.conditions import (
    Condition,
    Truth,
    condition_in,
    condition_object,
    is_to_be_left,
    mps_ready,
    node_status_patch,
)
from mpsd.model.names import APPLY
from mpsd.model.node_report import SeenViolations
from mpsd.model.node_view import NodeView
from mpsd.model.policy import Policy
from mpsd.model.times import stamp
from mpsd.platform import clock
from mpsd.platform.kube import MPS_NODES, NODES, Kube, NotFound, Object, PatchKind
from mpsd.platform.logs import logger
from mpsd.platform.rules.kubernetes_objects import (
    KubernetesNode,
    Taint,
    read_kubernetes_node,
    taint_removal,
)
from mpsd.status.rules import mpsnode as rules
from mpsd.status.rules.mpsnode import (
    CHANGE_S,
    HEARTBEAT_S,
    UPGRADE_LABEL,
    WrittenStatus,
    labels_patch,
    node_labels,
)
from mpsd.status.rules.node_report import node_report


class ThisNode:
    """The Node that this agent runs on, as last seen, and its condition MPSReady with its time of
    change across restarts."""

    def __init__(self, kube: Kube, name: str) -> None:
        self.name = name
        self._kube = kube
        self._uid = ""
        self.view: NodeView | None = None  # None before the first one
        self.violations: SeenViolations | None = None  # not reported before the watchdog has
        self._condition: Condition | None = None
        self._object: Object = {}
        # whether it has changed since we look, so that the time of the change is ours
        self._ours = False
        self.driver_upgrade = ""  # the label by which its driver is upgraded; empty where none does

    def see(self, view: NodeView, violations: SeenViolations | None, *, news: bool) -> None:
        self.view = view
        self.violations = violations
        if not news:
            return
        condition = mps_ready(view, self.driver_upgrade)
        self._ours = self._ours or (
            self._condition is not None and condition.status is not self._condition.status
        )
        self._condition = condition
        self._object = condition_object(condition, self._object, stamp(view.now))

    @property
    def condition(self) -> Object:
        return dict(self._object)

    async def uid(self, *, afresh: bool = False) -> str:
        """Looked up when it is needed, and with it since when the condition is so, which an earlier
        agent may have written."""
        if afresh or not self._uid:
            node = await self._kube.get(NODES, self.name)
            if self._condition and not self._ours:
                since = self._object["lastTransitionTime"]
                self._object = condition_object(self._condition, condition_in(node), since)
            self._uid = str(node["metadata"]["uid"])
        return self._uid


class _NodeDuty:
    def __init__(self, kube: Kube, node: ThisNode, policy: Callable[[], Policy]) -> None:
        self.changed = asyncio.Event()
        self._kube = kube
        self._node = node
        self._policy = policy


class NodeConditionDuty(_NodeDuty):
    name = "the node's condition"
    _reported: Any = None
    _reported_at = float("-inf")
    _count = ""

    def due_in_s(self) -> float | None:
        if self._node.view is None:
            return None
        pause_s = HEARTBEAT_S if self._reported == self._now(self._node.view) else CHANGE_S
        return self._reported_at + pause_s - time.monotonic()

    async def write(self) -> None:
        await self._node.uid()
        view = self._node.view
        assert view, "it is not due before the first view"
        now = condition, count, gpus = self._now(view)
        patch = node_status_patch(condition, count, gpus, stamp(clock.wall_s()), self._count)
        await self._kube.patch(
            NODES, self._node.name, patch, PatchKind.STRATEGIC, subresource="status"
        )
        self._reported, self._reported_at, self._count = now, time.monotonic(), count

    def _now(self, view: NodeView) -> tuple[Object, str, int]:
        return self._node.condition, self._policy().resources.count, len(view.gpus)


_AGAIN_S = 60.0  # between two writes of the same labels, should somebody else write others


class NodeLabelsDuty(_NodeDuty):
    """The Node's labels about its GPUs, and the one by which mpsd's pods leave it. They are written
    through its status, which takes no further right, and apart from the condition, which an older
    mpsd-agent-writes must not refuse with them.
    """

    name = "the node's labels"
    _labels: Mapping[str, str] | None = None  # before the Node was seen
    _written: Mapping[str, str] | None = None  # before any was
    _written_at = float("-inf")

    def see(self, node: KubernetesNode) -> None:
        self._labels = node.labels
        self._node.driver_upgrade = node.driver_upgrade
        self.changed.set()

    def due_in_s(self) -> float | None:
        if self._labels is None or self._node.view is None:
            return None
        wanted = self._wanted(self._node.view)
        if labels_patch(self._labels, wanted) is None:
            return None
        pause_s = _AGAIN_S if wanted == self._written else CHANGE_S
        return self._written_at + pause_s - time.monotonic()

    async def write(self) -> None:
        view = self._node.view
        assert view, "it is not due before the first view"
        wanted = self._wanted(view)
        if patch := labels_patch(self._labels or {}, wanted):
            found = await self._kube.patch(
                NODES, self._node.name, patch, PatchKind.MERGE, subresource="status"
            )
            self._labels = read_kubernetes_node(found).labels
            self._written, self._written_at = wanted, time.monotonic()

    def _wanted(self, view: NodeView) -> dict[str, str]:
        left = is_to_be_left(
            view, self._node.driver_upgrade, left=UPGRADE_LABEL in (self._labels or {})
        )
        return node_labels(view.gpus, self._policy()) | ({UPGRADE_LABEL: "drained"} if left else {})


class StartupTaintDuty:
    """Removes the Node's startup taint once its GPUs are served. key: empty for none. is_offered:
    whether the cluster knows what this node offers; before, an autoscaler that sees no taint
    believes that it offers nothing, and adds another.
    """

    name = "the startup taint"

    def __init__(
        self, kube: Kube, node: ThisNode, key: str, is_offered: Callable[[], bool]
    ) -> None:
        self.changed = asyncio.Event()
        self._kube = kube
        self._node = node
        self._key = key
        self._is_offered = is_offered
        self._taints: tuple[Taint, ...] = ()
        self._log = logger(role="agent", part="report")

    def see(self, taints: tuple[Taint, ...]) -> None:
        self._taints = taints
        self.changed.set()

    def due_in_s(self) -> float | None:
        if not (self._key and any(taint.key == self._key for taint in self._taints)):
            return None
        return 0.0 if self._is_ready else CHANGE_S

    @property
    def _is_ready(self) -> bool:
        return self._node.condition.get("status") == Truth.TRUE and self._is_offered()

    async def write(self) -> None:
        """Nothing while the GPUs are not served: at its end a reporter writes what is due soon."""
        if self._is_ready and (patch := taint_removal(self._taints, self._key)):
            await self._kube.patch(NODES, self._node.name, patch, PatchKind.JSON)
            self._log.info("startup taint removed", taint=self._key)
            self._taints = tuple(taint for taint in self._taints if taint.key != self._key)


class MPSNodeDuty(_NodeDuty):
    name = "the MPSNode"
    _written: WrittenStatus | None = None
    _looked_at = float("-inf")  # making a status of hundreds of grants is not free
    _belongs = False  # whether there is an MPSNode that belongs to its Node
    _made: tuple[tuple[object, ...], Object] = (), {}  # the last status, behind what it was made of

    def due_in_s(self) -> float | None:
        if self._node.view is None:
            return None
        now = time.monotonic()
        if (rest_s := self._looked_at + CHANGE_S - now) > 0:
            return rest_s
        self._looked_at = now
        return rules.write_due(self._status(self._node.view), self._written) - now

    async def write(self) -> None:
        if not self._belongs:
            await self._make_belong()
        view = self._node.view
        assert view, "it is not due before the first view"
        status = self._status(view)
        try:
            patch = rules.status_patch(status)
            await self._kube.patch(
                MPS_NODES, self._node.name, patch, PatchKind.JSON, subresource="status"
            )
        except NotFound:  # somebody deleted it
            self._belongs = False
            raise
        # after the MPSNode, which has room by then for the pods that are tried again
        if self._written is None or rules.gave_back(status, self._written.status):
            amount = {rules.GIVEN_BACK: str(int(clock.wall_s()))}
            room: Object = {"status": {"capacity": amount, "allocatable": amount}}
            await self._kube.patch(
                NODES, self._node.name, room, PatchKind.MERGE, subresource="status"
            )
        self._written = WrittenStatus(status, time.monotonic())

    async def _make_belong(self) -> None:
        name = self._node.name
        uid = await self._node.uid(afresh=True)
        try:
            found = await self._kube.get(MPS_NODES, name)
        except NotFound:
            try:
                await self._kube.create(MPS_NODES, rules.mpsnode_for(name, uid))
            except NotFound as error:
                raise NotFound(f"{error}; this cluster does not know MPSNode: {APPLY}") from None
        else:
            if patch := rules.belonging_patch(found, name, uid):
                await self._kube.patch(MPS_NODES, name, patch, PatchKind.MERGE)
        self._belongs = True

    def _status(self, view: NodeView) -> Object:
        policy = self._policy()
        condition = self._node.condition
        violations = self._node.violations
        sources = view, policy, condition, violations
        if self._made[0] != sources:
            # why somebody waits takes long to say, and is not reported
            asking = replace(view, waiting=())
            report = node_report(asking, policy, violations, mpsd.__version__)
            self._made = sources, rules.mpsnode_status(report, condition)
        return self._made[1]
