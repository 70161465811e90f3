"""How an agent is put together, alone (`mpsd agent`) or with the daemons' supervision in one process (`mpsd up`)."""

import asyncio
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Protocol

from mpsd.agent.agent import AgentRole
from mpsd.cli import foreground
from mpsd.grants.ledger import Ledger, LocalGrants
from mpsd.kubelet.rules.plugin_calls import PluginCallCounts
from mpsd.model.domain import Domain, domains
from mpsd.model.policy import Policy
from mpsd.mps.node import Node
from mpsd.platform import event_loop, logs
from mpsd.platform.http_server import AlreadyServed
from mpsd.platform.imports import lasting
from mpsd.platform.limits_files import LimitsFiles, watch_limits
from mpsd.platform.settings import CannotListen, Listen, Settings
from mpsd.simulator.machine import find_node

if TYPE_CHECKING:
    from mpsd.cli.agent_api import AgentApi
    from mpsd.cli.domains import ControlRole
    from mpsd.platform.readers import ReadersPort, Reviewer
    from mpsd.status.page.node import PodsOfNode
    from mpsd.status.page.server import PageApi


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """What a cluster part is made from. wake: makes the agent look."""

    settings: Settings
    node: Node
    domains: tuple[Domain, ...]
    policy: Callable[[], Policy]
    wake: Callable[[], None]


class ClusterPart(Protocol):
    """What an agent has in a cluster, and not on a machine of its own: made before the agent, which goes by its ledger,
    and run beside it. It is imported only where it is used, so that `mpsd up` stays small.
    """

    @property
    def ledger(self) -> Ledger: ...

    @property
    def name(self) -> str:
        """The node's in the cluster."""

    @property
    def calls(self) -> PluginCallCounts:
        """What kubelet has called it for."""

    @property
    def pods(self) -> "PodsOfNode":
        """Those that do not run yet, for whoever looks."""

    async def start(self) -> None:
        """CannotServe where it cannot."""

    async def run(self, agent: AgentRole, stop: asyncio.Event) -> None:
        """Once started, until `stop`."""


MakeClusterPart = Callable[[NodeConfig], ClusterPart]
MakeReviewer = Callable[[], "Reviewer"]
_NOWHERE = Listen()


@dataclass(frozen=True, slots=True)
class AgentPlace:
    """Where an agent is, and whom it answers.

    listen: where readers are served beside the Unix socket. Two None on a machine of its own: make_cluster_part makes
    what only an agent of a cluster's node has, which costs the others nothing; make_reviewer, called only where others
    than this machine are served, makes who says whether they may read.
    """

    listen: Listen = _NOWHERE
    make_cluster_part: MakeClusterPart | None = None
    make_reviewer: MakeReviewer | None = None


class Parts:
    """The agent of one node, and the supervision of its daemons too where that is wanted, in one event loop."""

    def __init__(self, settings: Settings, place: AgentPlace, *, with_control: bool) -> None:
        self._settings = settings
        self._place = place
        self._log = logs.logger()
        self._files = LimitsFiles(settings.limits_directory)
        self._node = node = find_node(settings, self._files.facts)
        found = domains(node.gpus, self._policy())
        self._control = _control(settings, found, node, self._policy) if with_control else None
        self._wake = asyncio.Event()
        here = NodeConfig(settings, node, found, self._policy, self._wake.set)
        self._cluster = place.make_cluster_part(here) if place.make_cluster_part else None
        local = LocalGrants(settings.grants, self._wake.set, self._log)
        self._ledger = None if self._cluster else local
        ledger = self._cluster.ledger if self._cluster else local
        self._agent = AgentRole(settings, node, self._policy, ledger, self._wake)

    def _policy(self) -> Policy:
        return self._files.policy

    async def run(self) -> int:
        """Until a signal; then the daemons are drained and stopped, and the agent after them."""
        stop, cluster_stop, agent_stop = asyncio.Event(), asyncio.Event(), asyncio.Event()
        event_loop.on_stop_signals(stop.set, self._hurry)
        async with AsyncExitStack() as opened:
            for server in self._servers():
                await server.start()
                opened.push_async_callback(server.stop)
            if self._cluster:
                await self._cluster.start()
            directory = opened.enter_context(foreground.directory_in_sight(self._settings.run_directory))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._agent.run(agent_stop))
                serving = tasks.create_task(self._serve_cluster(cluster_stop))
                watches = [
                    tasks.create_task(watch_limits(self._files, self._log)),
                    tasks.create_task(foreground.watch_directory(directory)),
                ]
                await (self._control.run(stop) if self._control else stop.wait())
                cluster_stop.set()
                await serving  # until then limits must be raised for what still comes
                agent_stop.set()
                self._wake.set()
                for watch in watches:
                    watch.cancel()
        self._node.nvml.close()
        if self._control and self._settings.simulate:
            shutil.rmtree(self._settings.simulation)
        return 0

    async def _serve_cluster(self, stop: asyncio.Event) -> None:
        if self._cluster:
            await self._cluster.run(self._agent, stop)

    def _hurry(self) -> None:
        if self._control:
            self._control.hurry()

    def _servers(self) -> "Iterator[AgentApi | ReadersPort | PageApi]":
        """Stopped in the opposite order: a stream ends before its server waits for the answers that are under way."""
        with lasting():
            from mpsd.agent.sources import AgentSources
            from mpsd.cli.agent_api import AgentApi
            from mpsd.status.node_api import MetricsApi
            from mpsd.status.page.node import NodePage
            from mpsd.status.page.server import PageApi

        sources = AgentSources(self._settings, self._agent, self._node, self._files, self._ledger)
        metrics = MetricsApi(sources, self._cluster.calls if self._cluster else None)
        name = self._cluster.name if self._cluster else platform.node()
        pods = self._cluster.pods if self._cluster else None
        page = PageApi(NodePage(self._agent, self._policy, name, bare=self._cluster is not None, pods=pods))
        api = AgentApi(sources, metrics, page)
        yield api
        if self._place.listen.addresses:
            yield self._readers_port(api)
        yield page

    def _readers_port(self, api: "AgentApi") -> "ReadersPort":
        from mpsd.platform.readers import ReadersPort  # brings TLS: only where it was asked for

        listen, make_reviewer = self._place.listen, self._place.make_reviewer
        reviewer = make_reviewer() if make_reviewer and listen.asks_who else None
        return ReadersPort(api.readers_routes, listen.addresses, reviewer, listen.certificate)


def _control(settings: Settings, found: tuple[Domain, ...], node: Node, policy: Callable[[], Policy]) -> "ControlRole":
    from mpsd.cli.domains import ControlRole  # only `mpsd up` has one

    return ControlRole(settings, found, node, policy)


def serve(chosen: Settings, place: AgentPlace, *, with_control: bool) -> NoReturn:
    """Runs an agent, with the supervision of its daemons or without, until a signal; exits with 1 where it cannot."""
    foreground.serve(
        chosen,
        lambda: Parts(chosen, place, with_control=with_control).run(),
        with_control=with_control,
        cannot=(AlreadyServed, CannotListen),
    )
