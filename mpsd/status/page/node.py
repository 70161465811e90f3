"""What the page of an agent shows: the last view of its node, so that no number of readers loads
NVML or the daemons."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

import mpsd
from mpsd.agent.agent import AgentRole
from mpsd.model.node_view import NodeView
from mpsd.model.policy import Policy
from mpsd.model.redaction import without_arguments
from mpsd.status.page.rules.pages import last_warnings, node_page, own_scene, pods_here
from mpsd.status.page.rules.view import PageView, PodsHeard, PodsHere, shown_text
from mpsd.status.rules.node_report import node_report

# an agent without a kubelet does without a client of the API server, which is 1.5 MiB
if TYPE_CHECKING:
    from mpsd.platform.kube import Kube
    from mpsd.platform.kube_mirror import Mirror
    from mpsd.status.page.claims import ClaimsOfPods
    from mpsd.status.rules.pods import PodSeen


class NodePage:
    """name: of the node, as people know it. pods: None where no kubelet is. bare: whether commands
    are shown without their arguments, as where others read than those of the machine."""

    def __init__(
        self,
        agent: AgentRole,
        policy: Callable[[], Policy],
        name: str,
        *,
        bare: bool,
        pods: "PodsOfNode | None",
    ) -> None:
        self._agent = agent
        self._policy = policy
        self._name = name
        self._bare = bare
        self._pods = pods
        self._shown: NodeView | None = None  # None before the first look

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        self._shown = None
        async with self._pods.watching() if self._pods else nullcontext():
            yield

    async def look(self) -> PageView | None:
        """None until the agent has looked again, or something was heard of the node's pods."""
        view = self._agent.view
        happened = self._agent.events
        pods = self._pods
        if view is None or (view is self._shown and not (pods and pods.changed.is_set())):
            return None
        self._shown = view
        policy = self._policy()
        status = node_report(view, policy, self._agent.watchdog.violations(), mpsd.__version__)
        if self._bare:
            status = without_arguments(status)
        here = pods.shown(view, last_warnings(happened.all())) if pods else None
        return node_page(
            status, self._name, happened.all(), happened.since, here, policy.graces.wedged_limit_s
        )


# that the first view waits, so that it does not begin with what is not known yet
_FIRST_ANSWER_S = 1.0


class PodsOfNode:
    """The pods bound to one node that ask for a GPU and do not run yet. Rights: list and watch
    pods, and get resourceclaims where it serves claims."""

    def __init__(self, kube: "Kube", node: str, policy: Callable[[], Policy]) -> None:
        self._kube = kube
        self._node = node
        self._policy = policy
        # set once anything was heard of them since they were shown last
        self.changed = asyncio.Event()
        self._pods: Mirror[PodSeen]
        self._claims: ClaimsOfPods

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        from mpsd.platform.kube_mirror import following
        from mpsd.status.page.claims import ClaimsOfPods, pending_pods

        self.changed.clear()
        self._pods = pending_pods(self._kube, self._policy, self.changed.set, self._node)
        self._claims = ClaimsOfPods(self._kube, self.changed.set, of_cluster=False)
        async with following(self._pods):
            with suppress(TimeoutError):
                async with asyncio.timeout(_FIRST_ANSWER_S):
                    await self.changed.wait()
            try:
                yield
            finally:
                await self._claims.close()

    def shown(self, view: NodeView, warnings: Mapping[str, str]) -> PodsHere:
        self.changed.clear()
        pods = self._pods
        heard = PodsHeard()
        if pods.trouble or not pods.synced:
            why = shown_text(str(pods.trouble or "it has not answered yet"))
            heard = PodsHeard(why, pods.out_of_sync_since if pods.synced else None)
        policy = self._policy()
        asking = [
            self._claims.seen(pod, policy) for pod in self._claims.asking(pods.objects(), policy)
        ]
        return pods_here(asking, warnings, own_scene(self._node, view, policy), heard)
