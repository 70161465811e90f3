"""Binds a pod to a node and to GPUs of it.

One rule: no binding before the promise of its GPUs is written at the API server, under the resourceVersion that their
room was counted by. What is cut off between the two leaves a promise, which ends by itself; what is cut off after them
leaves a pod that says which GPUs it has.

Rights: get pods; create pods/binding; and those of scheduler_promise.
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
from mpsd.scheduler.rules.filter import NO_BOOKS, UnreadablePod, read_asking, why_not
from mpsd.scheduler.rules.reservations import KEY, Reservation, written

# Promises a pod GPUs of a node, so that no scheduler gives them away twice.
#
# One rule: a promise is written under the resourceVersion that the room was counted by. Where that is another by then,
# the room is counted again.
#
# Rights: get and patch mpsnodes.

_TRIES = 5  # agents and other schedulers write the same object


class NotReserved(Exception):
    """Why not, for a person."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """dev_mib: what the first of the GPUs may promise in all. since: when they were chosen, by the ledger's clock."""

    gpus: tuple[GpuName, ...]
    memory_mib: int
    dev_mib: int
    policy: Policy
    since: float


class Reserver:
    """Whoever calls it has the node's turn."""

    def __init__(self, kube: Kube, ledger: ClusterLedger) -> None:
        self._kube = kube
        self._ledger = ledger
        self._log = logger(role="scheduler")

    async def promise(self, pod: SharedPod, known: KnownNode) -> Chosen:
        """The GPUs that the pod gets, once the server has the promise of them. NotPromised where it gets none."""
        try:
            for _try in range(_TRIES):
                chosen = self._choose(pod, known)
                if await self._write(known):
                    return chosen
        finally:
            known.promises.decided()
            self._ledger.touched(known)
        raise NotReserved(
            f"node {known.name}: what is known of it changes faster than a GPU can be promised; try again"
        )

    def _choose(self, pod: SharedPod, known: KnownNode) -> Chosen:
        """Chooses, and counts it, without anybody coming between."""
        uid = pod.name.uid
        ledger, earlier = self._ledger.without(known, uid), known.promises.of(uid)
        if ledger is None:
            raise NotReserved(f"node {known.name}: {NO_BOOKS}")
        found = choose(pod.request, ledger, earlier.gpus if earlier else ())
        if ledger.shut or isinstance(found, InsufficientResources):
            raise NotReserved(f"node {known.name}: {_shortage(pod, ledger)}")
        percent = pod.request.thread_percent or 0
        memory_mib, at = pod.request.memory_mib, stamp(time.time())
        known.promises.decide(Reservation(pod.name, found.gpus, memory_mib, percent, at))
        self._ledger.touched(known)
        rooms = {room.gpu.uuid: room for room in ledger.rooms}
        gpus = tuple(GpuName(uuid, rooms[uuid].gpu.ordinal) for uuid in found.gpus)
        return Chosen(gpus, memory_mib, rooms[found.gpus[0]].memory_mib_total, ledger.policy, self._ledger.now())

    async def _write(self, known: KnownNode) -> bool:
        """Writes the promises that count. False where the node's MPSNode was another by then: it is known now."""
        assert known.told, "its room was counted"
        version, promised = known.told.version, written(self._ledger.promised(known))
        patch = {"metadata": {"resourceVersion": version, "annotations": {KEY: promised}}}
        try:
            try:
                answer = await self._kube.patch(MPS_NODES, known.name, patch, PatchKind.MERGE)
            except Conflict:
                self._ledger.answered(known, await self._kube.get(MPS_NODES, known.name), refused=version)
                return False
        except NotFound:
            raise NotReserved(f"node {known.name}: {NO_BOOKS}") from None
        except KubeError as error:
            raise NotReserved(str(error)) from None
        self._ledger.answered(known, answer)
        return True

    async def withdraw(self, uid: str, known: KnownNode) -> None:
        """Takes the promise to a pod back; where that fails, it ends by itself."""
        known.promises.withdraw(uid)
        self._ledger.touched(known)
        try:
            for _try in range(_TRIES):
                if known.told is None or await self._write(known):
                    return
                known.promises.withdraw(uid)
        except NotReserved as error:
            self._log.warning("promise stays", pod_uid=uid, node=known.name, reason=str(error))


def _shortage(pod: SharedPod, ledger: NodeCapacity) -> str:
    why = why_not(pod.request, ledger)
    fits_when_empty = can_ever(pod.request, ledger) and has_domain(pod.request, ledger)
    return f"another pod was faster: {why}" if fits_when_empty and not ledger.shut else why


_TURN_S = 5.0  # that a bind waits for others to the same node
_ENDED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class BindArgs:
    """What kube-scheduler asks: ExtenderBindingArgs."""

    pod_namespace: str
    pod_name: str
    pod_uid: str
    node: str

    @property
    def pod(self) -> str:
        return f"{self.pod_namespace}/{self.pod_name}"


class _NotBound(Exception):
    """Why not, for a person."""


class _Unsure(_NotBound):
    """It may be bound, or still will be."""


class _IsBound(Exception):
    """It is bound to this node already."""


class Binder:
    """Any number of binds at once; those to one node wait for each other."""

    def __init__(self, kube: Kube, ledger: ClusterLedger) -> None:
        self._kube = kube
        self._ledger = ledger
        self._promiser = Reserver(kube, ledger)
        self._log = logger(role="scheduler")

    async def bind(self, args: BindArgs) -> str:
        """Empty where the pod is bound there; else why not, for a person."""
        try:
            return await self._bind(args)
        except _IsBound:
            return ""
        except _NotBound as error:
            self._log.info("not bound", pod=args.pod, node=args.node, reason=str(error))
            return str(error)

    async def _bind(self, args: BindArgs) -> str:
        if trouble := self._ledger.trouble:
            raise _NotBound(f"mpsd scheduler cannot say what is free: {trouble}")
        known = self._ledger.known(args.node)
        async with self._turn(known) if known else nullcontext():
            pod = await self._pod(args)
            if pod is None:  # it asks for nothing that mpsd gives, and may go where the scheduler likes
                await self._post(args, {})
            elif known is None:
                raise _NotBound(f"node {args.node}: {NO_BOOKS}")
            else:
                await self._bind_shared(args, pod, known)
        return ""

    async def _bind_shared(self, args: BindArgs, pod: SharedPod, known: KnownNode) -> None:
        try:
            chosen = await self._promiser.promise(pod, known)
        except NotReserved as error:
            await self._unbound(args)  # it may be what takes the room
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
        """None where it asks for no GPU."""
        heard = self._ledger.pod(args.pod_namespace, args.pod_name)
        if heard and heard.name.uid == args.pod_uid and not heard.node and not heard.terminating:
            return heard
        try:
            return read_asking(await self._unbound(args), self._ledger.policy)
        except UnreadablePod as error:
            raise _NotBound(str(error)) from None

    async def _unbound(self, args: BindArgs) -> Object:
        """The pod as the server has it now, which can be bound. _NotBound where it cannot, _Unsure where the server
        does not say, _IsBound where it is bound to this node already.
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
        """Binds the pod to what it was promised."""
        if self._ledger.now() - chosen.since > self._ledger.patience.promise_s / 2:
            raise _NotBound(f"node {known.name}: to promise a GPU took too long; try again")
        at_ns = time.time_ns()
        annotations = annotations_at_bind(chosen.gpus, chosen.memory_mib, chosen.dev_mib, chosen.policy, at_ns)
        try:
            await self._post(args, annotations)
        except _Unsure:
            raise  # the promise stays until it ends by itself
        except _NotBound:
            await self._promiser.withdraw(args.pod_uid, known)
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
