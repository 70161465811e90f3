"""Ends that somebody asks for, as `mps.ends` has it. What has begun goes on, whoever hangs up."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import msgspec
from aiohttp import web

from mpsd.agent.sources import AgentSources, Refused, known_asker, read
from mpsd.grants.kept import ContainerGrant, ProgramGrant
from mpsd.grants.ledger import LocalGrants
from mpsd.grants.rules.messages import (
    ClientsEnded,
    HostContainerName,
    HostContainerSignal,
    ProgramStopped,
    ProgramsToStop,
    StopOutcome,
)
from mpsd.model.grants import Grant
from mpsd.model.identity import ProcessIdentity
from mpsd.model.node_view import Client, Queue
from mpsd.mps.ends import ClientEnd, EndAsked, NotEnded
from mpsd.mps.rules.ends import MOST_STOPS, together
from mpsd.platform import containers, processes
from mpsd.platform.containers import ContainerProcesses
from mpsd.platform.event_loop import until
from mpsd.platform.listener import Handler, json_answer, peer
from mpsd.platform.logs import logger
from mpsd.watchdog.scanner import Scan

_REASON = "mpsd stop"
_LONGEST_GRACE_S = 3600.0
_BESIDE_DRAIN_S = 0.5  # beyond the drain, for which a container's signal waits
_FIRST_S = 0.2  # for a container's first process to end with its clients, if it does
_DYING_S = 2.0  # for one that is killed: a machine that is overloaded takes its time
_ROUNDS = 8  # of a program that starts others while it is ended
_ROUND_S = 0.5  # for those that were killed, and their memory
_RELEASED_S = 2.0  # for the grant of a program that is over
_LOOK_S = 0.05
_MOST_NAMED = 5  # pids in a sentence


class NotStopped(Exception):
    """Nothing is done, or nothing more; the message says why, and what to do."""


class GrantEnds:
    def __init__(self, sources: AgentSources) -> None:
        self._sources = sources
        self._watchdog = sources.agent.watchdog
        self._log = logger(role="ends")

    @property
    def drain_s(self) -> float:
        """For how long a client's queue may run."""
        return self._sources.policy.graces.end_drain_s

    def clients_of(self, grant: Grant) -> list[Client]:
        """NotStopped where NVML does not say."""
        scan = self._watchdog.scan()
        _check_seen(scan, grant.gpus)
        return [client for client in scan.clients if client.grant == grant.id]

    def clients_in(self, first: ProcessIdentity) -> list[Client]:
        """Of a pod's container with this first process. NotStopped where not known."""
        scan = self._watchdog.scan()
        grant = self._watchdog.grant_around(first.pid)
        _check_seen(scan, grant.gpus if grant else scan.unseen)
        of_pods = [client for client in scan.clients if client.pod]
        if not of_pods:
            return []
        inside = ContainerProcesses(lambda: None)
        inside.put("it", first, containers.own_cgroups(first))
        return [client for client in of_pods if inside.owner_of(client.pid)]

    def begin(self, clients: Iterable[Client], reason: str) -> list[ClientEnd]:
        """All are stopped before the first is waited for: they may wait for each other."""
        begun = []
        for client in {client.process: client for client in clients}.values():
            try:
                begun.append(self._watchdog.ends.begin(EndAsked(client, reason, self.drain_s)))
            except NotEnded as error:
                self._log.info("client not ended", pid=client.pid, reason=str(error))
        return begun

    async def until_killed(self, begun: Collection[ClientEnd], within_s: float) -> int:
        """How many were killed, or ended by themselves; the other ends go on."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await asyncio.gather(*(one.killed() for one in begun), return_exceptions=True)
        late = self._watchdog.ends.under_way
        return len([one for one in begun if one.record.process not in late])


def _check_seen(scan: Scan, gpus: Iterable[str]) -> None:
    """NotStopped where it is not known who uses one of these GPUs."""
    for gpu in gpus:
        if why := scan.unseen.get(gpu):
            what = f"it is not known which processes use its GPU: {why}"
            raise NotStopped(f"{what}; see `mpsd doctor`, and try again")


class RequestedEndsApi:
    """For `mpsd-runtime` and `mpsd stop`."""

    def __init__(self, sources: AgentSources) -> None:
        self._ledger = sources.ledger
        self._ends = GrantEnds(sources)
        self._stops: set[asyncio.Future[list[ProgramStopped]]] = set()  # lest they be collected
        self._log = logger(role="ends")

    @property
    def routes(self) -> Mapping[str, Handler]:
        return {
            "POST /v1/containers/end": self._before_signal,
            "POST /v1/programs/stop": self._stop,
        }

    # -- a container's signal

    async def _before_signal(self, request: web.Request) -> web.Response:
        """200 with how many clients have ended; 400, 403; 404: no grant; 409: its clients are not
        known."""
        try:
            who = "only root and mpsd's own user may end a container's programs"
            known_asker(request, who, for_ever=True)
            wanted = await read(request, HostContainerSignal)
            first, clients = self._container(wanted)
        except Refused as error:
            return error.answer
        except NotStopped as unknown:
            return Refused(409, str(unknown)).answer
        begun = self._ends.begin(
            _at_risk(wanted, first, clients), f"its container gets signal {wanted.signum}"
        )
        ended = await self._ends.until_killed(begun, self._ends.drain_s + _BESIDE_DRAIN_S)
        if ended:
            is_killed = first in {one.record.process for one in begun}
            first_s = _DYING_S if is_killed or processes.is_ending(first) else _FIRST_S
            await _until(lambda: not processes.is_alive(first), first_s)
        return json_answer(ClientsEnded(ended, is_over=ended > 0 and not processes.is_alive(first)))

    def _container(self, wanted: HostContainerSignal) -> tuple[ProcessIdentity, list[Client]]:
        """Refused, NotStopped."""
        if not 1 <= wanted.signum <= signal.SIGRTMAX:
            why = f"signum is {wanted.signum}; write 1 to {signal.SIGRTMAX:d}"
            raise Refused(400, why, for_ever=True)
        if self._ledger is None:  # beside a kubelet pods hold the grants
            first = ProcessIdentity(wanted.pid, wanted.start_ticks, processes.boot_id())
            return first, self._ends.clients_in(first)
        found = self._ledger.of_container(HostContainerName(wanted.root, wanted.id))
        if found is None:
            raise Refused(404, f"container {wanted.id} holds no grant", for_ever=True)
        return found[0].holder.process, self._ends.clients_of(found[0])

    # -- programs

    async def _stop(self, request: web.Request) -> web.Response:
        """200 with what became of each, in the order asked; 400; 409 beside a kubelet."""
        asker = peer(request)
        try:
            wanted = await read(request, ProgramsToStop)
            if self._ledger is None:
                remedy = "delete the pod, with `kubectl delete pod`"
                raise Refused(409, f"kubelet runs what holds grants here; {remedy}")
            if not 0 <= wanted.grace_s <= _LONGEST_GRACE_S:
                why = f"grace_s is {wanted.grace_s:g}; write 0 to {_LONGEST_GRACE_S:g}"
                raise Refused(400, why, for_ever=True)
        except Refused as error:
            return error.answer
        uid = asker.uid if asker else None
        grants = dict.fromkeys(wanted.grants)
        stops = [self._stop_one(grant, wanted.grace_s, uid, self._ledger) for grant in grants]
        task = asyncio.ensure_future(asyncio.gather(*stops))
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)
        return json_answer(await asyncio.shield(task))

    async def _stop_one(
        self, grant_id: str, grace_s: float, uid: int | None, ledger: LocalGrants
    ) -> ProgramStopped:
        """uid: of who asks; None where the kernel does not say."""
        began = time.monotonic()
        seen = set[ProcessIdentity]()
        clients: dict[ProcessIdentity, ClientEnd | None] = {}
        outcome = StopOutcome.REFUSED
        reasons = tuple[str, ...]()
        try:
            grant = _grant_to_stop(grant_id, ledger)
            program = ProgramEnd(grant, ledger, self._ends, seen, clients)
            program.check(uid)
            outcome = StopOutcome.LEFT
            outcome = await program.end(grace_s)
        except NotStopped as error:
            reasons = (str(error),)
        took_s = round(time.monotonic() - began, 3)
        queue = together(end.queue if end else Queue.UNKNOWN for end in clients.values())
        stopped = ProgramStopped(grant_id, outcome, len(seen), took_s, queue, reasons)
        self._log.info("stop of a program", **msgspec.to_builtins(stopped), uid=uid)
        return stopped


def _at_risk(
    wanted: HostContainerSignal, first: ProcessIdentity, clients: Iterable[Client]
) -> list[Client]:
    """Those that would die of the signal, or of what the first process makes of it, but in a paused
    container."""
    signum = wanted.signum
    reaches_all = wanted.to_all or signum == signal.SIGKILL
    if not (reaches_all or processes.handles(first, signum) or processes.dies_of(first, signum)):
        return []
    found = []
    for client in clients:
        dies = client.on_mps and processes.dies_of(client.process, signum)
        if dies and not containers.is_frozen(client.pid):
            found.append(client)
    return found


def _grant_to_stop(grant_id: str, ledger: LocalGrants) -> ProgramGrant:
    """NotStopped where no program holds it."""
    grant = next((held.grant for held in ledger.view.held if held.grant.id == grant_id), None)
    if isinstance(grant, ContainerGrant):
        name = grant.holder.name or grant.holder.id[:12]
        raise NotStopped(
            f"{grant.holder} holds it; stop that by its engine, such as with `docker stop {name}`"
        )
    if not isinstance(grant, ProgramGrant):
        raise NotStopped("no program holds it, or it has ended; see `mpsd status`")
    return grant


@dataclass(slots=True)
class ProgramEnd:
    grant: ProgramGrant
    ledger: LocalGrants
    ends: GrantEnds
    #: every process of it that was seen is added to these
    seen: set[ProcessIdentity]
    #: so is every client of MPS, with its end where one was begun
    clients: dict[ProcessIdentity, ClientEnd | None]

    def check(self, uid: int | None) -> None:
        """NotStopped but for root, mpsd's own user, and who runs all of its processes."""
        users = {processes.user_of(one.pid) for one in self._left()} - {uid, None}
        if users and uid not in {0, os.geteuid()}:
            raise NotStopped("it is another user's program; ask that user, or run this as root")

    async def end(self, grace_s: float) -> StopOutcome:
        """grace_s: as of ProgramsToStop. NotStopped where not all of it could be ended."""
        has_killed = grace_s > 0 and await self._terminate(grace_s)
        for _round in range(_ROUNDS):
            if not self._left():
                break
            has_killed = True
            await self._kill()
        if left := self._left():
            pids = ", ".join(
                [str(one) for one in sorted(left, key=lambda one: one.pid)][:_MOST_NAMED]
            )
            raise NotStopped(
                f"{len(left)} of its processes are left ({pids}); see mpsd's log, and stop it again"
            )
        await _until(self._is_released, _RELEASED_S)
        return StopOutcome.KILLED if has_killed else StopOutcome.TERMINATED

    async def _terminate(self, grace_s: float) -> bool:
        """Whether clients were killed that would die of SIGTERM while a kernel runs; those that
        handle it end by themselves."""
        clients = self.ends.clients_of(self.grant)
        begun = self._begin(
            [one for one in clients if processes.dies_of(one.process, signal.SIGTERM)]
        )
        handling = [one for one in self._left() if processes.handles(one, signal.SIGTERM)]
        if _send(handling, signal.SIGTERM):
            await _until(lambda: not self._left(), grace_s)
        return bool(begun)

    async def _kill(self) -> None:
        """Its clients, then all others, with those that they have started."""
        begun = self._begin(self.ends.clients_of(self.grant))
        await self.ends.until_killed(begun, self.ends.drain_s * MOST_STOPS + _BESIDE_DRAIN_S)
        # those of the next round
        new_clients = {client.process for client in self.ends.clients_of(self.grant)}
        _send(self._left() - new_clients, signal.SIGKILL)
        await _until(lambda: not self._left(), _ROUND_S)

    def _begin(self, clients: Iterable[Client]) -> list[ClientEnd]:
        begun = self.ends.begin(clients, _REASON)
        self.clients |= {one.record.process: one for one in begun}
        return begun

    def _left(self) -> set[ProcessIdentity]:
        clients = self.ends.clients_of(self.grant)
        left = {client.process for client in clients} | self.ledger.processes_of(self.grant)
        self.seen |= left
        for client in clients:
            if client.on_mps:
                self.clients.setdefault(client.process)
        return left

    def _is_released(self) -> bool:
        return all(held.grant.id != self.grant.id for held in self.ledger.view.held)


def _send(to: Iterable[ProcessIdentity], signum: signal.Signals) -> int:
    """How many got it."""
    count = 0
    for process in to:
        with contextlib.suppress(PermissionError):  # another user's, where mpsd is not root
            if processes.send_signal(process, signum):
                count += 1
    return count


async def _until(condition: Callable[[], bool], most_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        await until(condition, most_s, "it is over", _LOOK_S)
