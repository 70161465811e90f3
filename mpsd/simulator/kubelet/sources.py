"""Where the simulated kubelet hears of its pods and says how they are: an API server, or a list in memory.

One rule: objects pass as the API has them, decoded JSON.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from mpsd.simulator.kubelet.pods import Json, SimPod


class SourceUnavailable(Exception):
    """The API server does not answer now."""


class PodSource(Protocol):
    """Every method may raise SourceAway."""

    async def pods(self) -> Sequence[Json]:
        """All pods of this node, the oldest first."""
        ...

    async def write_status(self, pod: SimPod, status: Json) -> None:
        """A pod that is gone meanwhile is no error."""
        ...

    async def remove(self, pod: SimPod) -> None:
        """Of this pod nothing runs any more: its deletion can be completed. One that is gone is no error."""
        ...

    async def write_amounts(self, capacity: Mapping[str, int], allocatable: Mapping[str, int]) -> None:
        """What the node has of each resource of a device plugin."""
        ...


class PodsInMemory:
    """A list of pods, for tests and for whoever feeds a kubelet in the same process. away: as an API server may be."""

    def __init__(self) -> None:
        self.away = False
        self._pods: dict[str, dict[str, Any]] = {}
        self.capacity: Mapping[str, int] = {}
        self.allocatable: Mapping[str, int] = {}

    def add(self, pod: Json) -> None:
        """pod: with a namespace, a name and a uid."""
        self._pods[pod["metadata"]["uid"]] = {**pod, "status": {"phase": "Pending"}}

    def delete(self, uid: str, grace_s: float | None = None) -> None:
        """As `kubectl delete`: the pod is gone once the kubelet has ended it."""
        metadata = self._pods[uid]["metadata"]
        ends = {} if grace_s is None else {"deletionGracePeriodSeconds": grace_s}
        deleted = {**metadata, "deletionTimestamp": datetime.now(UTC).isoformat(), **ends}
        self._pods[uid] = {**self._pods[uid], "metadata": deleted}

    def __contains__(self, uid: str) -> bool:
        return uid in self._pods

    def status(self, uid: str) -> Mapping[str, Any]:
        """What the kubelet said of a pod."""
        status: Mapping[str, Any] = self._pods[uid]["status"]
        return status

    async def pods(self) -> Sequence[Json]:
        if self.away:
            raise SourceUnavailable("away")
        return list(self._pods.values())

    async def write_status(self, pod: SimPod, status: Json) -> None:
        if pod.uid in self._pods:
            self._pods[pod.uid]["status"] = dict(status)

    async def remove(self, pod: SimPod) -> None:
        self._pods.pop(pod.uid, None)

    async def write_amounts(self, capacity: Mapping[str, int], allocatable: Mapping[str, int]) -> None:
        self.capacity, self.allocatable = dict(capacity), dict(allocatable)
