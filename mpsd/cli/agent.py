"""`mpsd agent`, and `mpsd up`."""

import asyncio
import platform
import shutil
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from mpsd.agent.agent import AgentRole
from mpsd.cli import foreground
from mpsd.grants.ledger import GrantableGpus, Ledger, LocalGrants
from mpsd.kubelet.settings import KUBELET_SETTINGS, KubeletSettings, kubelet_settings
from mpsd.mps.records import NodeDomains
from mpsd.platform import event_loop, life, logs
from mpsd.platform.command_line import takes
from mpsd.platform.imports import lasting
from mpsd.platform.limits_files import LimitsFiles
from mpsd.platform.settings import (
    LISTEN_SETTINGS,
    LOG_SETTINGS,
    NODE_SETTINGS,
    Listen,
    Settings,
    listen_settings,
    settings,
)
from mpsd.simulator.machine import find_node

if TYPE_CHECKING:
    from mpsd.platform.listener import Listener
    from mpsd.platform.readers import ReadersPort
    from mpsd.status.page.server import PageApi

LATER = (
    *("aiohttp", "cryptography", "google.protobuf", "grpc", "kubernetes", "prometheus_client"),
    *("psutil", "pynvml", "rich", "tenacity", "urllib3"),
)
_OF_NODE = {name: NODE_SETTINGS[name] for name in ("simulate", "limits_directory", "run_directory")}


class Parts:
    """An agent, and the supervision of its daemons where that is wanted. listen: where readers are
    served beside the Unix socket. kubelet: None on a machine of its own."""

    def __init__(
        self,
        settings: Settings,
        listen: Listen,
        kubelet: KubeletSettings | None,
        *,
        with_control: bool,
    ) -> None:
        self._settings = settings
        self._listen = listen
        self._kubelet = kubelet
        self._files = LimitsFiles(settings.limits_directory)
        self._node = node = find_node(settings, self._files.facts)
        policy = self._files.policy_now
        self._control = self._cluster = self._ledger = None
        ledger: Ledger
        self._wake = asyncio.Event()
        directory = settings.run_directory
        now = policy()
        log = logs.logger(role="agent")
        domains = NodeDomains(directory, node.gpus, now, log)
        if with_control:
            from mpsd.cli.control import ControlRole  # only `mpsd up` has one

            of_control = NodeDomains(directory, node.gpus, now, logs.logger(role="control"))
            self._control = ControlRole(settings, of_control, node, self._files.facts, policy)
        if kubelet:
            with lasting():  # half of what the agent needs in memory, and only beside a kubelet
                from mpsd.cli.kubelet_node import KubeletNode

            self._cluster = KubeletNode(kubelet, settings, node, policy, domains, self._wake.set)
            ledger = self._cluster.ledger
        else:
            here = GrantableGpus(policy, domains)
            ledger = LocalGrants(settings.grants, self._wake.set, logs.logger(), here)
            self._ledger = ledger
        self._agent = AgentRole(settings, node, policy, ledger, domains, self._wake)

    async def run(self) -> int:
        """Until a signal; then the daemons are drained and stopped, then the agent."""
        stop = event_loop.until_signalled(self._control.hurry if self._control else lambda: None)
        cluster_stop = asyncio.Event()
        agent_stop = asyncio.Event()
        async with AsyncExitStack() as opened:
            for server in self._servers(stop.is_set):
                await server.start()
                opened.push_async_callback(server.stop)
            if self._cluster:
                await self._cluster.start()
            await opened.enter_async_context(foreground.watching(self._settings, self._files))
            async with life.Tasks() as tasks:
                tasks.create_task(self._agent.run(agent_stop))
                serving: asyncio.Task[object]
                if self._cluster:
                    serving = tasks.create_task(self._cluster.run(self._agent, cluster_stop))
                else:
                    serving = tasks.create_task(cluster_stop.wait())
                if self._control:
                    await self._control.run(stop)
                await stop.wait()
                life.end_within(life.STOPPING_S)
                cluster_stop.set()
                await serving  # until then limits must be raised for what still comes
                agent_stop.set()
                self._wake.set()
        self._node.nvml.close()
        if self._control and self._settings.simulate:
            shutil.rmtree(self._settings.simulation)
        return 0

    def _servers(
        self, stopping: Callable[[], bool]
    ) -> "Iterator[Listener | ReadersPort | PageApi]":
        """Stopped in the opposite order: streams end before their server."""
        with lasting():
            from mpsd.agent.sources import AgentSources
            from mpsd.cli.agent_api import AgentApi
            from mpsd.status.node_api import MetricsApi
            from mpsd.status.page.node import NodePage
            from mpsd.status.page.server import PageApi

        sources = AgentSources(
            self._settings, self._agent, self._node, self._files, self._ledger, stopping=stopping
        )
        name = platform.node()
        pods = calls = None
        if beside := self._cluster:
            name = beside.name
            pods = beside.pods
            calls = beside.calls
            sources = replace(sources, unheard=beside.unheard, claims=beside.claims)
            sources = replace(sources, upgrade_state=beside.upgrade_state)
        page = PageApi(
            NodePage(self._agent, self._files.policy_now, name, bare=beside is not None, pods=pods)
        )
        api = AgentApi(sources, MetricsApi(sources, calls), page)
        yield api.server
        if (listen := self._listen).addresses:
            # bring TLS: only where it was asked for
            from mpsd.platform.readers import ReadersPort, TokenReviewer

            reviewer = None
            if self._kubelet and listen.asks_who:
                reviewer = TokenReviewer(self._kubelet.kubeconfig)
            yield ReadersPort(api.readers_routes, listen.addresses, reviewer, listen.certificate)
        yield page


def _serve(
    verb: str,
    flags: Mapping[str, str | None],
    listen: Listen,
    kubelet: KubeletSettings | None = None,
    *,
    with_control: bool,
) -> NoReturn:
    """Exits with 1 where it cannot run."""
    given: dict[str, Any] = {name: flags.get(name) for name in (*_OF_NODE, *LOG_SETTINGS)}
    chosen = settings(**given)

    def run() -> Coroutine[None, None, int]:
        return Parts(chosen, listen, kubelet, with_control=with_control).run()

    foreground.serve(verb, chosen, run, with_control=with_control)


@takes(settings={**_OF_NODE, **KUBELET_SETTINGS, **LISTEN_SETTINGS, **LOG_SETTINGS})
def agent(**flags: str | None) -> None:
    """Grant shares of this node's GPUs and set the limits of `mpsd control`'s daemons, in the
    foreground.

    With --node it is the device plugin of that node: kubelet gives the shares to pods, and only to
    pods. It may be killed or restarted at any time: no program is affected, and grants are
    restored.

        mpsd agent
        mpsd agent --node "$(hostname)" --kubeconfig ~/.kube/config
    """
    kubelet = kubelet_settings(flags)
    listen = listen_settings(flags, in_cluster=kubelet is not None)
    _serve("agent", flags, listen, kubelet, with_control=False)


@takes(settings={**_OF_NODE, "listen": LISTEN_SETTINGS["listen"], **LOG_SETTINGS})
def up(**flags: str | None) -> None:
    """Share this machine's GPUs through MPS: supervise the daemons, grant shares, in the
    foreground.

    After Ctrl-C (or SIGTERM) it accepts no new programs, waits for those that run, stops the
    daemons and restores the GPUs; a second Ctrl-C does not wait. If it is killed, its daemons and
    programs continue, and the next `mpsd up` takes them over.

        mpsd up
        mpsd up --simulate H200x2     # no GPU needed
    """
    _serve("up", flags, listen_settings(flags, in_cluster=False), with_control=True)
