"""What the page of an agent shows: its node.

One rule: it looks at nothing itself: it shows the last view, so that no number of readers loads NVML or the daemons.
"""

from collections.abc import Callable

import mpsd
from mpsd.core.bare_commands import without_arguments
from mpsd.core.node_view import NodeView
from mpsd.core.page_node import node_page
from mpsd.core.page_view import PageView
from mpsd.core.policy import Policy
from mpsd.core.status_of_view import node_status
from mpsd.roles.agent import AgentRole


class NodePage:
    """name: the node's, as people know it. bare: whether commands are shown without their arguments, as where others
    read than those of the machine, who see them anyway.
    """

    def __init__(self, agent: AgentRole, policy: Callable[[], Policy], name: str, *, bare: bool) -> None:
        self._agent = agent
        self._policy = policy
        self._name = name
        self._bare = bare
        self._shown: NodeView | None = None  # None before the first look

    async def begin(self) -> None:
        self._shown = None

    async def look(self) -> PageView | None:
        """None until the agent has looked again."""
        view, happened = self._agent.view, self._agent.happened
        if view is None or view is self._shown:
            return None
        self._shown = view
        status = node_status(view, self._policy(), self._agent.watchdog.status(), mpsd.__version__)
        shown = without_arguments(status) if self._bare else status
        return node_page(shown, self._name, happened.all(), happened.since)

    async def end(self) -> None:
        """There is nothing to put away."""
