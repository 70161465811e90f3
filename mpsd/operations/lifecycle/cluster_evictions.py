"""Asks for the end of the pods that hold GPUs which are being drained.

One rule: every eviction names the uid of the pod that holds the grant, so that no namesake of it is ended; and none is
asked for while a pod that is made again could come back to the same GPUs.

Rights of whoever does it: get pods, create pods/eviction, in the namespaces of those pods.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from mpsd.model.cluster_status import ClusterNode, PodStatus
from mpsd.operations.lifecycle.rules.drain_progress import holders
from mpsd.operations.lifecycle.rules.eviction import Fate, again_after_s, closed_for_s, offers_room, verdict
from mpsd.platform.kube import PODS, Away, Conflict, Kube, NotFound, NotNow, Object, Rejected

COUNTED_S = 10.0  # kubelet tells the API every so often how many devices there are; what comes in between would fail


@dataclass(slots=True)
class _Try:
    """refused: times in a row. due: on the clock that never goes back. said: last, of this pod."""

    refused: int = 0
    due: float = 0.0
    asked: bool = False
    said: str = ""


class Evictions:
    """Of one drain. say: gets a sentence whenever something about a pod is new."""

    def __init__(self, kube: Kube, say: Callable[[str], None]) -> None:
        self._kube = kube
        self._say = say
        self._tries: dict[tuple[str, str, str], _Try] = {}
        self._closed_at: float | None = None  # when the GPUs were first seen to be offered no more; None before

    def said(self, pod: PodStatus) -> str:
        """What became of the attempt on this pod, empty where there was none."""
        attempt = self._tries.get(_key(pod))
        return attempt.said if attempt else ""

    async def look(self, node: ClusterNode, gpus: Collection[str]) -> None:
        """Asks once for each pod that is due. Forbidden where a right is missing."""
        there = holders(node, gpus)
        if not there or not self._is_counted(node, gpus):
            return
        for holder in there:
            attempt = self._tries.setdefault(_key(holder), _Try())
            if not attempt.asked and time.monotonic() >= attempt.due:
                await self._attempt(holder, attempt)

    def _is_counted(self, node: ClusterNode, gpus: Collection[str]) -> bool:
        """Whether everybody knows by now that nothing is free on these GPUs."""
        if offers_room(node, gpus):
            self._closed_at = None
            return False
        for_s = closed_for_s(node, gpus)
        if self._closed_at is None:
            self._closed_at = time.monotonic()
            if for_s < COUNTED_S:
                why = "until kubelet has told that nothing is free there, or pods that are made again would come back"
                self._say(f"evicts in {COUNTED_S:g} s: {why}")
        return max(for_s, time.monotonic() - self._closed_at) >= COUNTED_S

    async def _attempt(self, holder: PodStatus, attempt: _Try) -> None:
        name = f"{holder.namespace}/{holder.pod}"
        try:
            found = verdict(await self._pod(holder), holder)
            match found.fate:
                case Fate.EVICT:
                    await self._kube.evict(holder.pod, holder.namespace, holder.uid)
                    self._tell(attempt, f"evicted {name}" + (f" ({found.why})" if found.why else ""))
                case Fate.STAYS:
                    self._tell(attempt, f"{name} is not evicted: {found.why}")
                case Fate.ENDING:
                    self._tell(attempt, f"{name} is ending already")
                case Fate.GONE:
                    self._tell(attempt, f"{name} is gone from the API, and its GPU is given back soon")
            attempt.asked = True
        except (NotFound, Conflict):  # it has gone in this very moment, or another has its name
            attempt.asked = True
        except NotNow as error:
            self._refused(attempt, f"{name} cannot be evicted now, and is tried again: {error}")
        except (Away, Rejected) as error:
            self._refused(attempt, f"{name} could not be evicted, and is tried again: {error}")

    async def _pod(self, holder: PodStatus) -> Object | None:
        try:
            return await self._kube.get(PODS, holder.pod, holder.namespace)
        except NotFound:
            return None

    def _refused(self, attempt: _Try, sentence: str) -> None:
        attempt.refused += 1
        attempt.due = time.monotonic() + again_after_s(attempt.refused)
        self._tell(attempt, sentence)

    def _tell(self, attempt: _Try, sentence: str) -> None:
        if sentence != attempt.said:
            attempt.said = sentence
            self._say(sentence)


def _key(pod: PodStatus) -> tuple[str, str, str]:
    return pod.namespace, pod.pod, pod.uid
