"""The HTTP API for kube-scheduler and for clients of gpushare, and its metrics.

While the ledger cannot be used, requests fail instead of being answered with a guess, so pods wait. What cannot be read
is answered 400 with the problem. Labels of metrics come from closed sets, never from a request.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from itertools import repeat
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from mpsd.kubelet.rules.gpu_choice import SharedPod
from mpsd.model import metrics as names
from mpsd.platform.listener import BodyRefused, Handler, json_answer, read_body
from mpsd.platform.server_metrics import ServerMetrics
from mpsd.scheduler import wire
from mpsd.scheduler.bind import BindArgs, Binder
from mpsd.scheduler.ledger import ClusterLedger
from mpsd.scheduler.rules.capacity import AssignmentSource, NodeCapacity
from mpsd.scheduler.rules.filter import UnreadablePod, filtered, read_asking, scores
from mpsd.scheduler.rules.gpu_table import GpuTable
from mpsd.scheduler.rules.gpushare import inspected, inspection
from mpsd.scheduler.rules.preemption import Preemptor, victims


class ExtenderVerb(StrEnum):
    """A verb of an extender."""

    FILTER = "filter"
    PRIORITIZE = "prioritize"
    PREEMPT = "preempt"
    BIND = "bind"


class RequestVerdict(StrEnum):
    """The result of a request."""

    DONE = "done"  # a node has room, the pod is bound, somebody can be stopped
    NO_NODE = "no-node"  # no node has room, or none would after preemption
    REFUSED = "refused"  # not bound
    NOT_OURS = "not-ours"  # a pod that asks for no GPU
    TROUBLE = "trouble"  # the ledger cannot be used now
    MALFORMED = "malformed"  # no request that could be read


class SchedulerMetrics(ServerMetrics):
    def __init__(self) -> None:
        super().__init__()
        self._requests_of = cache(self.counter(names.SCHEDULER_REQUESTS).labels)
        self._seconds_of = cache(self.histogram(names.SCHEDULER_SECONDS).labels)
        self._nodes = self.gauge(names.SCHEDULER_NODES)
        self._gpus = self.gauge(names.SCHEDULER_GPUS)
        self._open = self.gauge(names.SCHEDULER_OPEN)
        self._reservations = self.gauge(names.SCHEDULER_PROMISES)
        self._usable = self.gauge(names.SCHEDULER_USABLE)

    def answered(self, verb: ExtenderVerb, verdict: RequestVerdict, took_s: float) -> None:
        self._requests_of(verb.value, verdict.value).inc()
        self._seconds_of(verb.value).observe(took_s)

    def known(self, nodes: Sequence["CapacityCount"]) -> None:
        """Sets what each node has now."""
        self._nodes.set(len(nodes))
        for gauge, column in ((self._gpus, 0), (self._open, 1), (self._reservations, 2)):
            gauge.set(sum(each[column] for each in nodes))

    def usable(self, for_s: float) -> None:
        """Sets for how long the ledger has been usable; 0 while it is not."""
        self._usable.set(for_s)


class CapacityCount(NamedTuple):
    """Of one node: its GPUs, those that take pods now, and pods with a reservation."""

    gpus: int
    open: int
    reservations: int

    @classmethod
    def of(cls, ledger: NodeCapacity) -> "CapacityCount":
        reservations = sum(one.source is AssignmentSource.RESERVED for one in ledger.taken)
        return cls(len(ledger.totals), len(ledger.rooms), reservations)


GPUSHARE = "/gpushare-scheduler"  # the path of gpushare's extender, so that its configurations work
_BODY_S = 5.0  # kube-scheduler's default timeout
_NODES_AT_ONCE = 8  # each takes up to a millisecond; then other requests are served

_Answered = tuple[RequestVerdict, bytes]


class _Trouble(Exception):
    """The ledger cannot be used; the message says why."""


class ExtenderApi:
    def __init__(self, ledger: ClusterLedger, binder: Binder, metrics: SchedulerMetrics) -> None:
        self._ledger = ledger
        self._binder = binder
        self._metrics = metrics
        self._candidates = wire.CandidatesReader()
        self._answers: Mapping[ExtenderVerb, Callable[[bytes], Awaitable[_Answered]]] = {
            ExtenderVerb.FILTER: self._filter,
            ExtenderVerb.PRIORITIZE: self._prioritize,
            ExtenderVerb.PREEMPT: self._preempt,
            ExtenderVerb.BIND: self._bind,
        }

    def routes(self) -> Mapping[str, Handler]:
        """All routes, for kube-scheduler and clients of gpushare."""
        verbs = {f"POST {prefix}/{verb}": self._handler(verb) for prefix in ("", GPUSHARE) for verb in ExtenderVerb}
        nodes = [f"GET {prefix}/inspect{node}" for prefix in ("", GPUSHARE) for node in ("", "/{node}")]
        return verbs | dict.fromkeys(nodes, self._inspect)

    def _handler(self, verb: ExtenderVerb) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            began = time.perf_counter()
            verdict, response = await self._respond(verb, request)
            self._metrics.answered(verb, verdict, time.perf_counter() - began)
            return response

        return handle

    async def _respond(self, verb: ExtenderVerb, request: web.Request) -> tuple[RequestVerdict, web.Response]:
        try:
            body = await read_body(request, "application/json", wire.LONGEST_BODY, _BODY_S)
            verdict, answer = await self._answers[verb](body)
        except BodyRefused as refused:
            return RequestVerdict.MALFORMED, _plain(refused.status, str(refused))
        except (wire.MalformedRequest, UnreadablePod) as error:
            return RequestVerdict.MALFORMED, _plain(400, str(error))
        except _Trouble as trouble:  # for answers without a field for an error
            return RequestVerdict.TROUBLE, _plain(503, str(trouble))
        return verdict, web.Response(body=answer, content_type="application/json")

    async def _filter(self, body: bytes) -> _Answered:
        asked = self._candidates.read(body)
        try:
            pod = self._asking(asked.pod)
        except (_Trouble, UnreadablePod) as error:
            return RequestVerdict.TROUBLE, wire.filter_error(str(error))
        if pod is None:
            return RequestVerdict.NOT_OURS, wire.filter_answer(asked, asked.nodes, {}, {})
        found = filtered(pod.request, asked.nodes, self._ledger.table, self._ledger.reserved_for(pod.name.uid))
        answer = wire.filter_answer(asked, found.passing, found.failed, found.never)
        return (RequestVerdict.DONE if found.passing else RequestVerdict.NO_NODE), answer

    async def _prioritize(self, body: bytes) -> _Answered:
        asked = self._candidates.read(body)
        pod = self._asking(asked.pod)
        if pod is None:
            return RequestVerdict.NOT_OURS, wire.prioritize_answer(asked.nodes, repeat(0))
        found = scores(pod.request, asked.nodes, self._ledger.table, self._ledger.reserved_for(pod.name.uid))
        return RequestVerdict.DONE, wire.prioritize_answer(asked.nodes, found)

    async def _preempt(self, body: bytes) -> _Answered:
        asked = wire.read_preemption(body)
        pod = self._asking(asked.pod)
        if pod is None:
            return RequestVerdict.NOT_OURS, wire.preempt_answer(asked.nodes)
        preemptor, own = Preemptor(pod.request, pod.priority), self._ledger.reserved_for(pod.name.uid)
        helped = {}
        for node, proposed in asked.nodes.items():
            ledger = own.get(node) or self._ledger.table.ledger(node)
            uids = victims(preemptor, ledger, self._ledger.pods_on(node), proposed.victims) if ledger else ()
            # A scheduler that gets a node without victims gives up the whole preemption.
            if uids:
                helped[node] = wire.Proposed(uids, proposed.budgets_broken)
            await asyncio.sleep(0)  # dozens of pods with odd shares of each GPU take tenths of a second
        return (RequestVerdict.DONE if helped else RequestVerdict.NO_NODE), wire.preempt_answer(helped)

    async def _bind(self, body: bytes) -> _Answered:
        reason = await self._binder.bind(BindArgs(**wire.read_binding(body)))
        return (RequestVerdict.REFUSED if reason else RequestVerdict.DONE), wire.bind_answer(reason)

    async def _inspect(self, request: web.Request) -> web.Response:
        """One node, or all. As gpushare does, an unknown node is an error in the answer."""
        name = request.match_info.get("node")
        nodes = each_capacity(self._ledger.table, [name] if name else None)
        found = [msgspec.Raw(msgspec.json.encode(inspected(ledger))) async for ledger in nodes]
        missing = f"mpsd knows no GPU of node {name}" if name and not found else ""
        return json_answer(inspection(found, self._ledger.trouble or missing))

    def _asking(self, pod: Mapping[str, Any]) -> SharedPod | None:
        """None for a pod that requests no GPU. _Trouble, UnreadablePod."""
        if trouble := self._ledger.trouble:
            raise _Trouble(f"mpsd scheduler does not know what is free: {trouble}")
        return read_asking(pod, self._ledger.policy)


async def each_capacity(table: GpuTable, nodes: Sequence[str] | None = None) -> AsyncIterator[NodeCapacity]:
    """The capacity of these nodes, None for all. Other requests are served in between: thousands take a second."""
    for place, node in enumerate(table.nodes if nodes is None else nodes, 1):
        if ledger := table.ledger(node):
            yield ledger
        if place % _NODES_AT_ONCE == 0:
            await asyncio.sleep(0)


def _plain(status: int, reason: str) -> web.Response:
    return web.Response(status=status, text=f"{reason}\n")
