"""`mpsd scheduler`: the extender that kube-scheduler asks which nodes have a GPU with room."""

import asyncio
import sys
import time
from typing import TYPE_CHECKING

from aiohttp import web

from mpsd.platform import event_loop, life, logs
from mpsd.platform.command_line import takes
from mpsd.platform.console import ExitCode, complaints
from mpsd.platform.imports import lasting
from mpsd.platform.kube import Kube, Unavailable
from mpsd.platform.kube_access import open_kube
from mpsd.platform.limits_files import LimitsFiles, watch_limits
from mpsd.platform.listener import Listener, ListenerSettings, Shutdown, health_routes
from mpsd.platform.logs import logger
from mpsd.platform.settings import CannotListen, ListenAddress
from mpsd.scheduler.api import ExtenderApi, ExtenderListener, SchedulerMetrics, each_capacity
from mpsd.scheduler.bind import Binder
from mpsd.scheduler.ledger import ClusterLedger
from mpsd.scheduler.settings import SCHEDULER_SETTINGS, SchedulerSettings, scheduler_settings

if TYPE_CHECKING:
    from mpsd.platform.readers import ReadersPort
    from mpsd.status.page.server import PageApi

    _Server = Listener | ReadersPort | PageApi

LATER = ("cryptography", "kubernetes", "psutil", "rich")
_EXPECTED = (CannotListen, Unavailable)
_LOOK_S = 0.2
_LONGEST_PROBE = 1024  # bytes; probes have no body


class SchedulerRole:
    def __init__(self, settings: SchedulerSettings, files: LimitsFiles, kube: Kube) -> None:
        self._files = files
        self._metrics = SchedulerMetrics()
        self._ledger = ClusterLedger(kube, files.policy_now)
        api = ExtenderApi(self._ledger, Binder(kube, self._ledger), self._metrics)
        self._listener = ExtenderListener(api.routes(), settings, self._metrics)
        plain = ListenAddress(settings.metrics_address, settings.metrics_port)
        metrics = {"GET /metrics": self._show_metrics}
        routes = {**health_routes(self._trouble), **metrics}
        self._servers: list[_Server] = [Listener(routes, plain, ListenerSettings(_LONGEST_PROBE))]
        if (listen := settings.listen).addresses:
            with lasting():  # bring TLS: only where it was asked for
                from mpsd.platform.readers import ReadersPort, TokenReviewer
                from mpsd.status.page.cluster import ClusterPage
                from mpsd.status.page.server import PageApi

            page = PageApi(ClusterPage(kube, self._ledger))
            reviewer = TokenReviewer(settings.kubeconfig) if listen.asks_who else None
            shown = {**metrics, **page.routes}
            port = ReadersPort(shown, listen.addresses, reviewer, listen.certificate)
            self._servers += (port, page)
        self._usable_since: float | None = None  # monotonic; None while the ledger cannot be used
        self._policy = files.policy  # by which the ledger counts
        self._log = logger(role="scheduler")
        self._shutdown = Shutdown(settings.drain_s, self._log)
        self.hurry = self._shutdown.hurry  # ends the drain that is under way

    async def run(self, stop: asyncio.Event) -> None:
        """Serves until `stop`, then drains. CannotListen where it cannot listen."""
        # else a third of reading the lists is to look for garbage
        event_loop.expect_long_life()
        for server in self._servers:
            await server.start()
        limits = watch_limits(self._files, self._log, self._note_limits)
        ended = stop.wait()
        loops = [self._ledger.run(), self._listener.keep(), self._watch_ledger(), limits, ended]
        tasks: list[asyncio.Task[object]] = [asyncio.create_task(loop) for loop in loops]
        try:
            await event_loop.until_one_ends(tasks)
            await self._shutdown.drain(self._listener.ask_to_go)
            life.end_within(life.STOPPING_S)
        finally:
            await self._listener.close()  # the last binds count on the ledger
            for task in tasks:
                task.cancel()
            for server in reversed(self._servers):
                await server.stop()

    async def _watch_ledger(self) -> None:
        """Notes since when the ledger is usable."""
        was_usable: bool | None = None  # None before the first look
        has_been = False
        while True:
            trouble = self._ledger.trouble
            if not trouble and not was_usable:
                if not has_been:
                    event_loop.expect_long_life()
                self._usable_since = time.monotonic()
                has_been = True
                self._log.info("ledger usable", nodes=len(self._ledger.table.nodes))
            elif trouble and was_usable is not False:
                self._usable_since = None
                self._log.warning("ledger not usable", reason=trouble)
            was_usable = not trouble
            await asyncio.sleep(_LOOK_S)

    def _note_limits(self) -> None:
        self._metrics.limits(wrong=self._files.wrong is not None)
        if self._files.policy is not self._policy:
            self._policy = self._files.policy
            self._ledger.policy_changed()
            self._log.info("limits changed")

    def _trouble(self) -> str:
        """Why kube-scheduler gets no answers; empty where it does."""
        if self._shutdown.has_begun:
            return "shutting down"
        return self._ledger.trouble or ("" if self._listener.is_open else self._listener.trouble)

    async def _show_metrics(self, request: web.Request) -> web.Response:
        since = self._usable_since
        usable_s = 0.0 if since is None else time.monotonic() - since
        table = self._ledger.table
        await self._metrics.known(each_capacity(table, table.nodes), usable_s)
        return await self._metrics.show(request)


@takes(settings=SCHEDULER_SETTINGS)
def scheduler(**flags: str | None) -> None:
    """Report to kube-scheduler which nodes have one GPU with enough free capacity, and bind pods to
    it.

    Without it, kube-scheduler adds up what a node's GPUs have free, and sends a pod of 7 GiB to a
    node with 4 and 3. It stores nothing: after a restart, it reads its ledger from the API again.

    In the pod of kube-scheduler or on its host's network, it needs no flags. kube-scheduler needs
    these lines in its configuration (apiVersion kubescheduler.config.k8s.io/v1; v1beta1 for
    Kubernetes 1.20):

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

    A client that may send requests can have pods bound, so on an address other than loopback it
    requires a client certificate. Use a CA that signs for kube-scheduler only; renewed files take
    effect without a restart. The lines are then urlPrefix: https://NAME:12345, enableHTTPS: true,
    and tlsConfig with certFile, keyFile and caFile:

        mpsd scheduler --address 0.0.0.0 --cert-dir /certs --client-ca /ca/ca.crt

    Its state, as text and in the format of gpushare's extender:

        curl -s http://127.0.0.1:9446/readyz         whether it answers, or why not
        curl -s http://127.0.0.1:12345/inspect/NODE  a node's GPUs, and what each pod has
        mpsd scheduler --kubeconfig ~/.kube/config   outside a cluster, to try it
    """
    chosen = scheduler_settings(flags)
    logs.configure(chosen.log_format, chosen.log_level)
    try:
        code = life.run("mpsd scheduler", lambda: _serve(chosen), _EXPECTED)
    except _EXPECTED as error:
        complaints().print(f"mpsd scheduler: {error}")
        code = ExitCode.NO
    sys.exit(code)


async def _serve(chosen: SchedulerSettings) -> int:
    kube = open_kube(chosen.kubeconfig)
    role = SchedulerRole(chosen, LimitsFiles(chosen.limits_directory), kube)
    await role.run(event_loop.until_signalled(role.hurry))
    kube.close()
    return ExitCode.YES
