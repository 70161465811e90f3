"""The pods bound to one node that ask for a GPU and do not run yet, as its page lists them.

One rule: they are watched only while somebody reads, and no page waits for an API server that does not answer.

Rights: list and watch pods, which the agent has.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

from mpsd.model.node_view import NodeView
from mpsd.model.policy import Policy
from mpsd.platform.kube import PODS, Kube, Object
from mpsd.platform.kube_mirror import Mirror, Selection
from mpsd.platform.kube_time import seconds, stamp
from mpsd.status.page.rules.page_view import PodsHeard, PodsHere, shown_text
from mpsd.status.page.rules.page_waiting import Times, own_scene, pods_here
from mpsd.status.rules.pod_seen import PodSeen, read_pod_seen

_FIRST_ANSWER_S = 1.0  # that the first view waits, so that it does not begin with what is not known yet
_TIMES = Times(stamp, seconds)


class PodsOfNode:
    """Between `begin` and `end` it knows them."""

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
        """view: of the node now. warnings: by uid, the last event that each pod was told."""
        self._changed.clear()
        around = own_scene(self._node, view, self._policy(), _TIMES)
        return pods_here(self._pods.objects(), warnings, around, self._heard(), _TIMES)

    def _heard(self) -> PodsHeard:
        pods = self._pods
        if pods.synced and not pods.trouble:
            return PodsHeard()
        why = shown_text(str(pods.trouble)) if pods.trouble else "it has not answered yet"
        return PodsHeard(why, pods.out_of_sync_since if pods.synced else None)

    def _read(self, thing: Object) -> PodSeen | None:
        pod = read_pod_seen(thing, self._policy())
        return pod if (pod.shared or pod.unreadable) and not pod.terminating else None
