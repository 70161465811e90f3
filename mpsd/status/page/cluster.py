"""What the page of a scheduler shows: every node that has an MPSNode, and why pods wait.

Rights: list and watch mpsnodes, nodes and pods, and those of `page.claims`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import mpsd
from mpsd.model.cluster_status import ClusterNode
from mpsd.model.mpsnode import read_mpsnode
from mpsd.platform.kube import MPS_NODES, NODES, Kube, Object
from mpsd.platform.kube_mirror import Mirror, Selection, following
from mpsd.platform.rules.kubernetes_objects import KubernetesNode, read_kubernetes_node
from mpsd.scheduler.ledger import ClusterLedger
from mpsd.status.page.claims import ClaimsOfPods, pending_pods
from mpsd.status.page.rules.pages import NodeParts, aged, cluster_page, no_mpsnode, node_parts
from mpsd.status.page.rules.view import PageHead, PageScope, PageView, WaitingCard, pod_card
from mpsd.status.rules.explanation import explanation_of
from mpsd.status.rules.pods import ExplanationContext, PodSeen

_AT_ONCE = 8  # nodes, before others are served
_SHARE = 10  # of the time, one part at most is spent on why pods wait
_LOOK_AGAIN_S = 30.0  # where nothing was heard: nodes become stale, and reservations end
MOST_WAITING = 1000


class ClusterPage:
    """The views of the cluster. ledger: what the scheduler knows to be free."""

    def __init__(self, kube: Kube, ledger: ClusterLedger) -> None:
        self._kube = kube
        self._ledger = ledger
        self._changed = True
        self._looked_at = 0.0
        self._made: dict[str, tuple[object, NodeParts]] = {}  # by node, and what it was made from
        self._explained: Sequence[WaitingCard] = ()
        self._explained_until = 0.0  # monotonic: when they may be made anew
        self._mirrors: Sequence[Mirror[Any]] = ()
        self._mpsnodes: Mirror[ClusterNode]
        self._nodes: Mirror[KubernetesNode]
        self._pods: Mirror[PodSeen]
        self._claims: ClaimsOfPods

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        def read(thing: Object) -> ClusterNode:
            return read_mpsnode(thing, self._kube.now)

        self._mpsnodes = Mirror(self._kube, Selection(MPS_NODES), read, self._note)
        self._nodes = Mirror(self._kube, Selection(NODES), read_kubernetes_node, self._note)
        self._pods = pending_pods(self._kube, lambda: self._ledger.policy, self._note)
        self._mirrors = (self._mpsnodes, self._nodes, self._pods)
        self._made = {}
        self._changed = True
        self._explained_until = 0.0
        self._claims = ClaimsOfPods(self._kube, self._note, of_cluster=True)
        async with following(*self._mirrors):
            try:
                yield
            finally:
                await self._claims.close()
        self._made = {}

    async def look(self) -> PageView | None:
        """None where nothing has been heard since the last look, and while nothing is known."""
        head = self._head()
        if not all(one.synced for one in self._mirrors):
            return cluster_page(head, (), ()) if head.away else None
        again = time.monotonic() - self._looked_at >= _LOOK_AGAIN_S
        if not (self._changed or again or head.away):
            return None
        self._changed = False
        self._looked_at = time.monotonic()
        return await self._view(head)

    def _note(self) -> None:
        self._changed = True

    async def _view(self, head: PageHead) -> PageView:
        now = head.at
        # with the MPSNodes, since both may change during a sleep
        machines = {machine.name: machine for machine in self._nodes.objects()}
        reported = {}
        parts = []
        for place, read in enumerate(self._mpsnodes.objects(), 1):
            node = reported[read.name] = aged(read, now)
            parts.append(self._parts(node, now))
            if place % _AT_ONCE == 0:
                await asyncio.sleep(0)  # kube-scheduler's questions come in between
        self._made = {name: self._made[name] for name in reported}
        pods = self._claims.asking(self._pods.objects(), self._ledger.policy)
        table = self._ledger.table
        free = {name: found for name in table.nodes if (found := table.ledger(name))}
        context = ExplanationContext(self._ledger.policy, now, reported, free, machines)
        await self._explain(context, pods[:MOST_WAITING])
        waiting = {pod.name.uid for pod in pods}
        explained = [card for card in self._explained if card.id in waiting]
        silent = [name for name in machines.keys() - reported if machines[name].is_labelled]
        head = replace(head, waiting_more=max(0, len(pods) - MOST_WAITING))
        return cluster_page(head, parts, explained, map(no_mpsnode, sorted(silent)))

    async def _explain(self, context: ExplanationContext, pods: Sequence[PodSeen]) -> None:
        """On a thread, since thousands of GPUs take seconds; then not again for a while."""
        began = time.monotonic()
        if began < self._explained_until:
            self._changed = True  # what is heard now is explained then
            return
        seen = (self._claims.seen(pod, context.policy) for pod in pods)
        self._explained = await asyncio.to_thread(
            lambda: [pod_card(pod, explanation_of(pod, context)) for pod in seen]
        )
        self._explained_until = time.monotonic() + _SHARE * (time.monotonic() - began)

    def _parts(self, node: ClusterNode, now: float) -> NodeParts:
        """Those of before where nothing has changed; how long something is wrong is made anew each
        minute."""
        source = node if node.ready else (node, int(now // 60))
        known, parts = self._made.get(node.name, (None, None))
        if parts is None or (known is not source and known != source):
            parts = node_parts(node, now, self._ledger.policy.graces.wedged_limit_s)
            self._made[node.name] = source, parts
        return parts

    def _head(self) -> PageHead:
        head = PageHead(PageScope.CLUSTER, "cluster", mpsd.__version__, self._kube.now)
        troubled = [one for one in self._mirrors if one.trouble]
        if not troubled:
            return head
        since = min(filter(None, [one.out_of_sync_since for one in troubled]), default=None)
        return replace(head, away=str(troubled[0].trouble), away_since=since)
