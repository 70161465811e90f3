"""Promises a pod GPUs of a node, so that no scheduler gives them away twice.

One rule: a promise is written under the resourceVersion that the room was counted by. Where that is another by then,
the room is counted again.

Rights: get and patch mpsnodes.
"""

import time
from dataclasses import dataclass

from mpsd.grants.rules.placement import NoRoom
from mpsd.kubelet.rules.shared_pod import SharedPod
from mpsd.model.grants import GpuName
from mpsd.model.policy import Policy
from mpsd.platform.kube import Conflict, Kube, KubeError, NotFound, PatchKind
from mpsd.platform.kube_time import stamp
from mpsd.platform.logs import logger
from mpsd.scheduler.node import KnownNode
from mpsd.scheduler.rules.node_books import NodeBooks
from mpsd.scheduler.rules.promises import choose
from mpsd.scheduler.rules.reservations import KEY, Reservation, written
from mpsd.scheduler.rules.shortage import NO_BOOKS, can_ever, has_domain, why_not
from mpsd.scheduler.scheduler_books import ClusterBooks
from mpsd.status.report_node import MPS_NODES

_TRIES = 5  # agents and other schedulers write the same object


class NotPromised(Exception):
    """Why not, for a person."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """dev_mib: what the first of the GPUs may promise in all. since: when they were chosen, by the books' clock."""

    gpus: tuple[GpuName, ...]
    memory_mib: int
    dev_mib: int
    policy: Policy
    since: float


class Promiser:
    """Whoever calls it has the node's turn."""

    def __init__(self, kube: Kube, books: ClusterBooks) -> None:
        self._kube = kube
        self._books = books
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
            self._books.touched(known)
        raise NotPromised(
            f"node {known.name}: what is known of it changes faster than a GPU can be promised; try again"
        )

    def _choose(self, pod: SharedPod, known: KnownNode) -> Chosen:
        """Chooses, and counts it, without anybody coming between."""
        uid = pod.name.uid
        books, earlier = self._books.without(known, uid), known.promises.of(uid)
        if books is None:
            raise NotPromised(f"node {known.name}: {NO_BOOKS}")
        found = choose(pod.request, books, earlier.gpus if earlier else ())
        if books.shut or isinstance(found, NoRoom):
            raise NotPromised(f"node {known.name}: {_shortage(pod, books)}")
        percent = pod.request.thread_percent or 0
        memory_mib, at = pod.request.memory_mib, stamp(time.time())
        known.promises.decide(Reservation(pod.name, found.gpus, memory_mib, percent, at))
        self._books.touched(known)
        rooms = {room.gpu.uuid: room for room in books.rooms}
        gpus = tuple(GpuName(uuid, rooms[uuid].gpu.ordinal) for uuid in found.gpus)
        return Chosen(gpus, memory_mib, rooms[found.gpus[0]].memory_mib_total, books.policy, self._books.now())

    async def _write(self, known: KnownNode) -> bool:
        """Writes the promises that count. False where the node's MPSNode was another by then: it is known now."""
        assert known.told, "its room was counted"
        version, promised = known.told.version, written(self._books.promised(known))
        patch = {"metadata": {"resourceVersion": version, "annotations": {KEY: promised}}}
        try:
            try:
                answer = await self._kube.patch(MPS_NODES, known.name, patch, PatchKind.MERGE)
            except Conflict:
                self._books.answered(known, await self._kube.get(MPS_NODES, known.name), refused=version)
                return False
        except NotFound:
            raise NotPromised(f"node {known.name}: {NO_BOOKS}") from None
        except KubeError as error:
            raise NotPromised(str(error)) from None
        self._books.answered(known, answer)
        return True

    async def withdraw(self, uid: str, known: KnownNode) -> None:
        """Takes the promise to a pod back; where that fails, it ends by itself."""
        known.promises.withdraw(uid)
        self._books.touched(known)
        try:
            for _try in range(_TRIES):
                if known.told is None or await self._write(known):
                    return
                known.promises.withdraw(uid)
        except NotPromised as error:
            self._log.warning("promise stays", pod_uid=uid, node=known.name, reason=str(error))


def _shortage(pod: SharedPod, books: NodeBooks) -> str:
    why = why_not(pod.request, books)
    fits_when_empty = can_ever(pod.request, books) and has_domain(pod.request, books)
    return f"another pod was faster: {why}" if fits_when_empty and not books.shut else why
