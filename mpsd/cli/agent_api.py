"""The agent's interface on its Unix socket: ask for a grant, look at the node.

A grant goes to the process that asked, whose pid the kernel tells; nobody can ask for another or end one.
"""

import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
from aiohttp import web

import mpsd
from mpsd.agent.rules.decide import Refuse
from mpsd.agent.sources import AgentSources
from mpsd.containers.api import ContainersApi, GrantSetApi
from mpsd.grants.rules.messages import GrantAnswer, ProgramRequest, Refusal
from mpsd.model.client_limits import ClientLimit, environment
from mpsd.model.cuda_limit_parser import VISIBLE_DEVICES
from mpsd.model.domain import SERVING, after_is
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.grants import Grant, Request
from mpsd.model.node_status import NodeStatus, without_arguments
from mpsd.model.node_view import WaitingRequest
from mpsd.model.policy import Policy
from mpsd.model.problem import InvalidInput, Problem
from mpsd.model.quantity import memory_unit, whole_units
from mpsd.model.request import GPUS, PERCENT, GpuRequest, each_mib, each_percent, problems_with_asked
from mpsd.model.times import DAY_S
from mpsd.platform import processes
from mpsd.platform.listener import Handler, Listener, ListenerSettings, UnixPath, json_answer, peer_pid
from mpsd.platform.settings import GRANT
from mpsd.status.node_api import MetricsApi, UseApi
from mpsd.status.page.server import PageApi
from mpsd.status.rules.node_status import node_status

# What `mpsd run` asks for: text from a command line into a request, or every problem in it.
#
# The same numbers mean the same as in a pod; with several GPUs the amounts are divided over them evenly.

_MEMORY, _PERCENT, _GPUS = "--gpu-mem", "--gpu-core", "--gpus"


def read_program_request(asks: ProgramRequest, policy: Policy, facts: GpuFacts) -> Request:
    """The request, or InvalidInput with every problem."""
    numbers = (
        whole_units(asks.gpu_mem, _MEMORY, memory_unit(policy.resources.memory_unit_mib)),
        None if asks.gpu_core is None else whole_units(asks.gpu_core, _PERCENT, PERCENT),
        whole_units(asks.gpus, _GPUS, GPUS),
    )
    problems = [number for number in numbers if isinstance(number, Problem)]
    memory_units, percent, gpus = numbers
    if problems or not (isinstance(memory_units, int) and isinstance(gpus, int)) or isinstance(percent, Problem):
        raise InvalidInput("mpsd run", problems)
    asked = GpuRequest(memory_units, percent, gpus, _MEMORY, _PERCENT)
    if found := problems_with_asked(asked, policy, facts):
        raise InvalidInput("mpsd run", found)
    return Request(each_mib(asked, policy), each_percent(asked), gpus)


LONGEST_WAIT_S = 7 * DAY_S


class AgentApi:
    """Everything that is answered on the Unix socket, and of it what other ports answer too."""

    def __init__(self, sources: AgentSources, metrics: MetricsApi, page: PageApi) -> None:
        self._sources = sources
        self._agent = sources.agent
        self._metrics = metrics
        self._page = page
        self._server = Listener(
            {
                "GET /healthz": self._health,
                "GET /readyz": self._readiness,
                "GET /v1/node": self._node,
                "POST /v1/grants": self._grant,
                **ContainersApi(sources).routes,
                **GrantSetApi(sources).routes,
                **UseApi(sources).routes,
                **metrics.routes,
                **page.routes,
            },
            # Any user of this machine may ask for a grant, as any may use its GPUs.
            UnixPath(sources.settings.socket, 0o666),
            # Whoever hangs up waits in no queue any more.
            ListenerSettings(last_requests_s=2, cancels=True),
        )

    async def start(self) -> None:
        """AlreadyServed where another agent answers."""
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()

    @property
    def readers_routes(self) -> Mapping[str, Handler]:
        """What is told on the ports for readers too: it only looks, and gives nothing away that grants anything."""
        return {"GET /v1/node": self._node_for_readers, **self._metrics.routes, **self._page.routes}

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readiness(self, _request: web.Request) -> web.Response:
        """200 once any domain takes programs."""
        domains = self._agent.look().domains
        if any(domain.state in SERVING for domain in domains):
            return web.Response(text="ok\n")
        said = ", ".join(f"{domain.name} is {after_is(domain.state)}" for domain in domains) or "no domains yet"
        return web.Response(text=f"{said}\n", status=503)

    async def _node(self, _request: web.Request) -> web.Response:
        return json_answer(self._status())

    async def _node_for_readers(self, _request: web.Request) -> web.Response:
        """Of pods others read than who is on the machine, where everybody sees what programs were started with."""
        are_pods = self._sources.ledger is None
        return json_answer(without_arguments(self._status()) if are_pods else self._status())

    def _status(self) -> NodeStatus:
        told = node_status(self._agent.look(), self._sources.policy, self._agent.watchdog.status(), mpsd.__version__)
        return replace(told, limits_directory=str(self._sources.limits.folder.absolute()))

    async def _grant(self, request: web.Request) -> web.Response:
        """201 with the grant; 400 for a request that cannot be read or served; 409 when there is no room."""
        if self._sources.ledger is None:
            return json_answer(Refusal(("kubelet gives this node's GPUs to pods; write a pod",), True), status=400)
        try:
            asks = msgspec.json.decode(await request.read(), type=ProgramRequest)
            wanted = read_program_request(asks, self._sources.policy, self._sources.facts)
        except msgspec.MsgspecError as error:
            return json_answer(Refusal((f"the request is not understood: {error}",), True), status=400)
        except InvalidInput as error:
            return json_answer(Refusal(tuple(map(str, error.problems)), True), status=400)
        holder = processes.identity_of(peer_pid(request) or 0)
        if holder is None:
            reason = "the kernel does not say which process asks; run mpsd in the same pid namespace"
            return json_answer(Refusal((reason,), True), status=400)
        deadline = time.time() + min(asks.wait_s, LONGEST_WAIT_S) if asks.wait_s > 0 else None
        waiting = WaitingRequest(uuid.uuid4().hex[:12], wanted, holder, True, asks.command[:200], deadline)
        answer = await self._agent.queue.wait(waiting)
        if isinstance(answer, Refuse):
            return json_answer(Refusal((answer.reason,), answer.for_ever), status=400 if answer.for_ever else 409)
        return json_answer(self._answer(answer.grant), status=201)

    def _answer(self, grant: Grant) -> GrantAnswer:
        pipe_directory: Path = self._sources.settings.domain(grant.domain).client
        variables = environment(ClientLimit(grant.memory_mib, grant.thread_percent), str(pipe_directory))
        variables |= {VISIBLE_DEVICES: ",".join(grant.gpus), GRANT: grant.id}
        return GrantAnswer(grant.id, variables | self._sources.node.extra, self._sources.node.path_first)
