"""The HTTP API for kube-scheduler and for clients of gpushare, its listener and its metrics.

While the ledger cannot be used, requests fail, so pods wait. What cannot be read is answered 400.
Labels of metrics come from closed sets, never from a request.
"""

import asyncio
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from enum import StrEnum
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web
from prometheus_client import Gauge

from mpsd.kubelet.rules.gpu_choice import SharedPod
from mpsd.model import metrics as names
from mpsd.platform.bodies import BodyRefused, read_json
from mpsd.platform.imports import lasting
from mpsd.platform.listener import (
    Handler,
    Listener,
    ListenerSettings,
    json_answer,
    tls_context,
)
from mpsd.platform.logs import logger
from mpsd.platform.server_metrics import ServerMetrics
from mpsd.platform.settings import ListenAddress
from mpsd.scheduler import wire
from mpsd.scheduler.bind import Binder
from mpsd.scheduler.ledger import ClusterLedger
from mpsd.scheduler.rules.capacity import AssignmentSource, NodeCapacity
from mpsd.scheduler.rules.filter import UnreadablePod, filtered, read_asking, scores
from mpsd.scheduler.rules.gpu_table import GpuTable
from mpsd.scheduler.rules.inspect_formats import inspected, inspection
from mpsd.scheduler.rules.preemption import victims
from mpsd.scheduler.settings import SchedulerSettings
from mpsd.scheduler.wire import LONGEST_BODY

if TYPE_CHECKING:
    from mpsd.platform.certificates import Certificates


class ExtenderVerb(StrEnum):
    FILTER = "filter"
    PRIORITIZE = "prioritize"
    PREEMPT = "preempt"
    BIND = "bind"


class RequestVerdict(StrEnum):
    DONE = "done"  # a node has room, the pod is bound, somebody can be stopped
    NO_NODE = "no-node"  # no node has room, or none would after preemption
    REFUSED = "refused"  # not bound
    NOT_OURS = "not-ours"  # a pod that asks for no GPU
    TROUBLE = "trouble"  # the ledger cannot be used now
    MALFORMED = "malformed"  # no request that could be read


class SchedulerMetrics(ServerMetrics):
    def __init__(self) -> None:
        super().__init__(names.Exporter.SCHEDULER)
        self._requests_of = cache(self.counter(names.SCHEDULER_REQUESTS).labels)
        # From 0 on, so that the first one counts.
        self._requests_of(ExtenderVerb.FILTER.value, RequestVerdict.NO_NODE.value)
        self._seconds_of = cache(self.histogram(names.SCHEDULER_SECONDS).labels)
        self._nodes = self.gauge(names.SCHEDULER_NODES)
        self._gpus = self.gauge(names.SCHEDULER_GPUS)
        self._open = self.gauge(names.SCHEDULER_OPEN)
        self._reservations = self.gauge(names.SCHEDULER_RESERVATIONS)
        self._usable = self.gauge(names.SCHEDULER_USABLE)

    def answered(self, verb: ExtenderVerb, verdict: RequestVerdict, took_s: float) -> None:
        self._requests_of(verb.value, verdict.value).inc()
        self._seconds_of(verb.value).observe(took_s)

    async def known(self, nodes: AsyncIterator[NodeCapacity], usable_s: float) -> None:
        """usable_s: for how long the ledger has been usable; 0 while it is not."""
        total: Counter[Gauge] = Counter()
        async for ledger in nodes:
            total[self._nodes] += 1
            total[self._gpus] += len(ledger.totals)
            total[self._open] += len(ledger.rooms)
            total[self._reservations] += sum(
                one.source is AssignmentSource.RESERVED for one in ledger.taken
            )
        for gauge in (self._nodes, self._gpus, self._open, self._reservations):
            gauge.set(total[gauge])
        self._usable.set(usable_s)


_BODY_S = 5.0  # kube-scheduler's default timeout

_Answered = tuple[RequestVerdict, bytes]


class _Trouble(Exception):
    """The ledger cannot be used; the message says why."""


class ExtenderApi:
    def __init__(self, ledger: ClusterLedger, binder: Binder, metrics: SchedulerMetrics) -> None:
        self._ledger = ledger
        self._binder = binder
        self._metrics = metrics
        self._candidates = wire.CandidatesReader()

    def routes(self) -> Mapping[str, Handler]:
        """All routes, for kube-scheduler and clients of gpushare."""
        routes: dict[str, Handler] = {}
        for prefix in ("", "/gpushare-scheduler"):  # gpushare's, so that its configurations work
            routes[f"POST {prefix}/filter"] = self._handler(ExtenderVerb.FILTER, self._filter)
            routes[f"POST {prefix}/prioritize"] = self._handler(
                ExtenderVerb.PRIORITIZE, self._prioritize
            )
            routes[f"POST {prefix}/preempt"] = self._handler(ExtenderVerb.PREEMPT, self._preempt)
            routes[f"POST {prefix}/bind"] = self._handler(ExtenderVerb.BIND, self._bind)
            routes[f"GET {prefix}/inspect"] = routes[f"GET {prefix}/inspect/{{node}}"] = (
                self._inspect
            )
        return routes

    def _handler(
        self, verb: ExtenderVerb, answer_to: Callable[[bytes], Awaitable[_Answered]]
    ) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            began = time.perf_counter()
            try:
                body = await read_json(request, _BODY_S)
                verdict, answer = await answer_to(body)
            except BodyRefused as refused:
                verdict = RequestVerdict.MALFORMED
                response = _plain(refused.status, refused)
            except (wire.MalformedRequest, UnreadablePod) as error:
                verdict = RequestVerdict.MALFORMED
                response = _plain(400, error)
            except _Trouble as trouble:  # for answers without a field for an error
                verdict = RequestVerdict.TROUBLE
                response = _plain(503, trouble)
            else:
                response = web.Response(body=answer, content_type="application/json")
            self._metrics.answered(verb, verdict, time.perf_counter() - began)
            return response

        return handle

    async def _filter(self, body: bytes) -> _Answered:
        asked = self._candidates.read(body)
        try:
            pod = self._asking(asked.pod)
            if pod:
                await self._binder.few_under_way()
        except (_Trouble, UnreadablePod) as error:
            return RequestVerdict.TROUBLE, wire.filter_error(str(error))
        if pod is None:
            return RequestVerdict.NOT_OURS, wire.filter_answer(asked.nodes, {}, {})
        found = filtered(
            pod.request, asked.nodes, self._ledger.table, self._ledger.reserved_for(pod.name.uid)
        )
        verdict = RequestVerdict.DONE if found.passing else RequestVerdict.NO_NODE
        return verdict, wire.filter_answer(found.passing, found.failed, found.never)

    async def _prioritize(self, body: bytes) -> _Answered:
        asked = self._candidates.read(body)
        pod = self._asking(asked.pod)
        if pod is None:
            return RequestVerdict.NOT_OURS, wire.prioritize_answer(asked.nodes, repeat(0))
        found = scores(
            pod.request, asked.nodes, self._ledger.table, self._ledger.reserved_for(pod.name.uid)
        )
        return RequestVerdict.DONE, wire.prioritize_answer(asked.nodes, found)

    async def _preempt(self, body: bytes) -> _Answered:
        asked = wire.read_preemption(body)
        pod = self._asking(asked.pod)
        if pod is None:
            return RequestVerdict.NOT_OURS, wire.preempt_answer(asked.nodes)
        own = self._ledger.reserved_for(pod.name.uid)
        helped = {}
        for node, proposed in asked.nodes.items():
            if ledger := own.get(node) or self._ledger.table.ledger(node):
                uids = victims(pod, ledger, self._ledger.pods_on(node), proposed.uids)
                # A scheduler that gets a node without victims gives up the whole preemption.
                if uids:
                    going = tuple(map(wire.Victim, uids))
                    helped[node] = wire.Victims(going, proposed.budgets_broken)
            # dozens of pods with odd shares of each GPU take tenths of a second
            await asyncio.sleep(0)
        verdict = RequestVerdict.DONE if helped else RequestVerdict.NO_NODE
        return verdict, wire.preempt_answer(helped)

    async def _bind(self, body: bytes) -> _Answered:
        reason = await self._binder.bind(wire.read_binding(body))
        verdict = RequestVerdict.REFUSED if reason else RequestVerdict.DONE
        return verdict, wire.bind_answer(reason)

    async def _inspect(self, request: web.Request) -> web.Response:
        """One node, or all. As gpushare does, an unknown node is an error in the answer."""
        name = request.match_info.get("node")
        table = self._ledger.table
        capacities = each_capacity(table, [name] if name else table.nodes)
        found = [msgspec.Raw(msgspec.json.encode(inspected(one))) async for one in capacities]
        missing = ""
        if name and not found:
            missing = f"mpsd knows no GPU of node {name}"
        return json_answer(inspection(found, self._ledger.trouble or missing))

    def _asking(self, pod: Mapping[str, Any]) -> SharedPod | None:
        """None for a pod that requests no GPU. _Trouble, UnreadablePod."""
        if trouble := self._ledger.trouble:
            raise _Trouble(f"mpsd's scheduler does not know the free capacity: {trouble}")
        return read_asking(pod, self._ledger.policy)


async def each_capacity(table: GpuTable, nodes: Iterable[str]) -> AsyncIterator[NodeCapacity]:
    """The capacity of these nodes. Other requests are served in between: thousands take a
    second."""
    for place, node in enumerate(nodes, 1):
        if ledger := table.ledger(node):
            yield ledger
        if place % 8 == 0:  # each takes up to a millisecond
            await asyncio.sleep(0)


def _plain(status: int, reason: Exception) -> web.Response:
    return web.Response(status=status, text=f"{reason}\n")


_LOOK_S = 2.0


class ExtenderListener:
    """A port that only kube-scheduler reaches, or one that takes only client certificates: without
    both a certificate of its own and an authority for those of clients, a port that others reach is
    never open. What is renewed on disk counts within seconds, and what cannot be used leaves the
    last good in force.

    trouble: why it is not open, or why the files on disk do not count; empty for neither.
    """

    def __init__(
        self, routes: Mapping[str, Handler], settings: SchedulerSettings, metrics: SchedulerMetrics
    ) -> None:
        self._routes = routes
        self._settings = settings
        self._metrics = metrics
        self._server: Listener | None = None  # None until it is open
        # None without TLS, and before the first certificates
        self._context: ssl.SSLContext | None = None
        self._shown: Certificates | None = None
        self._authorities = ""  # PEM: whose client certificates are taken
        self.trouble = "not open yet"
        self._log = logger(role="scheduler")

    @property
    def is_open(self) -> bool:
        return self._server is not None

    async def keep(self) -> None:
        """Until it is cancelled. CannotListen where nobody can listen there."""
        folder = self._settings.certificate_directory
        authority = self._settings.client_authority
        if folder is None or authority is None:
            await self._open(None)
            await asyncio.get_running_loop().create_future()
            return
        with lasting():  # 8 MiB: only where there is TLS
            from mpsd.platform.certificates import FolderCertificates, UnusableCertificate

        source = FolderCertificates(folder)
        while True:
            try:
                await self._look(await source.look(0), authority)
                self._say("")
            except UnusableCertificate as error:
                self._say(str(error))
            await asyncio.sleep(_LOOK_S)

    def ask_to_go(self) -> None:
        if self._server:
            self._server.ask_to_go()

    async def close(self) -> None:
        if self._server:
            await self._server.stop()
            self._server = None

    async def _look(self, found: "Certificates", authority: Path) -> None:
        from mpsd.platform.certificates import UnusableCertificate, load_into

        authorities = _read_authorities(authority)
        if self._context is None or authorities != self._authorities:
            try:
                context = tls_context(authorities)
            except ssl.SSLError as error:
                raise UnusableCertificate(
                    f"the authority for clients cannot be used: {error}"
                ) from None
            load_into(context, found.serving)
            # Clients of an authority that is no longer trusted must not stay connected.
            await self.close()
            await self._open(context)
            self._authorities = authorities
        elif found != self._shown:
            load_into(self._context, found.serving)
            self._log.info("certificate renewed", ends=round(found.expiries["serving"]))
        self._shown = found
        self._metrics.certificates({"serving": found.expiries["serving"]})

    async def _open(self, context: ssl.SSLContext | None) -> None:
        settings = self._settings
        address = ListenAddress(settings.address, settings.port)
        server = Listener(self._routes, address, ListenerSettings(LONGEST_BODY, context=context))
        await server.start()
        self._server = server
        self._context = context
        self.trouble = ""
        self._log.info(
            "serving", address=settings.address, port=server.port, tls=context is not None
        )

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self.trouble:
            self._log.warning("certificates cannot be used", reason=trouble, served=self.is_open)
        self.trouble = trouble


def _read_authorities(path: Path) -> str:
    from mpsd.platform.certificates import UnusableCertificate, fingerprints

    try:
        found = path.read_bytes()
    except OSError as error:
        raise UnusableCertificate(f"{path} cannot be read: {error.strerror}") from None
    if not fingerprints(found):
        raise UnusableCertificate(f"{path} contains no CA certificate, in PEM")
    return found.decode()
