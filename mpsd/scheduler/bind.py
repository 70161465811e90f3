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

from mpsd.grants.rules.placement import InsufficientResources
from mpsd.kubelet.rules.gpu_choice import SharedPod, annotations_at_bind
from mpsd.model.grants import GpuName
from mpsd.model.policy import Policy
from mpsd.model.times import stamp
from mpsd.platform.kube import MPS_NODES, PODS, Conflict, Kube, KubeError, NotFound, Object, PatchKind, Unavailable
from mpsd.platform.logs import logger
from mpsd.scheduler.ledger import ClusterLedger
from mpsd.scheduler.node import KnownNode
from mpsd.scheduler.rules.capacity import NodeCapacity, can_ever, choose, has_domain
from mpsd.scheduler.rules.filter import UNKNOWN_NODE, UnreadablePod, read_asking, why_not
from mpsd.scheduler.rules.reservations import KEY, Reservation, written

_TRIES = 5  # agents and other schedulers write the same object


class NotReserved(Exception):
    """No GPU was reserved; the message says why."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The GPUs for a pod. dev_mib: what the first may give away in all. since: when chosen, by the ledger's clock."""

    gpus: tuple[GpuName, ...]
    memory_mib: int
    dev_mib: int
    policy: Policy
    since: float


class Reserver:
    """Makes reservations. The caller holds the node's turn."""

    def __init__(self, kube: Kube, ledger: ClusterLedger) -> None:
        self._kube = kube
        self._ledger = ledger
        self._log = logger(role="scheduler")

    async def reserve(self, pod: SharedPod, known: KnownNode) -> Chosen:
        """The GPUs that the pod gets, once the server has the reservation. NotReserved where it gets none."""
        try:
            for _try in range(_TRIES):
                chosen = self._choose(pod, known)
                if await self._write(known):
                    return chosen
        finally:
            known.reservations.finish()
            self._ledger.reservations_changed(known)
        raise NotReserved(f"node {known.name}: its MPSNode changes too often to reserve a GPU; try again")

    def _choose(self, pod: SharedPod, known: KnownNode) -> Chosen:
        """Chooses GPUs, and counts the reservation at once, before another task runs."""
        uid = pod.name.uid
        ledger, earlier = self._ledger.without(known, uid), known.reservations.of(uid)
        if ledger is None:
            raise NotReserved(f"node {known.name}: {UNKNOWN_NODE}")
        found = choose(pod.request, ledger, earlier.gpus if earlier else ())
        if ledger.shut or isinstance(found, InsufficientResources):
            raise NotReserved(f"node {known.name}: {_shortage(pod, ledger)}")
        percent = pod.request.thread_percent or 0
        memory_mib, at = pod.request.memory_mib, stamp(time.time())
        known.reservations.begin(Reservation(pod.name, found.gpus, memory_mib, percent, at))
        self._ledger.reservations_changed(known)
        rooms = {room.gpu.uuid: room for room in ledger.rooms}
        gpus = tuple(GpuName(uuid, rooms[uuid].gpu.ordinal) for uuid in found.gpus)
        return Chosen(gpus, memory_mib, rooms[found.gpus[0]].memory_mib_total, ledger.policy, self._ledger.now())

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
            raise NotReserved(f"node {known.name}: {UNKNOWN_NODE}") from None
        except KubeError as error:
            raise NotReserved(str(error)) from None
        self._ledger.take_answer(known, answer)
        return True

    async def withdraw(self, uid: str, known: KnownNode) -> None:
        """Withdraws the reservation for a pod; where that fails, it ends by itself."""
        known.reservations.withdraw(uid)
        self._ledger.reservations_changed(known)
        try:
            for _try in range(_TRIES):
                if known.reported is None or await self._write(known):
                    return
                known.reservations.withdraw(uid)
        except NotReserved as error:
            self._log.warning("reservation stays", pod_uid=uid, node=known.name, reason=str(error))


def _shortage(pod: SharedPod, ledger: NodeCapacity) -> str:
    why = why_not(pod.request, ledger)
    fits_when_empty = can_ever(pod.request, ledger) and has_domain(pod.request, ledger)
    return f"another pod was faster: {why}" if fits_when_empty and not ledger.shut else why


_TURN_S = 5.0  # how long a bind waits for others to the same node
_ENDED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class BindArgs:
    """A request to bind: ExtenderBindingArgs of kube-scheduler."""

    pod_namespace: str
    pod_name: str
    pod_uid: str
    node: str

    @property
    def pod(self) -> str:
        return f"{self.pod_namespace}/{self.pod_name}"


class _NotBound(Exception):
    """The pod was not bound; the message says why."""


class _Unsure(_NotBound):
    """The pod may be bound, or may still be."""


class _IsBound(Exception):
    """The pod is bound to this node already."""


class Binder:
    """Binds pods. Any number of binds may run at once; those to one node wait for each other."""

    def __init__(self, kube: Kube, ledger: ClusterLedger) -> None:
        self._kube = kube
        self._ledger = ledger
        self._reserver = Reserver(kube, ledger)
        self._log = logger(role="scheduler")

    async def bind(self, args: BindArgs) -> str:
        """Empty if the pod is bound there, else why not."""
        try:
            return await self._bind(args)
        except _IsBound:
            return ""
        except _NotBound as error:
            self._log.info("not bound", pod=args.pod, node=args.node, reason=str(error))
            return str(error)

    async def _bind(self, args: BindArgs) -> str:
        if trouble := self._ledger.trouble:
            raise _NotBound(f"mpsd scheduler does not know what is free: {trouble}")
        known = self._ledger.known(args.node)
        async with self._turn(known) if known else nullcontext():
            pod = await self._pod(args)
            if pod is None:  # it requests nothing of mpsd
                await self._post(args, {})
            elif known is None:
                raise _NotBound(f"node {args.node}: {UNKNOWN_NODE}")
            else:
                await self._bind_shared(args, pod, known)
        return ""

    async def _bind_shared(self, args: BindArgs, pod: SharedPod, known: KnownNode) -> None:
        try:
            chosen = await self._reserver.reserve(pod, known)
        except NotReserved as error:
            await self._unbound(args)  # it may be bound already, and take the room
            raise _NotBound(str(error)) from None
        await self._confirm(args, known, chosen)
        gpus = ",".join(gpu.label for gpu in chosen.gpus)
        self._log.info("bound", pod=args.pod, node=args.node, gpus=gpus, memory_mib=chosen.memory_mib)

    @asynccontextmanager
    async def _turn(self, known: KnownNode) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(_TURN_S):
                await known.turn.acquire()
        except TimeoutError:
            raise _NotBound(f"node {known.name}: other pods are being bound to it; try again") from None
        try:
            yield
        finally:
            known.turn.release()

    # -- the pod ---------------------------------------------------------------------------------------------------

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
        """The pod as the server has it now, if it can be bound.

        Else _NotBound, _Unsure where the server does not answer, _IsBound where it is bound to this node already.
        """
        try:
            pod = await self._kube.get(PODS, args.pod_name, args.pod_namespace)
        except NotFound:
            raise _NotBound(f"pod {args.pod} is gone") from None
        except KubeError as error:
            raise _Unsure(str(error)) from None
        node = (pod.get("spec") or {}).get("nodeName") or ""
        if pod["metadata"].get("uid") != args.pod_uid:
            raise _NotBound(f"pod {args.pod} is gone; another has its name")
        if (pod.get("status") or {}).get("phase") in _ENDED:
            raise _NotBound(f"pod {args.pod} has finished")
        if node == args.node:
            raise _IsBound
        if node:
            raise _NotBound(f"pod {args.pod} is bound to node {node} already")
        if pod["metadata"].get("deletionTimestamp"):
            raise _NotBound(f"pod {args.pod} is being deleted")
        return pod

    # -- the binding -----------------------------------------------------------------------------------------------

    async def _confirm(self, args: BindArgs, known: KnownNode, chosen: Chosen) -> None:
        """Binds the pod to what is reserved for it."""
        if self._ledger.now() - chosen.since > self._ledger.patience.reservation_s / 2:
            raise _NotBound(f"node {known.name}: reserving a GPU took too long; try again")
        at_ns = time.time_ns()
        annotations = annotations_at_bind(chosen.gpus, chosen.memory_mib, chosen.dev_mib, chosen.policy, at_ns)
        try:
            await self._post(args, annotations)
        except _Unsure:
            raise  # the reservation ends by itself
        except _NotBound:
            await self._reserver.withdraw(args.pod_uid, known)
            raise

    async def _post(self, args: BindArgs, annotations: dict[str, str]) -> None:
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": args.pod_name,
                "namespace": args.pod_namespace,
                "uid": args.pod_uid,
                "annotations": annotations,
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": args.node},
        }
        try:
            await self._kube.create(PODS, binding, args.pod_namespace, "binding")
        except (Conflict, NotFound, Unavailable) as error:
            await self._unbound(args)
            if isinstance(error, Unavailable):
                raise _Unsure(f"whether pod {args.pod} is bound is not known yet: {error}") from None
            raise _NotBound(str(error)) from None
        except KubeError as error:
            raise _NotBound(str(error)) from None
