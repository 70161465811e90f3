"""Binds a pod to a node and to GPUs of it, with a reservation first, so that no scheduler gives
them away twice.

A reservation counts here from the moment a bind comes, and those of all binds to a node that wait
are written at once. An interruption before the binding leaves a reservation, which ends by itself;
one after it leaves a pod whose annotations say which GPUs it has.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from enum import StrEnum
from weakref import WeakValueDictionary

from mpsd.grants.rules.placement import find_gpus
from mpsd.kubelet.rules.gpu_choice import SharedPod, annotations_at_bind
from mpsd.model.grants import GpuName
from mpsd.model.policy import Policy
from mpsd.model.times import stamp
from mpsd.platform import clock
from mpsd.platform.kube import (
    MPS_NODES,
    PODS,
    Conflict,
    Kube,
    KubeError,
    NotFound,
    Object,
    PatchKind,
    Unavailable,
)
from mpsd.platform.logs import logger
from mpsd.scheduler.known_node import KnownNode
from mpsd.scheduler.ledger import ClusterLedger
from mpsd.scheduler.rules.capacity import can_ever, has_domain
from mpsd.scheduler.rules.filter import UNKNOWN_NODE, UnreadablePod, read_asking, why_not
from mpsd.scheduler.rules.reservations import KEY, LONGEST_S, Reservation, written
from mpsd.scheduler.wire import BindArgs

_TRIES = 5  # agents and other schedulers write the same object
_TURN_S = 5.0  # how long a bind waits for others to the same node
# kube-scheduler asks for binds without waiting for the last ones, and gives each up after its
# httpTimeout. So that none waits so long, it gets no further nodes while more are under way than
# the API server answers in a second or two.
_MOST_BINDS = 64
_HELD_S = 2.0


@dataclass(slots=True)
class _Wanted:
    """A bind that needs a reservation. chosen: None where nothing fits any more, as `refusal`
    says."""

    pod: SharedPod
    chosen: "Chosen | None" = None
    refusal: str = ""
    is_reserved: bool = False


@dataclass(frozen=True, slots=True)
class Chosen:
    """dev_mib: what the first may give away in all. since: by the ledger's clock."""

    gpus: tuple[GpuName, ...]
    memory_mib: int
    dev_mib: int
    policy: Policy
    since: float


class BindFailure(StrEnum):
    """Why a pod was not bound. pod: as namespace/name."""

    UNHEARD = "mpsd's scheduler does not know the free capacity: {why}"
    NO_GPUS = f"node {{node}}: {UNKNOWN_NODE}"
    BUSY = "node {node}: other pods are being bound to it; try again"
    GONE = "pod {pod} is gone"
    REPLACED = "pod {pod} is gone; another has its name"
    FINISHED = "pod {pod} has finished"
    ELSEWHERE = "pod {pod} is already bound to node {node}"
    DELETED = "pod {pod} is being deleted"
    CONFLICTS = "node {node}: its MPSNode changes too often to reserve a GPU; try again"
    NO_ROOM = "node {node}: {why}"
    OVERTAKEN = "node {node}: another pod took the capacity: {why}"
    HELD = "node {node}: the GPU that is reserved for the pod has no room for it now; try again"
    TOO_LATE = "node {node}: reserving a GPU took too long; try again"
    UNKNOWN = "pod {pod} may or may not be bound: {why}"


class _NotBound(Exception):
    """The pod was not bound; the message says why."""


class _NotReserved(_NotBound):
    """No GPU was reserved."""


class _BindUnknown(_NotBound):
    """The pod may be bound, or may still be."""


class _AlreadyBound(Exception):
    """The pod is bound to this node already."""


class Binder:
    """Any number of binds may run at once; those of one pod wait for each other. Of those to one
    node, one at a time writes reservations, for all that wait."""

    def __init__(self, kube: Kube, ledger: ClusterLedger) -> None:
        self._kube = kube
        self._ledger = ledger
        self._wanted: dict[str, dict[str, _Wanted]] = {}  # by node, by uid
        self._under_way = 0
        self._fewer = asyncio.Condition()
        # by uid of a pod being bound
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._log = logger(role="scheduler")

    async def bind(self, args: BindArgs) -> str:
        """Empty if the pod is bound there, else why not."""
        self._under_way += 1
        try:
            await self._bind(args)
        except _AlreadyBound:
            return ""
        except _NotBound as error:
            self._log.info("not bound", pod=args.pod, node=args.node, reason=str(error))
            return str(error)
        finally:
            self._under_way -= 1
            async with self._fewer:
                self._fewer.notify_all()
        return ""

    async def few_under_way(self) -> None:
        """Returns once few binds are under way, or soon anyhow."""
        if self._under_way < _MOST_BINDS:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_HELD_S), self._fewer:
                await self._fewer.wait_for(lambda: self._under_way < _MOST_BINDS)

    async def _bind(self, args: BindArgs) -> None:
        if trouble := self._ledger.trouble:
            raise _NotBound(BindFailure.UNHEARD.format(why=trouble))
        known = self._ledger.known(args.node)
        turn = self._turns.setdefault(args.pod_uid, asyncio.Lock())
        with _under_way(known) if known else nullcontext():
            async with self._turn(turn, args.node):
                await self._bind_in_turn(args, known)

    async def _bind_in_turn(self, args: BindArgs, known: KnownNode | None) -> None:
        pod = await self._pod(args)
        if pod is None:  # it requests nothing of mpsd
            await self._post(args, {})
            return
        if known is None:
            raise _NotBound(BindFailure.NO_GPUS.format(node=args.node))
        try:
            chosen = await self._reserve(pod, known)
        except _NotReserved:
            await self._unbound(args)  # it may be bound already, and take the room
            raise
        await self._confirm(args, known, chosen)
        gpus = ",".join(gpu.label for gpu in chosen.gpus)
        self._log.info(
            "bound", pod=args.pod, node=args.node, gpus=gpus, memory_mib=chosen.memory_mib
        )

    @asynccontextmanager
    async def _turn(self, turn: asyncio.Lock, node: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(_TURN_S):
                await turn.acquire()
        except TimeoutError:
            raise _NotReserved(BindFailure.BUSY.format(node=node)) from None
        try:
            yield
        finally:
            turn.release()

    async def _pod(self, args: BindArgs) -> SharedPod | None:
        """None where it requests no GPU."""
        heard = self._ledger.pod(args.pod_namespace, args.pod_name)
        if heard and heard.name.uid == args.pod_uid and not heard.node and not heard.terminating:
            return heard
        try:
            return read_asking(await self._unbound(args), self._ledger.policy)
        except UnreadablePod as error:
            raise _NotBound(str(error)) from None

    async def _unbound(self, args: BindArgs) -> Object:
        """The pod as the server has it now, if it can be bound. Else _NotBound, _BindUnknown or
        _AlreadyBound."""
        try:
            pod = await self._kube.get(PODS, args.pod_name, args.pod_namespace)
        except NotFound:
            raise _NotBound(BindFailure.GONE.format(pod=args.pod)) from None
        except KubeError as error:
            raise _BindUnknown(str(error)) from None
        node = (pod.get("spec") or {}).get("nodeName") or ""
        if pod["metadata"].get("uid") != args.pod_uid:
            raise _NotBound(BindFailure.REPLACED.format(pod=args.pod))
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            raise _NotBound(BindFailure.FINISHED.format(pod=args.pod))
        if node == args.node:
            raise _AlreadyBound
        if node:
            raise _NotBound(BindFailure.ELSEWHERE.format(pod=args.pod, node=node))
        if pod["metadata"].get("deletionTimestamp"):
            raise _NotBound(BindFailure.DELETED.format(pod=args.pod))
        return pod

    async def _reserve(self, pod: SharedPod, known: KnownNode) -> Chosen:
        """Once the server has the reservation. _NotReserved where there can be none."""
        wanted = self._wanted.setdefault(known.name, {})
        uid = pod.name.uid
        wanted[uid] = one = _Wanted(pod)
        try:
            self._choose(one, known)
            async with self._turn(known.turn, known.name) if one.chosen else nullcontext():
                for _try in range(_TRIES):
                    if one.chosen is None:
                        raise _NotReserved(one.refusal)
                    if one.is_reserved:  # perhaps by whoever had the turn before
                        return one.chosen
                    await self._write(known)
            if one.chosen and one.is_reserved:
                return one.chosen
        finally:
            del wanted[uid]
            if not wanted:
                del self._wanted[known.name]
            known.reservations.pending.pop(uid, None)
            self._ledger.reservations_changed(known)
        raise _NotReserved(BindFailure.CONFLICTS.format(node=known.name))

    def _choose(self, one: _Wanted, known: KnownNode) -> None:
        """Chooses GPUs, and counts the reservation at once, before another task runs."""
        one.chosen = None
        try:
            one.chosen = self._chosen(one.pod, known)
        except _NotReserved as error:
            one.refusal = str(error)
            known.reservations.pending.pop(one.pod.name.uid, None)
        self._ledger.reservations_changed(known)

    def _chosen(self, pod: SharedPod, known: KnownNode) -> Chosen:
        request = pod.request
        uid = pod.name.uid
        ledger = self._ledger.without(known, uid)
        earlier = self._ledger.written_for(known, uid)
        if ledger is None:
            raise _NotReserved(BindFailure.NO_GPUS.format(node=known.name))
        only = earlier.gpus if earlier else None
        found = find_gpus(request, ledger.rooms, ledger.policy, only)
        if ledger.shut or found is None:
            failure = BindFailure.NO_ROOM
            if can_ever(request, ledger) and has_domain(request, ledger):
                failure = BindFailure.OVERTAKEN
            if earlier:
                failure = BindFailure.HELD
            if ledger.shut:
                failure = BindFailure.NO_ROOM
            raise _NotReserved(failure.format(node=known.name, why=why_not(request, ledger)))
        rooms = {room.gpu.uuid: room for room in ledger.rooms}
        amounts = request.memory_mib, request.thread_percent or 0
        reservation = Reservation(pod.name, found.gpus, *amounts, stamp(clock.wall_s()))
        known.reservations.pending[uid] = reservation
        gpus = tuple(rooms[uuid].gpu for uuid in found.gpus)
        dev_mib = rooms[found.gpus[0]].memory_mib_total
        return Chosen(gpus, request.memory_mib, dev_mib, ledger.policy, self._ledger.now())

    async def _write(self, known: KnownNode) -> bool:
        """Writes the reservations that count, and those of all binds that wait. False after a
        conflict; the new MPSNode is known then."""
        waiting = [one for one in self._wanted.get(known.name, {}).values() if not one.is_reserved]
        for one in waiting:
            self._choose(one, known)
        if known.reported is None:
            return False
        version = known.reported.version
        text = written(self._ledger.reservations(known))
        patch = {"metadata": {"resourceVersion": version, "annotations": {KEY: text}}}
        try:
            try:
                answer = await self._kube.patch(MPS_NODES, known.name, patch, PatchKind.MERGE)
            except Conflict:
                found = await self._kube.get(MPS_NODES, known.name)
                self._ledger.take_answer(known, found, refused=version)
                return False
        except NotFound:
            raise _NotReserved(BindFailure.NO_GPUS.format(node=known.name)) from None
        except KubeError as error:
            raise _NotReserved(str(error)) from None
        self._ledger.take_answer(known, answer)
        for one in waiting:
            one.is_reserved = one.chosen is not None
        return True

    async def _withdraw(self, uid: str, known: KnownNode) -> None:
        """Withdraws the reservation for a pod; where that fails, it ends by itself."""
        known.reservations.withdraw(uid)
        self._ledger.reservations_changed(known)
        try:
            async with self._turn(known.turn, known.name):
                for _try in range(_TRIES):
                    known.reservations.withdraw(uid)
                    if known.reported is None or await self._write(known):
                        return
        except _NotReserved as error:
            self._log.warning("reservation stays", pod_uid=uid, node=known.name, reason=str(error))

    async def _confirm(self, args: BindArgs, known: KnownNode, chosen: Chosen) -> None:
        if self._ledger.now() - chosen.since > LONGEST_S / 2:
            raise _NotBound(BindFailure.TOO_LATE.format(node=known.name))
        size = chosen.gpus, chosen.memory_mib, chosen.dev_mib
        try:
            await self._post(
                args, annotations_at_bind(*size, chosen.policy, int(clock.wall_s() * 1e9))
            )
        except _NotBound as error:
            if not isinstance(error, _BindUnknown):  # else the reservation ends by itself
                await self._withdraw(args.pod_uid, known)
            raise

    async def _post(self, args: BindArgs, annotations: dict[str, str]) -> None:
        pod = {"name": args.pod_name, "namespace": args.pod_namespace, "uid": args.pod_uid}
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {**pod, "annotations": annotations},
            "target": {"apiVersion": "v1", "kind": "Node", "name": args.node},
        }
        try:
            await self._kube.create(PODS, binding, args.pod_namespace, "binding")
        except (Conflict, NotFound, Unavailable) as error:
            await self._unbound(args)
            if isinstance(error, Unavailable):
                raise _BindUnknown(BindFailure.UNKNOWN.format(pod=args.pod, why=error)) from None
            raise _NotBound(str(error)) from None
        except KubeError as error:
            raise _NotBound(str(error)) from None


@contextmanager
def _under_way(known: KnownNode) -> Iterator[None]:
    """What is known of the node stays meanwhile."""
    known.binds += 1
    try:
        yield
    finally:
        known.binds -= 1
