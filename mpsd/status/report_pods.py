"""Writes what mpsd decided on the pods it decided it for, as annotations.

One rule: a pod that has gone, or whose name another has by now, is left alone.

Rights: patch pods.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from mpsd.model.identity import PodName
from mpsd.platform.kube import PODS, Conflict, Kube, NotFound, PatchKind
from mpsd.status.rules.pod_marks import PodMarks, marks_patch

_AGAIN_S = 60.0  # between two writes of the same on one pod, should somebody else write otherwise


@dataclass(frozen=True, slots=True)
class _Told:
    wants: dict[str, str]
    at: float


class PodMarksDuty:
    name = "the pods' annotations"

    def __init__(self, kube: Kube) -> None:
        self.changed = asyncio.Event()
        self._kube = kube
        self._offered: Sequence[PodMarks] | None = None  # None before the first offer
        self._marks: dict[PodName, PodMarks] = {}
        self._told: dict[PodName, _Told] = {}

    def offer(self, marks: Sequence[PodMarks]) -> None:
        """The pods of this node as they are now, and no others. The very same marks again are nothing new."""
        if marks is self._offered:
            return
        self._offered = marks
        self._marks = {one.pod: one for one in marks if one.missing}
        here = {one.pod for one in marks}
        self._told = {pod: told for pod, told in self._told.items() if pod in here}
        self.changed.set()

    def due_in_s(self) -> float | None:
        return min(map(self._due_in_s, self._marks.values()), default=None)

    async def tell(self) -> None:
        for marks in [one for one in self._marks.values() if self._due_in_s(one) <= 0]:
            pod = marks.pod
            with suppress(NotFound, Conflict):  # it has gone
                await self._kube.patch(PODS, pod.name, marks_patch(marks), PatchKind.MERGE, pod.namespace)
            self._told[pod] = _Told(dict(marks.wants), time.monotonic())

    def _due_in_s(self, marks: PodMarks) -> float:
        told = self._told.get(marks.pod)
        if told is None or told.wants != marks.wants:
            return 0.0
        return told.at + _AGAIN_S - time.monotonic()
