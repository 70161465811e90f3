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

from mpsd.kubelet.rules.placement_annotations import annotations_at_bind
from mpsd.kubelet.rules.shared_pod import SharedPod
from mpsd.platform.kube import PODS, Away, Conflict, Kube, KubeError, NotFound, Object
from mpsd.platform.logs import logger
from mpsd.scheduler.node import KnownNode
from mpsd.scheduler.rules.filter import UnreadablePod, read_asking
from mpsd.scheduler.rules.shortage import NO_BOOKS
from mpsd.scheduler.scheduler_books import ClusterBooks
from mpsd.scheduler.scheduler_promise import Chosen, NotPromised, Promiser

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

    def __init__(self, kube: Kube, books: ClusterBooks) -> None:
        self._kube = kube
        self._books = books
        self._promiser = Promiser(kube, books)
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
        if trouble := self._books.trouble:
            raise _NotBound(f"mpsd scheduler cannot say what is free: {trouble}")
        known = self._books.known(args.node)
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
        except NotPromised as error:
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
        heard = self._books.pod(args.pod_namespace, args.pod_name)
        if heard and heard.name.uid == args.pod_uid and not heard.node and not heard.terminating:
            return heard
        try:
            return read_asking(await self._unbound(args), self._books.policy)
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
        if self._books.now() - chosen.since > self._books.patience.promise_s / 2:
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
        except (Conflict, NotFound, Away) as error:
            await self._unbound(args)
            if isinstance(error, Away):
                raise _Unsure(f"whether pod {args.pod} is bound is not known yet: {error}") from None
            raise _NotBound(str(error)) from None
        except KubeError as error:
            raise _NotBound(str(error)) from None
