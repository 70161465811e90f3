"""What `mpsd up`, `mpsd control` and `mpsd agent` share: the parts of one node, from start to signal."""

import asyncio
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol

from mpsd.agent.agent import AgentRole
from mpsd.cli.domains import ControlRole
from mpsd.grants.ledger import Ledger, LocalGrants
from mpsd.kubelet.call_counts import PluginCallCounts
from mpsd.model.domain import Domain, domains
from mpsd.model.policy import Policy
from mpsd.mps import gate
from mpsd.mps.node import Node
from mpsd.platform import event_loop, logs, run_directory
from mpsd.platform.console import ExitCode, complaints
from mpsd.platform.http_server import AlreadyServed
from mpsd.platform.imports import lasting
from mpsd.platform.limits_files import LimitsFiles
from mpsd.platform.limits_watch import watch_limits
from mpsd.platform.nvml import NvmlFailed
from mpsd.platform.run_directory import DirectoryIdentity, Vanished
from mpsd.platform.settings import CannotListen, Listen, Settings
from mpsd.simulator.machine import find_node

# The part that an agent has in a cluster and not on a machine of its own, as whoever starts an agent sees it.
#
# One rule: it is named here and imported where it is used, so that `mpsd control` and `mpsd up` stay small.

if TYPE_CHECKING:
    from mpsd.status.page.node import PodsOfNode


class CannotServe(Exception):
    """It cannot begin here; the message says why."""


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """What it is made from. wake: makes the agent look."""

    settings: Settings
    node: Node
    domains: tuple[Domain, ...]
    policy: Callable[[], Policy]
    wake: Callable[[], None]


class ClusterPart(Protocol):
    """Made before the agent, which goes by its ledger, and run beside it."""

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


# Ends control and agent, with the reason, where somebody removes the run directory under them.
#
# One rule: what was removed cannot be brought back, since sockets and records in it are other processes' as well; so
# daemons and programs are left as they are, as where mpsd is killed.

_LOOK_S = 0.5


async def watch_directory(sight: DirectoryIdentity) -> None:
    """Vanished once it is not there."""
    while True:
        if not sight.is_there:
            raise Vanished(sight.directory)
        await asyncio.sleep(_LOOK_S)


@contextmanager
def sight_of(directory: Path) -> Iterator[DirectoryIdentity]:
    """What fails within because of a removal is Vanished, whoever noticed it first, and is logged."""
    with run_directory.in_sight(directory) as sight:
        try:
            yield sight
        except (ExceptionGroup, OSError) as error:
            failures = _leaves(error)
            said = [one for one in failures if isinstance(one, Vanished)]
            lost = said[0].path if said else sight.lost(failures)
            if lost is None:
                raise
            logs.logger().error("run directory vanished", path=str(lost), reason=str(Vanished(lost)))
            raise Vanished(lost) from None


def _leaves(error: BaseException) -> Sequence[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in _leaves(one)]
    return [error]


if TYPE_CHECKING:
    from mpsd.cli.agent_api import AgentApi
    from mpsd.platform.readers import ReadersPort, Reviewer
    from mpsd.status.page.server import PageApi

MakeReviewer = Callable[[], "Reviewer"]
_NOWHERE = Listen()
_CANNOT = (NvmlFailed, AlreadyServed, CannotServe, CannotListen, run_directory.AlreadyHeld, run_directory.Vanished)


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
    """The roles of one node, in one event loop: control, agent or both."""

    def __init__(self, settings: Settings, place: AgentPlace | None, *, with_control: bool) -> None:
        """place: of the agent; None for none."""
        self._settings = settings
        self._place = place or AgentPlace()
        self._log = logs.logger()
        self._files = LimitsFiles(settings.limits_directory)
        node = find_node(settings, self._files.facts)
        self._node = node
        found = domains(node.gpus, self._policy())
        self._control = ControlRole(settings, found, node, self._policy) if with_control else None
        self._wake = asyncio.Event()
        here = NodeConfig(settings, node, found, self._policy, self._wake.set)
        self._cluster = self._place.make_cluster_part(here) if self._place.make_cluster_part else None
        local = LocalGrants(settings.grants, self._wake.set, self._log)
        self._ledger = None if self._cluster else local
        ledger = self._cluster.ledger if self._cluster else local
        self._agent = AgentRole(settings, node, self._policy, ledger, self._wake) if place else None

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
            sight = opened.enter_context(sight_of(self._settings.run_directory))
            async with asyncio.TaskGroup() as tasks:
                if self._agent:
                    tasks.create_task(self._agent.run(agent_stop))
                serving = tasks.create_task(self._serve_cluster(cluster_stop))
                watches = [
                    tasks.create_task(watch_limits(self._files, self._log)),
                    tasks.create_task(watch_directory(sight)),
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
        if self._cluster and self._agent:
            await self._cluster.run(self._agent, stop)

    def _hurry(self) -> None:
        if self._control:
            self._control.hurry()

    def _servers(self) -> "Iterator[AgentApi | ReadersPort | PageApi]":
        """Stopped in the opposite order: a stream ends before its server waits for the answers that are under way."""
        if self._agent is None:
            return
        with lasting():
            from mpsd.agent.sources import AgentSources
            from mpsd.cli.agent_api import AgentApi  # brings an HTTP server, which control is better without
            from mpsd.status.metrics.agent import MetricsApi
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


def serve(chosen: Settings, place: AgentPlace | None, *, with_control: bool) -> NoReturn:
    """Runs control, an agent or both until a signal; exits with 1 where they cannot run here.

    place: of the agent; None for none.
    """
    logs.configure(chosen.log_format)
    try:
        with run_directory.held(chosen.run_directory) if with_control else nullcontext():
            if with_control:  # before anything that can fail, such as NVML
                gate.close_before_start(chosen.run_directory, logs.logger())
            code = event_loop.run(Parts(chosen, place, with_control=with_control).run())
    except (*_CANNOT, OSError) as error:
        complaints().print(f"mpsd: {error}")
        code = ExitCode.NO
    sys.exit(code)
