"""`mpsd scheduler`: the extender that kube-scheduler asks which nodes have a GPU with room."""

import asyncio
import sys
import time
from collections.abc import Mapping

from aiohttp import web

from mpsd.platform import event_loop, logs
from mpsd.platform.console import ExitCode, complaints
from mpsd.platform.kube import Kube, Unavailable, open_kube
from mpsd.platform.limits_files import LimitsFiles, watch_limits
from mpsd.platform.listener import Handler, Listener, ListenerSettings, PortTaken, Shutdown, TcpAddress
from mpsd.platform.logs import logger
from mpsd.platform.options import taking
from mpsd.platform.readers import ReadersPort, token_reviewer
from mpsd.platform.server_metrics import CONTENT_TYPE
from mpsd.platform.settings import CannotListen
from mpsd.scheduler.api import CapacityCount, ExtenderApi, SchedulerMetrics, each_capacity
from mpsd.scheduler.bind import Binder
from mpsd.scheduler.ledger import ClusterLedger
from mpsd.scheduler.listener import ExtenderListener
from mpsd.scheduler.settings import SCHEDULER_SETTINGS, SchedulerSettings, scheduler_settings
from mpsd.status.page.cluster import ClusterPage
from mpsd.status.page.server import PageApi

_LOOK_S = 0.2
_LONGEST_PROBE = 1024  # bytes; probes have no body


class SchedulerRole:
    def __init__(self, settings: SchedulerSettings, files: LimitsFiles, kube: Kube) -> None:
        self._settings = settings
        self._files = files
        self._metrics = SchedulerMetrics()
        self._ledger = ClusterLedger(kube, lambda: files.policy, files.facts.fewest_clients)
        api = ExtenderApi(self._ledger, Binder(kube, self._ledger), self._metrics)
        self._listener = ExtenderListener(api.routes(), settings, self._metrics)
        plain = TcpAddress(settings.metrics_address, settings.metrics_port)
        self._plain_server = Listener(self._public_routes(), plain, ListenerSettings(_LONGEST_PROBE))
        self._page = PageApi(ClusterPage(kube, self._ledger))
        self._readers = _readers_port(self.readers_routes, settings) if settings.listen.addresses else None
        self._usable_since: float | None = None  # monotonic; None while the ledger cannot be used
        self._was_usable: bool | None = None  # as last logged; None before the first look
        self._has_begun = False  # whether the ledger was usable once
        self._policy = files.policy  # by which the ledger counts
        self._log = logger(role="scheduler")
        self._shutdown = Shutdown(settings.drain_s, self._log)

    async def run(self, stop: asyncio.Event) -> None:
        """Serves until `stop`, then drains. PortTaken and CannotListen where it cannot listen."""
        await self._plain_server.start()
        if self._readers:
            await self._readers.start()
        limits = watch_limits(self._files, self._log, self._note_limits)
        loops = [self._ledger.run(), self._listener.keep(), self._watch_ledger(), limits, stop.wait()]
        tasks: list[asyncio.Task[object]] = [asyncio.create_task(loop) for loop in loops]
        try:
            await event_loop.until_one_ends(tasks)  # a loop ends only by what it cannot go on after
            await self._shutdown.drain(self._listener.ask_to_go)
        finally:
            await self._listener.close()  # the last binds count on the ledger
            for task in tasks:
                task.cancel()
            await self._page.stop()
            if self._readers:
                await self._readers.stop()
            await self._plain_server.stop()

    def hurry(self) -> None:
        """Ends the drain that is under way."""
        self._shutdown.hurry()

    @property
    def trouble(self) -> str:
        """Why kube-scheduler gets no answers; empty where it does."""
        if self._shutdown.has_begun:
            return "shutting down"
        return self._ledger.trouble or ("" if self._listener.is_open else self._listener.trouble)

    async def _watch_ledger(self) -> None:
        """Notes since when the ledger is usable, and logs each change."""
        while True:
            trouble = self._ledger.trouble
            is_usable = not trouble
            if is_usable != self._was_usable:
                self._note(trouble)
            self._was_usable = is_usable
            await asyncio.sleep(_LOOK_S)

    def _note(self, trouble: str) -> None:
        if trouble:
            self._usable_since = None
            self._log.warning("ledger not usable", reason=trouble)
            return
        self._usable_since = time.monotonic()
        if not self._has_begun:
            event_loop.expect_long_life()
        self._has_begun = True
        self._log.info("ledger usable", nodes=len(self._ledger.table.nodes))

    def _note_limits(self) -> None:
        """A changed policy counts at the next request."""
        self._metrics.limits(wrong=self._files.wrong is not None)
        if self._files.policy is not self._policy:
            self._policy = self._files.policy
            self._ledger.policy_changed()
            self._log.info("limits changed")

    # -- probes and metrics ----------------------------------------------------------------------------------------

    def _public_routes(self) -> Mapping[str, Handler]:
        return {"GET /healthz": self._health, "GET /readyz": self._readiness, "GET /metrics": self._show_metrics}

    @property
    def readers_routes(self) -> Mapping[str, Handler]:
        """The routes on the ports for readers."""
        return {"GET /metrics": self._show_metrics, **self._page.routes}

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readiness(self, _request: web.Request) -> web.Response:
        """200 while kube-scheduler gets answers."""
        trouble = self.trouble
        return web.Response(text=f"{trouble or 'ok'}\n", status=503 if trouble else 200)

    async def _show_metrics(self, _request: web.Request) -> web.Response:
        self._metrics.known([CapacityCount.of(ledger) async for ledger in each_capacity(self._ledger.table)])
        since = self._usable_since
        self._metrics.usable(0.0 if since is None else time.monotonic() - since)
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})


def _readers_port(routes: Mapping[str, Handler], settings: SchedulerSettings) -> ReadersPort:
    listen = settings.listen
    reviewer = token_reviewer(settings.kubeconfig) if listen.asks_who else None
    return ReadersPort(routes, listen.addresses, reviewer, listen.certificate)


@taking(SCHEDULER_SETTINGS)
def scheduler(**flags: str | None) -> None:
    """Tell kube-scheduler which nodes have one GPU with room, and bind pods to it.

    Without it, kube-scheduler adds up what a node's GPUs have free, and sends a pod of 7 GiB to a node with 4 and 3.
    It keeps nothing of its own: kill it, and it reads its ledger from the API again.

    Beside kube-scheduler, in its pod or on its host's network, it needs no flags. kube-scheduler finds it by these
    lines of its configuration (apiVersion kubescheduler.config.k8s.io/v1; v1beta1 for Kubernetes 1.20):

        extenders:
          - urlPrefix: http://127.0.0.1:12345
            filterVerb: filter
            prioritizeVerb: prioritize
            preemptVerb: preempt
            bindVerb: bind
            weight: 10
            nodeCacheCapable: true
            httpTimeout: 10s
            managedResources:
              - name: aliyun.com/gpu-mem

    Whoever may ask can have pods bound, so on an address that others reach it lets in client certificates only. Take an
    authority that signs for kube-scheduler and for nobody else; renewed files count without a restart. Then the lines
    are urlPrefix: https://NAME:12345, enableHTTPS: true, and tlsConfig with certFile, keyFile and caFile:

        mpsd scheduler --address 0.0.0.0 --cert-dir /certs --client-ca /ca/ca.crt

    What it knows, in words and as gpushare's extender tells it:

        curl -s http://127.0.0.1:9446/readyz         whether it answers, or why not
        curl -s http://127.0.0.1:12345/inspect/NODE  a node's GPUs, and who has what
        mpsd scheduler --kubeconfig ~/.kube/config   outside a cluster, to try it
    """
    chosen = scheduler_settings(flags)
    logs.configure(chosen.log_format)
    try:
        event_loop.run(_serve(chosen))
    except (PortTaken, CannotListen, Unavailable) as error:
        complaints().print(f"mpsd scheduler: {error}")
        sys.exit(ExitCode.NO)


async def _serve(chosen: SchedulerSettings) -> int:
    kube = open_kube(chosen.kubeconfig)
    role = SchedulerRole(chosen, LimitsFiles(chosen.limits_directory), kube)
    stop = asyncio.Event()
    event_loop.on_stop_signals(stop.set, role.hurry)
    await role.run(stop)
    kube.close()
    return ExitCode.YES
