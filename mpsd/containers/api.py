"""The agent's routes for containers (`grants.rules.messages`). A grant is reserved whole or not,
and lives as long as the caller until the container's first process is there."""

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import replace
from weakref import WeakValueDictionary

from aiohttp import web

from mpsd.agent.rules.decide import Refuse, had_room
from mpsd.agent.sources import PODS_ONLY, AgentSources, Refused, asking, known_asker, read
from mpsd.containers.dialects.parsing import read_dialect
from mpsd.containers.dialects.request import (
    DialectRequest,
    InvalidDialect,
    Off,
    cards_request,
    messages,
)
from mpsd.containers.rules.admission import container_answer, container_findings
from mpsd.containers.rules.grant_change import changed, is_misuse, report
from mpsd.grants.kept import ContainerGrant, KeptGrant
from mpsd.grants.ledger import LocalGrants
from mpsd.grants.rules.messages import (
    ExecAnswer,
    GrantChanged,
    GrantChangeRequest,
    HostContainerName,
    HostContainerRequest,
    Refusal,
    join_s,
)
from mpsd.kubelet.rules.allocation import DeviceListStrategy, NodeConditions
from mpsd.model.grants import Grant
from mpsd.model.identity import HostContainer, ProcessIdentity
from mpsd.model.node_view import WaitingRequest
from mpsd.platform import clock
from mpsd.platform.event_loop import until
from mpsd.platform.listener import Handler, json_answer
from mpsd.platform.logs import logger

_GONE_S = 1.0  # for NVML to let go of a container's processes, which took 0.04 to 0.07 s
_GONE_LOOK_S = 0.02


class ContainersApi:
    def __init__(self, sources: AgentSources) -> None:
        self._sources = sources
        self._settings = sources.settings
        self._node = sources.node
        self._agent = sources.agent
        self._ledger = sources.ledger
        self._locks: WeakValueDictionary[HostContainerName, asyncio.Lock] = WeakValueDictionary()
        self._log = logger(role="containers")
        node = self._node
        directory = str(self._settings.run_directory)
        self._around = NodeConditions(
            directory, DeviceListStrategy.ENVVAR, node.extra, node.shared, node.device_lists
        )

    @property
    def routes(self) -> Mapping[str, Handler]:
        return {
            "POST /v1/containers": self._create,
            "POST /v1/containers/over": self._over,
            "POST /v1/containers/environment": self._environment,
        }

    async def _create(self, request: web.Request) -> web.Response:
        """201 with what goes into the bundle; 204: nothing requested; 400, 403, 409: refused."""
        wanted = None
        try:
            caller = self._caller(request)
            wanted = await read(request, HostContainerRequest)
            return await self._grant(wanted, caller)
        except Refused as error:
            if wanted:
                self._log.info(
                    "container refused", container=wanted.id, reason=str(error), reserved="nothing"
                )
            return error.answer

    async def _grant(self, wanted: HostContainerRequest, caller: ProcessIdentity) -> web.Response:
        policy = self._sources.policy
        reading = read_dialect(wanted.environment, self._node.gpus, policy.compute)
        if isinstance(reading, Off):
            return web.Response(status=204)
        if self._ledger is None:
            raise Refused(400, PODS_ONLY, for_ever=True)
        found = container_findings(wanted, policy, self._node.nvml.driver())
        if isinstance(reading, InvalidDialect):
            raise Refused(400, *map(str, found.problems + reading.problems), for_ever=True)
        if found.problems:
            raise Refused(400, *map(str, found.problems), for_ever=True)
        name = HostContainerName(wanted.root, wanted.id)
        async with self._locks.setdefault(name, asyncio.Lock()):
            held = self._held_by(name, caller, self._ledger)
            grant = held or await self._reserve(wanted, reading, caller, self._ledger)
            if held and (
                why := await self._agent.until_allowed(
                    held.domain, held.memory_mib, join_s(len(held.gpus))
                )
            ):
                # its GPUs may be joined just now
                raise Refused(409, f"{held.holder} waits: {why}")
        said = (*found.messages, *messages(reading))
        with_gate = self._settings.domain(grant.domain).gate.exists()
        return json_answer(
            container_answer(grant, self._around, said, with_gate=with_gate), status=201
        )

    def _held_by(
        self, name: HostContainerName, caller: ProcessIdentity, ledger: LocalGrants
    ) -> ContainerGrant | None:
        """The grant whose answer the caller did not receive; one of the container's earlier life
        ends now."""
        found = ledger.of_container(name)
        if found is None:
            return None
        grant, lives = found
        if lives and grant.holder.process == caller:
            return grant
        why = f"its {grant.holder.process} is running" if lives else self._left_of(grant)
        if why:
            what = f"{grant.holder} already holds grant {grant.id}, and {why}"
            raise Refused(409, f"{what}; delete it first")
        ledger.end(grant)
        return None

    def _left_of(self, grant: Grant) -> str:
        """What still uses a GPU under a grant, or may; empty for nothing."""
        scan = self._agent.watchdog.scan()
        left = [f"pid {client.pid}" for client in scan.clients if client.grant == grant.id]
        if left:
            return f"its {', '.join(left)} uses a GPU"
        for gpu in grant.gpus:
            if why := scan.unseen.get(gpu):
                return f"it is not known whether it uses its GPU: {why}"
        return ""

    async def _reserve(
        self,
        wanted: HostContainerRequest,
        reading: DialectRequest,
        caller: ProcessIdentity,
        ledger: LocalGrants,
    ) -> Grant:
        holder = HostContainer(wanted.root, wanted.id, wanted.name, caller, is_made=False)
        cards = cards_request(reading)
        waiting = WaitingRequest(
            uuid.uuid4().hex[:12], cards, holder, True, str(holder), None, clock.boot_s()
        )
        ledger.expect(waiting.id, wanted)
        try:
            answer = await self._agent.granted(waiting)
        finally:
            ledger.forget(waiting.id)
        if isinstance(answer, Refuse):
            # what some could give is not kept
            there = had_room(cards, self._agent.look(), self._sources.policy)
            reason = "another GPU cannot give what is asked"
            self._log.info("released", container=wanted.id, gpus=there, reason=reason)
            raise Refused(400 if answer.for_ever else 409, answer.reason, for_ever=answer.for_ever)
        return answer.grant

    async def _over(self, request: web.Request) -> web.Response:
        """200, known or not."""
        try:
            caller = self._caller(request)
            name = await read(request, HostContainerName)
        except Refused as error:
            return error.answer
        ledger = self._ledger
        found = ledger.of_container(name) if ledger else None
        if ledger and found and (not found[1] or ledger.is_unmade(found[0], caller.pid)):
            try:
                what = "its processes are gone"
                await until(lambda: not self._left_of(found[0]), _GONE_S, what, _GONE_LOOK_S)
            except TimeoutError:
                pass  # the agent ends the grant with the last of them
            else:
                if found[0].id in ledger.view.by_place:
                    ledger.release(found[0])
        return json_answer({})

    async def _environment(self, request: web.Request) -> web.Response:
        """200 with those that hold now; 404: no grant."""
        try:
            self._caller(request)
            name = await read(request, HostContainerName)
        except Refused as error:
            return error.answer
        found = self._ledger.of_container(name) if self._ledger else None
        if found is None:
            return json_answer(Refusal((f"container {name.id} holds no grant",), True), status=404)
        given = container_answer(found[0], self._around, with_gate=False)
        return json_answer(ExecAnswer(given.environment))

    def _caller(self, request: web.Request) -> ProcessIdentity:
        """By the kernel's word. Refused."""
        who = "only root and mpsd's own user may request shares"
        known_asker(request, who, for_ever=True)
        return asking(request)


# -- another size of memory, percentage or weight for a grant

_TURN_S = 10.0  # for the agent's turn to end, in which a daemon may not answer
_RAISE_S = 10.0  # for the domain's servers to admit a larger client


class GrantSetApi:
    """`mpsd set`. A change is decided and saved between two cycles, so that no room is granted
    twice. More memory is answered once servers admit it, or it is taken back."""

    def __init__(self, sources: AgentSources) -> None:
        self._sources = sources
        self._agent = sources.agent
        self._ledger = sources.ledger
        self._log = logger(role="grants")

    @property
    def routes(self) -> Mapping[str, Handler]:
        return {"POST /v1/grants/{id}": self._set}

    async def _set(self, request: web.Request) -> web.Response:
        """200 with the values before and after; 400: invalid; 403, 404; 409: not now."""
        grant_id = request.match_info["id"]
        try:
            who = "only root and mpsd's own user may change grants; run it as root"
            known_asker(request, who)
            wanted = await read(request, GrantChangeRequest)
            return json_answer(await self._change(grant_id, wanted))
        except Refused as error:
            self._log.info("change refused", grant=grant_id, reason=str(error))
            return error.answer

    async def _change(self, grant_id: str, wanted: GrantChangeRequest) -> GrantChanged:
        if self._ledger is None:
            remedy = "change the pod's request, and recreate it"
            raise Refused(409, f"kubelet assigns this node's GPUs to pods; {remedy}")
        try:
            async with asyncio.timeout(_TURN_S), self._agent.cycle_lock:
                before, after, answer = self._decided(grant_id, wanted)
                if not wanted.dry_run:
                    self._ledger.change(after)
        except TimeoutError:
            why = f"the agent has been busy for {_TURN_S:g} s; nothing was changed; try again"
            raise Refused(409, why) from None
        if wanted.dry_run:
            return answer
        if after.memory_mib > before.memory_mib:
            await self._until_raised(before, after, self._ledger)
        self._log.info(
            "grant changed",
            grant=grant_id,
            holder=str(after.holder),
            memory_mib=[part.memory_mib for part in after.parts],
            reserved_percent=[part.reserved_percent for part in after.parts],
            thread_percent=after.thread_percent,
            forced=wanted.forced,
        )
        return answer

    def _decided(
        self, grant_id: str, wanted: GrantChangeRequest
    ) -> tuple[KeptGrant, KeptGrant, GrantChanged]:
        view = self._agent.look()
        policy = self._sources.policy
        before = next((held.grant for held in view.grants if held.grant.id == grant_id), None)
        if not isinstance(before, KeptGrant):
            raise Refused(404, f"grant {grant_id} does not exist")
        after = changed(before, wanted, view, policy)
        if isinstance(after, tuple):
            misuse = is_misuse(after)
            raise Refused(400 if misuse else 409, *map(str, after), for_ever=misuse)
        return before, after, report(before, after, view, policy, dry_run=wanted.dry_run)

    async def _until_raised(self, before: KeptGrant, after: KeptGrant, ledger: LocalGrants) -> None:
        """Refused where the servers do not admit that much; the memory is then as before."""
        why = await self._agent.until_allowed(after.domain, after.memory_mib, _RAISE_S)
        if not why:
            return
        async with self._agent.cycle_lock:
            now = next((held.grant for held in ledger.view.held if held.grant.id == after.id), None)
            # else it was changed again, or has ended
            if isinstance(now, KeptGrant) and now.parts == after.parts:
                parts = []
                for old, new in zip(before.parts, after.parts, strict=True):
                    least_mib = min(old.memory_mib, new.memory_mib)
                    parts.append(replace(new, memory_mib=least_mib))
                ledger.change(replace(now, parts=tuple(parts)))
        raise Refused(409, f"{why}; its memory is unchanged")
