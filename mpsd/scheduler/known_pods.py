"""The pods of a cluster that ask for GPUs, as last heard, and what became of those that were promised some.

One rule: a pod has ended only when it was there and is no more; one that was never heard of may still come.
"""

from collections import deque

from mpsd.kubelet.rules.shared_pod import SharedPod
from mpsd.scheduler.rules.promises import Fate
from mpsd.scheduler.rules.reservations import Reservation


class KnownPods:
    """remembered_s: for how long an end is remembered. Times are of the reader's clock."""

    def __init__(self, remembered_s: float) -> None:
        self._remembered_s = remembered_s
        self._pods: dict[tuple[str, str], SharedPod] = {}
        self._ended: set[str] = set()  # uids
        self._ends: deque[tuple[float, str]] = deque()

    def pod(self, namespace: str, name: str) -> SharedPod | None:
        """None for one that is not there."""
        return self._pods.get((namespace, name))

    def changed(self, before: SharedPod | None, now: SharedPod | None, at: float) -> None:
        """Takes what a pod was and is; None: not there."""
        if before:
            del self._pods[before.name.namespace, before.name.name]
        if now:
            self._pods[now.name.namespace, now.name.name] = now
        if before and (now is None or now.name.uid != before.name.uid):
            self._ended.add(before.name.uid)
            self._ends.append((at, before.name.uid))
        while self._ends and at - self._ends[0][0] > self._remembered_s:
            self._ended.discard(self._ends.popleft()[1])

    def fate(self, promise: Reservation, node: str) -> Fate:
        """Of the pod that was promised something of this node, by what is heard of pods alone."""
        if promise.pod.uid in self._ended:
            return Fate.ENDED
        pod = self.pod(promise.pod.namespace, promise.pod.name)
        if pod is None or pod.name.uid != promise.pod.uid:
            return Fate.UNSEEN
        if not pod.node:
            return Fate.WAITING
        return Fate.BOUND if pod.node == node else Fate.ELSEWHERE
