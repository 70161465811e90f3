"""What the page of an agent shows: its node.

One rule: it looks at nothing itself: it shows the last view, so that no number of readers loads NVML or the daemons.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import mpsd
from mpsd.agent.agent import AgentRole
from mpsd.model.bare_commands import without_arguments
from mpsd.model.node_view import NodeView
from mpsd.model.policy import Policy
from mpsd.status.page.rules.node import node_page
from mpsd.status.page.rules.page_lately import last_warnings
from mpsd.status.page.rules.page_view import PageView
from mpsd.status.rules.node_status import node_status

if TYPE_CHECKING:
    from mpsd.status.page.pods_of_node import PodsOfNode


class NodePage:
    """name: the node's, as people know it. bare: whether commands are shown without their arguments, as where others
    read than those of the machine, who see them anyway. pods: None where no kubelet is.
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
        view, happened, pods = self._agent.view, self._agent.happened, self._pods
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
