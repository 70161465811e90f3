"""What `mpsd-runtime` asks the agent about containers (`grants.rules.container_messages`): a grant before one is made, its end,
and the variables of one that runs.

One rule: nothing is reserved before everything can be had, and what is reserved is held by the caller's life until the
container's first process is there; so nobody has to give anything back by hand, whatever is killed.
"""

import asyncio
import uuid
from collections.abc import Mapping
from weakref import WeakValueDictionary

from aiohttp import web

from mpsd.agent.agent_sources import AgentSources
from mpsd.agent.privileged_questions import No, known_asker, read
from mpsd.agent.rules.decide import Refuse, had_room
from mpsd.containers.dialects.dialect import read_dialect
from mpsd.containers.dialects.dialect_grant import cards_request, messages
from mpsd.containers.dialects.dialect_request import DialectRequest, Off, Refused
from mpsd.containers.rules.container_answer import container_answer
from mpsd.containers.rules.container_rules import container_findings
from mpsd.grants.kept_grants import ContainerGrant
from mpsd.grants.local_grants import LocalGrants
from mpsd.grants.rules.container_messages import ContainerAsks, ContainerName, ExecAnswer
from mpsd.grants.rules.grant_messages import Refusal
from mpsd.kubelet.rules.device_answer import DeviceListStrategy, Surroundings
from mpsd.model.grants import CardsRequest, Grant
from mpsd.model.identity import HostContainer, ProcessIdentity
from mpsd.model.node_view import Waiting
from mpsd.platform import processes
from mpsd.platform.listener import Handler, json_answer
from mpsd.platform.logs import logger
from mpsd.platform.waiting import until

_GONE_S = 1.0  # for NVML to let go of a container's processes, which took 0.04 to 0.07 s
_LOOK_AGAIN_S = 0.02


class ContainersApi:
    """Beside a kubelet it refuses: no container of anybody else's gets a grant there."""

    def __init__(self, sources: AgentSources) -> None:
        self._sources = sources
        self._settings = sources.settings
        self._agent = sources.agent
        self._node = sources.node
        self._books = sources.books
        self._turns: WeakValueDictionary[ContainerName, asyncio.Lock] = WeakValueDictionary()
        self._log = logger(role="containers")
        self._around = Surroundings(
            str(self._settings.run_directory),
            DeviceListStrategy.ENVVAR,
            self._node.extra,
            self._node.shared,
            self._node.device_lists,
        )

    @property
    def routes(self) -> Mapping[str, Handler]:
        return {
            "POST /v1/containers": self._create,
            "POST /v1/containers/over": self._over,
            "POST /v1/containers/environment": self._environment,
        }

    # -- before a container is made --------------------------------------------------------------------------------

    async def _create(self, request: web.Request) -> web.Response:
        """201 with what goes into the bundle; 204 where nothing is asked; 400, 403 and 409 where it is not to be."""
        try:
            caller = self._caller(request)
            asks = await read(request, ContainerAsks)
        except No as no:
            return no.answer
        try:
            return await self._grant(asks, caller)
        except No as no:
            self._log.info("container refused", container=asks.id, reason=str(no), reserved="nothing")
            return no.answer

    async def _grant(self, asks: ContainerAsks, caller: ProcessIdentity) -> web.Response:
        policy = self._sources.policy
        reading = read_dialect(asks.environment, self._node.gpus, policy.compute)
        if isinstance(reading, Off):
            return web.Response(status=204)
        if self._books is None:
            raise No(400, "kubelet gives this node's GPUs to pods; write a pod", for_ever=True)
        found = container_findings(asks, policy, self._node.nvml.driver())
        problems = (*found.problems, *(reading.problems if isinstance(reading, Refused) else ()))
        if problems or isinstance(reading, Refused):
            raise No(400, *map(str, problems), for_ever=True)
        name = ContainerName(asks.root, asks.id)
        async with self._turns.setdefault(name, asyncio.Lock()):
            held = self._held_by(name, caller, self._books)
            grant = held or await self._ask(asks, reading, caller, self._books)
        said = (*found.messages, *messages(reading))
        with_gate = self._settings.domain(grant.domain).gate.exists()
        return json_answer(container_answer(grant, self._around, said, with_gate=with_gate), status=201)

    def _held_by(self, name: ContainerName, caller: ProcessIdentity, books: LocalGrants) -> ContainerGrant | None:
        """What the caller was granted when it asked before and did not hear the answer. What the container held when it
        was made before, and is over, ends now. No where it is not over."""
        found = books.of_container(name)
        if found is None:
            return None
        grant, lives = found
        if lives and grant.holder.process == caller:
            return grant
        left = "" if lives else self._left_of(grant)
        if lives or left:
            why = f"{grant.holder.process} of it lives" if lives else left
            raise No(409, f"{grant.holder} holds grant {grant.id} already, and {why}; delete it first", for_ever=False)
        books.end(grant)
        return None

    def _left_of(self, grant: Grant) -> str:
        """The processes that still use a GPU under a grant, in words; empty where there is none."""
        sight = self._agent.watchdog.look()
        left = [f"pid {client.pid}" for client in sight.clients if client.grant == grant.id]
        if left:
            return f"{', '.join(left)} of it uses a GPU"
        return f"nobody can say whether it uses a GPU: {'; '.join(sight.unknown)}" if sight.unknown else ""

    async def _ask(
        self, asks: ContainerAsks, reading: DialectRequest, caller: ProcessIdentity, books: LocalGrants
    ) -> Grant:
        holder = HostContainer(asks.root, asks.id, asks.name, caller, is_made=False)
        wanted = cards_request(reading)
        waiting = Waiting(uuid.uuid4().hex[:12], wanted, holder, True, str(holder), None)
        books.expect(waiting.id, asks)
        try:
            answer = await self._agent.waiting.wait(waiting)
        finally:
            books.forget(waiting.id)
        if isinstance(answer, Refuse):
            self._say_given_back(asks, wanted)
            raise No(400 if answer.for_ever else 409, answer.reason, for_ever=answer.for_ever)
        return answer.grant

    def _say_given_back(self, asks: ContainerAsks, wanted: CardsRequest) -> None:
        """All cards or none: what could be had of some is not kept."""
        there = had_room(wanted, self._agent.look(), self._sources.policy)
        self._log.info("given back", container=asks.id, gpus=there, reason="another GPU cannot give what is asked")

    # -- afterwards ------------------------------------------------------------------------------------------------

    async def _over(self, request: web.Request) -> web.Response:
        """200 whether or not it was known, once its grant is given back or somebody else sees to that."""
        try:
            caller = self._caller(request)
            name = await read(request, ContainerName)
        except No as no:
            return no.answer
        books = self._books
        found = books.of_container(name) if books else None
        if books and found and (not found[1] or books.unmakes(found[0], caller.pid)):
            try:
                await until(lambda: not self._left_of(found[0]), _GONE_S, "its processes are gone", _LOOK_AGAIN_S)
            except TimeoutError:
                pass  # the agent ends the grant with the last of them
            else:
                if found[0].id in books.pods():
                    books.release(found[0])
        return json_answer({})

    async def _environment(self, request: web.Request) -> web.Response:
        """200 with the variables that hold now; 404 where the container holds no grant."""
        try:
            self._caller(request)
            name = await read(request, ContainerName)
        except No as no:
            return no.answer
        found = self._books.of_container(name) if self._books else None
        if found is None:
            return json_answer(Refusal((f"container {name.id} holds no grant",), True), status=404)
        given = container_answer(found[0], self._around, with_gate=False)
        return json_answer(ExecAnswer(given.environment))

    # --------------------------------------------------------------------------------------------------------------

    def _caller(self, request: web.Request) -> ProcessIdentity:
        """The process that asks, by the kernel's word. No."""
        found = known_asker(request, "containers are root's and mpsd's own; ask as root", for_ever=True)
        caller = processes.identity_of(found.pid) if found.pid else None
        if caller is None:
            reason = "the kernel does not say which process asks; run mpsd in the same pid namespace"
            raise No(400, reason, for_ever=True)
        return caller
