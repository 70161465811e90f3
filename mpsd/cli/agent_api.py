"""The agent's interface on its Unix socket. A grant goes to the process that asked, whose pid the
kernel tells."""

import os
import uuid
from collections.abc import Mapping

from aiohttp import web
from msgspec.structs import replace

import mpsd
from mpsd.agent.rules.decide import Refuse
from mpsd.agent.sources import PODS_ONLY, AgentSources, Refused, asking, read, tenant_of
from mpsd.containers.api import ContainersApi, GrantSetApi
from mpsd.containers.requested_ends import RequestedEndsApi
from mpsd.grants.rules.messages import GrantAnswer, ProgramRequest
from mpsd.model.client_limits import ClientLimit, environment
from mpsd.model.cuda_limit_parser import CUDA_VISIBLE_DEVICES
from mpsd.model.domain import SERVING, after_is
from mpsd.model.events import Reason
from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.grants import Request
from mpsd.model.node_report import NodeReport
from mpsd.model.node_view import WaitingRequest
from mpsd.model.policy import Policy
from mpsd.model.problem import InvalidInput, Problem
from mpsd.model.quantity import QuantityUnit, memory_unit, whole_units
from mpsd.model.redaction import without_arguments
from mpsd.model.request import (
    GPUS,
    PERCENT,
    GpuRequest,
    problems_with_asked,
)
from mpsd.model.times import DAY_S
from mpsd.platform import clock
from mpsd.platform.listener import (
    Handler,
    Listener,
    ListenerSettings,
    UnixPath,
    health_routes,
    json_answer,
)
from mpsd.platform.settings import GRANT
from mpsd.status.node_api import MetricsApi, UseApi
from mpsd.status.page.server import PageApi
from mpsd.status.rules.node_report import node_report

LONGEST_WAIT_S = 7 * DAY_S
_MOST_ENDS = 10  # of control daemons, in a status
_NO_CGROUP = (
    "no cgroup could be created for it (see mpsd's log), so it holds its grant by MPSD_GRANT alone:"
    " a process that detaches without this variable is reported, and not limited"
)
_MEMORY = "--gpu-mem"
_PERCENT = "--gpu-core"
_GPUS = "--gpus"


def read_program_request(asks: ProgramRequest, policy: Policy, facts: GpuFacts) -> Request:
    """What `mpsd run` asks for, read as in a pod, divided evenly over several GPUs. InvalidInput
    with every problem."""
    problems: list[Problem] = []

    def whole(text: str, option: str, unit: QuantityUnit) -> int:
        number = whole_units(text, option, unit)
        if isinstance(number, int):
            return number
        problems.append(number)
        return 0

    memory_units = whole(asks.gpu_mem, _MEMORY, memory_unit(policy.resources.memory_unit_mib))
    percent = None
    if asks.gpu_core is not None:
        percent = whole(asks.gpu_core, _PERCENT, PERCENT)
    gpus = whole(asks.gpus, _GPUS, GPUS)
    asked = GpuRequest(memory_units, percent, gpus, _MEMORY, _PERCENT)
    if found := problems or [*problems_with_asked(asked, policy, facts)]:
        raise InvalidInput("mpsd run", found)
    return Request(asked.each_mib(policy.resources), asked.each_percent, gpus)


class AgentApi:
    """What is answered on the Unix socket, and of it on other ports."""

    def __init__(self, sources: AgentSources, metrics: MetricsApi, page: PageApi) -> None:
        self._sources = sources
        self._agent = sources.agent
        self._metrics = metrics
        self._page = page
        self.server = Listener(
            {
                **health_routes(self._trouble),
                "GET /v1/node": self._node,
                "POST /v1/grants": self._grant,
                **ContainersApi(sources).routes,
                **GrantSetApi(sources).routes,
                **RequestedEndsApi(sources).routes,
                **UseApi(sources).routes,
                **metrics.routes,
                **page.routes,
            },
            # Any user may ask for a grant, as any may use the GPUs.
            UnixPath(sources.settings.socket, 0o666),
            ListenerSettings(last_requests_s=2, cancels=True),
        )

    @property
    def readers_routes(self) -> Mapping[str, Handler]:
        """For the ports for readers too: it only looks."""
        return {"GET /v1/node": self._node_for_readers, **self._metrics.routes, **self._page.routes}

    def _trouble(self) -> str:
        domains = self._agent.look().domains
        if any(domain.state in SERVING for domain in domains):
            return ""
        states = [f"{domain.name} is {after_is(domain.state)}" for domain in domains]
        return ", ".join(states) or "no domains yet"

    async def _node(self, _request: web.Request) -> web.Response:
        return json_answer(self._report())

    async def _node_for_readers(self, _request: web.Request) -> web.Response:
        """Without arguments of commands where pods are: only their machine's users see them."""
        report = self._report()
        if self._sources.ledger is None:
            report = without_arguments(report)
        return json_answer(report)

    def _report(self) -> NodeReport:
        view = self._agent.look()
        violations = self._agent.watchdog.violations()
        report = node_report(view, self._sources.policy, violations, mpsd.__version__)
        unknown = (*report.unknown, *filter(None, [self._sources.unheard()]))
        own = [one for one in self._agent.events.all() if not one.where]  # those of pods repeat it
        ends = tuple(one for one in own if one.what == Reason.DAEMON_DOWN)[-_MOST_ENDS:]
        folder = str(self._sources.limits.folder.absolute())
        driver, trouble = self._sources.claims()
        report = replace(report, claim_driver=driver, claims_trouble=trouble)
        return replace(report, unknown=unknown, limits_directory=folder, daemon_ends=ends)

    async def _grant(self, request: web.Request) -> web.Response:
        """201 with the grant; 400 where it can never be served; 409 without room; 410 while mpsd
        stops; 429 where its user has a request that waits."""
        try:
            return await self._granted(request)
        except InvalidInput as error:
            return Refused(400, *map(str, error.problems), for_ever=True).answer
        except Refused as error:
            return error.answer

    async def _granted(self, request: web.Request) -> web.Response:
        sources = self._sources
        if sources.ledger is None:
            raise Refused(400, PODS_ONLY, for_ever=True)
        if sources.stopping():
            why = "mpsd is stopping, and grants nothing more until it is started again"
            raise Refused(410, f"{why}, as with `mpsd up`", for_ever=False)
        asks = await read(request, ProgramRequest)
        wanted = read_program_request(asks, sources.policy, sources.facts)
        holder = asking(request)
        now_s = clock.boot_s()
        deadline_s = None
        if asks.wait_s > 0:
            deadline_s = now_s + min(asks.wait_s, LONGEST_WAIT_S)
        waiting_id = uuid.uuid4().hex[:12]
        command = asks.command[:200]
        tenant = tenant_of(request)
        waiting = WaitingRequest(
            waiting_id, wanted, holder, True, command, deadline_s, now_s, tenant
        )
        answer = await self._agent.granted(waiting)
        if isinstance(answer, Refuse):
            status = 409
            if answer.is_second:
                status = 429
            if answer.for_ever:
                status = 400
            raise Refused(status, answer.reason, for_ever=answer.for_ever)
        grant = answer.grant
        pipe_directory = str(sources.settings.domain(grant.domain).client)
        limit = ClientLimit(grant.memory_mib, grant.thread_percent)
        variables = environment(limit, pipe_directory)
        variables |= {CUDA_VISIBLE_DEVICES: ",".join(grant.gpus), GRANT: grant.id}
        messages = []
        # A user's own mpsd may create none.
        if os.geteuid() == 0 and not sources.ledger.has_cgroup(grant.id):
            messages.append(_NO_CGROUP)
        node = sources.node
        found = GrantAnswer(grant.id, variables | node.extra, node.path_first, tuple(messages))
        return json_answer(found, status=201)
