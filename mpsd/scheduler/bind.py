"""Binds a pod to a node and to GPUs of it, with a reservation first, so that no scheduler gives them away twice.

The reservation is written with the resourceVersion by which the capacity was counted; after a conflict it is counted
again. An interruption before the binding leaves a reservation, which ends by itself; one after it leaves a pod whose
annotations say which GPUs it has.

Rights: get and patch mpsnodes; get pods; create pods/binding.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from enum import StrEnum

from mpsd.kubelet.rules.gpu_choice import SharedPod, annotations_at_bind
from mpsd.model.grants import GpuName
from mpsd.model.policy import Policy
from mpsd.model.times import stamp
from mpsd.platform.kube import MPS_NODES, PODS, Conflict, Kube, KubeError, NotFound, Object, PatchKind, Unavailable
from mpsd.platform.logs import logger
from mpsd.scheduler.ledger import ClusterLedger, KnownNode
from mpsd.scheduler.rules.capacity import can_ever, choose, has_domain
from mpsd.scheduler.rules.filter import UNKNOWN_NODE, UnreadablePod, read_asking, why_not
from mpsd.scheduler.rules.reservations import KEY, LONGEST_S, Reservation, written
from mpsd.scheduler.wire import BindArgs

_TRIES = 5  # agents and other schedulers write the same object
_TURN_S = 5.0  # how long a bind waits for others to the same node


@dataclass(frozen=True, slots=True)
class Chosen:
    """The GPUs for a pod. dev_mib: what the first may give away in all. since: when chosen, by the ledger's clock."""

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
    TOO_LATE = "node {node}: reserving a GPU took too long; try again"
    UNKNOWN = "pod {pod} may or may not be bound: {why}"


class _NotBound(Exception):
    """The pod was not bound; the message says why."""


class _NotReserved(_NotBound):
    """No GPU was reserved."""


class _Unsure(_NotBound):
    """The pod may be bound, or may still be."""


class _IsBound(Exception):
    """The pod is bound to this node already."""


class Binder:
    """Binds pods. Any number of binds may run at once; those to one node wait for each other."""

    def __init__(self, kube: Kube, ledger: ClusterLedger) -> None:
        self._kube = kube
        self._ledger = ledger
        self._log = logger(role="scheduler")

    async def bind(self, args: BindArgs) -> str:
        """Empty if the pod is bound there, else why not."""
        try:
            await self._bind(args)
        except _IsBound:
            return ""
        except _NotBound as error:
            self._log.info("not bound", pod=args.pod, node=args.node, reason=str(error))
            return str(error)
        return ""

    async def _bind(self, args: BindArgs) -> None:
        if trouble := self._ledger.trouble:
            raise _NotBound(BindFailure.UNHEARD.format(why=trouble))
        known = self._ledger.known(args.node)
        async with self._turn(known) if known else nullcontext():
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
            self._log.info("bound", pod=args.pod, node=args.node, gpus=gpus, memory_mib=chosen.memory_mib)

    @asynccontextmanager
    async def _turn(self, known: KnownNode) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(_TURN_S):
                await known.turn.acquire()
        except TimeoutError:
            raise _NotBound(BindFailure.BUSY.format(node=known.name)) from None
        try:
            yield
        finally:
            known.turn.release()

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
        """The pod as the server has it now, if it can be bound. Else _NotBound, _Unsure where the server does not
        answer, _IsBound where it is bound to this node already."""
        try:
            pod = await self._kube.get(PODS, args.pod_name, args.pod_namespace)
        except NotFound:
            raise _NotBound(BindFailure.GONE.format(pod=args.pod)) from None
        except KubeError as error:
            raise _Unsure(str(error)) from None
        node = (pod.get("spec") or {}).get("nodeName") or ""
        if pod["metadata"].get("uid") != args.pod_uid:
            raise _NotBound(BindFailure.REPLACED.format(pod=args.pod))
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            raise _NotBound(BindFailure.FINISHED.format(pod=args.pod))
        if node == args.node:
            raise _IsBound
        if node:
            raise _NotBound(BindFailure.ELSEWHERE.format(pod=args.pod, node=node))
        if pod["metadata"].get("deletionTimestamp"):
            raise _NotBound(BindFailure.DELETED.format(pod=args.pod))
        return pod

    async def _reserve(self, pod: SharedPod, known: KnownNode) -> Chosen:
        """The GPUs that the pod gets, once the server has the reservation. _NotReserved where it gets none."""
        try:
            for _try in range(_TRIES):
                chosen = self._choose(pod, known)
                if await self._write(known):
                    return chosen
        finally:
            known.reservations.pending = None
            self._ledger.reservations_changed(known)
        raise _NotReserved(BindFailure.CONFLICTS.format(node=known.name))

    def _choose(self, pod: SharedPod, known: KnownNode) -> Chosen:
        """Chooses GPUs, and counts the reservation at once, before another task runs."""
        request, uid = pod.request, pod.name.uid
        ledger, earlier = self._ledger.without(known, uid), known.reservations.of(uid)
        if ledger is None:
            raise _NotReserved(BindFailure.NO_GPUS.format(node=known.name))
        found = choose(request, ledger, earlier.gpus if earlier else ())
        if ledger.shut or found is None:
            fits_when_empty = can_ever(request, ledger) and has_domain(request, ledger)
            failure = BindFailure.OVERTAKEN if fits_when_empty and not ledger.shut else BindFailure.NO_ROOM
            raise _NotReserved(failure.format(node=known.name, why=why_not(request, ledger)))
        rooms = {room.gpu.uuid: room for room in ledger.rooms}
        divided = rooms[found.gpus[0]].chunks
        chunks = request.chunks(divided.chunks) if divided else 0
        amounts = request.memory_mib, request.thread_percent or 0
        known.reservations.pending = Reservation(pod.name, found.gpus, *amounts, stamp(time.time()), chunks)
        self._ledger.reservations_changed(known)
        gpus, dev_mib = tuple(rooms[uuid].gpu for uuid in found.gpus), rooms[found.gpus[0]].memory_mib_total
        return Chosen(gpus, request.memory_mib, dev_mib, ledger.policy, self._ledger.now())

    async def _write(self, known: KnownNode) -> bool:
        """Writes the reservations that count. False after a conflict; the new MPSNode is known then."""
        assert known.reported, "its room was counted"
        version, text = known.reported.version, written(self._ledger.reservations(known))
        patch = {"metadata": {"resourceVersion": version, "annotations": {KEY: text}}}
        try:
            try:
                answer = await self._kube.patch(MPS_NODES, known.name, patch, PatchKind.MERGE)
            except Conflict:
                self._ledger.take_answer(known, await self._kube.get(MPS_NODES, known.name), refused=version)
                return False
        except NotFound:
            raise _NotReserved(BindFailure.NO_GPUS.format(node=known.name)) from None
        except KubeError as error:
            raise _NotReserved(str(error)) from None
        self._ledger.take_answer(known, answer)
        return True

    async def _withdraw(self, uid: str, known: KnownNode) -> None:
        """Withdraws the reservation for a pod; where that fails, it ends by itself."""
        known.reservations.withdraw(uid)
        self._ledger.reservations_changed(known)
        try:
            for _try in range(_TRIES):
                if known.reported is None or await self._write(known):
                    return
                known.reservations.withdraw(uid)
        except _NotReserved as error:
            self._log.warning("reservation stays", pod_uid=uid, node=known.name, reason=str(error))

    async def _confirm(self, args: BindArgs, known: KnownNode, chosen: Chosen) -> None:
        if self._ledger.now() - chosen.since > LONGEST_S / 2:
            raise _NotBound(BindFailure.TOO_LATE.format(node=known.name))
        amounts = chosen.memory_mib, chosen.dev_mib
        try:
            await self._post(args, annotations_at_bind(chosen.gpus, *amounts, chosen.policy, time.time_ns()))
        except _NotBound as error:
            if not isinstance(error, _Unsure):  # else the reservation ends by itself
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
                raise _Unsure(BindFailure.UNKNOWN.format(pod=args.pod, why=error)) from None
            raise _NotBound(str(error)) from None
        except KubeError as error:
            raise _NotBound(str(error)) from None
