"""What the page of an agent shows: its node.

It looks at nothing itself: it shows the last view, so that no number of readers loads NVML or the daemons.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

import mpsd
from mpsd.agent.agent import AgentRole
from mpsd.model.node_status import without_arguments
from mpsd.model.node_view import NodeView
from mpsd.model.policy import Policy
from mpsd.platform.kube import PODS, Kube, Object
from mpsd.platform.kube_mirror import Mirror, Selection
from mpsd.status.page.rules.node import last_warnings, node_page, own_scene, pods_here
from mpsd.status.page.rules.view import (
    PageView,
    PodsHeard,
    PodsHere,
    shown_text,
)
from mpsd.status.rules.node_status import node_status
from mpsd.status.rules.pods import PodSeen, read_pod_seen


class NodePage:
    """The views of the node. name: its name, as people know it. pods: None where no kubelet is.

    bare: whether commands are shown without their arguments, as where others read than those of the machine, who see
    them anyway.
    """

    def __init__(
        self,
        agent: AgentRole,
        policy: Callable[[], Policy],
        name: str,
        *,
        bare: bool,
        pods: "PodsOfNode | None" = None,
    ) -> None:
        self._agent = agent
        self._policy = policy
        self._name = name
        self._bare = bare
        self._pods = pods
        self._shown: NodeView | None = None  # None before the first look

    async def begin(self) -> None:
        self._shown = None
        if self._pods:
            await self._pods.begin()

    async def look(self) -> PageView | None:
        """None until the agent has looked again, or something was heard of the node's pods."""
        view, happened, pods = self._agent.view, self._agent.events, self._pods
        if view is None or (view is self._shown and not (pods and pods.have_changed)):
            return None
        self._shown = view
        status = node_status(view, self._policy(), self._agent.watchdog.status(), mpsd.__version__)
        shown = without_arguments(status) if self._bare else status
        here = pods.shown(view, last_warnings(happened.all())) if pods else None
        return node_page(shown, self._name, happened.all(), happened.since, here)

    async def end(self) -> None:
        if self._pods:
            await self._pods.end()


_FIRST_ANSWER_S = 1.0  # that the first view waits, so that it does not begin with what is not known yet


class PodsOfNode:
    """The pods bound to one node that ask for a GPU and do not run yet, as its page lists them.

    They are watched between `begin` and `end`, while somebody reads; no page waits for an API server that does not
    answer. Rights: list and watch pods, which the agent has.
    """

    def __init__(self, kube: Kube, node: str, policy: Callable[[], Policy]) -> None:
        self._kube = kube
        self._node = node
        self._policy = policy
        self._changed = asyncio.Event()
        self._pods: Mirror[PodSeen]
        self._following: asyncio.Task[None] | None = None  # None while nobody reads

    async def begin(self) -> None:
        self._changed.clear()
        query = {"fieldSelector": f"spec.nodeName={self._node},status.phase=Pending"}
        self._pods = Mirror(self._kube, Selection(PODS, query=query), self._read, self._changed.set)
        self._following = asyncio.create_task(self._pods.run())
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_ANSWER_S):
                await self._changed.wait()

    async def end(self) -> None:
        if self._following:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
            self._following = None

    @property
    def have_changed(self) -> bool:
        """Whether anything was heard of them since they were shown last."""
        return self._changed.is_set()

    def shown(self, view: NodeView, warnings: Mapping[str, str]) -> PodsHere:
        """view: of the node now. warnings: by uid, the last warning that each pod got."""
        self._changed.clear()
        around = own_scene(self._node, view, self._policy())
        return pods_here(self._pods.objects(), warnings, around, self._heard())

    def _heard(self) -> PodsHeard:
        pods = self._pods
        if pods.synced and not pods.trouble:
            return PodsHeard()
        why = shown_text(str(pods.trouble)) if pods.trouble else "it has not answered yet"
        return PodsHeard(why, pods.out_of_sync_since if pods.synced else None)

    def _read(self, thing: Object) -> PodSeen | None:
        pod = read_pod_seen(thing, self._policy())
        return pod if (pod.shared or pod.unreadable) and not pod.terminating else None
