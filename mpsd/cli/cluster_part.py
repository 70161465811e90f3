"""The part that an agent has in a cluster and not on a machine of its own, as whoever starts an agent sees it.

One rule: it is named here and imported where it is used, so that `mpsd control` and `mpsd up` stay small.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from mpsd.agent.agent import AgentRole
from mpsd.grants.books import Books
from mpsd.kubelet.call_counts import PluginCallBook
from mpsd.model.domains import Domain
from mpsd.model.policy import Policy
from mpsd.mps.node import Node
from mpsd.platform.settings import Settings

if TYPE_CHECKING:
    from mpsd.status.page.pods_of_node import PodsOfNode


class CannotServe(Exception):
    """It cannot begin here; the message says why."""


@dataclass(frozen=True, slots=True)
class Surrounding:
    """What it is made from. wake: makes the agent look."""

    settings: Settings
    node: Node
    domains: tuple[Domain, ...]
    policy: Callable[[], Policy]
    wake: Callable[[], None]


class ClusterPart(Protocol):
    """Made before the agent, which goes by its books, and run beside it."""

    @property
    def books(self) -> Books: ...

    @property
    def name(self) -> str:
        """The node's in the cluster."""

    @property
    def calls(self) -> PluginCallBook:
        """What kubelet has called it for."""

    @property
    def pods(self) -> "PodsOfNode":
        """Those that do not run yet, for whoever looks."""

    async def start(self) -> None:
        """CannotServe where it cannot."""

    async def run(self, agent: AgentRole, stop: asyncio.Event) -> None:
        """Once started, until `stop`."""


MakeClusterPart = Callable[[Surrounding], ClusterPart]
