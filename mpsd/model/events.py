"""Kubernetes Events of single pods and nodes. A reason never changes its name, since people's
alerts are made of them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from mpsd.model.identity import PodName
from mpsd.model.problem import LONGEST_NAME
from mpsd.model.times import stamp

COMPONENT = "mpsd-agent"
Object = dict[str, Any]


class Reason(StrEnum):
    """Why an event is written; `is_warning` is its type."""

    # Of a domain, on its node, and on every pod that lost something by it.
    DAEMON_DOWN = "MPSDaemonDown"
    FAULT = "MPSFault"
    WEDGED = "MPSWedged"
    REFUSED = "MPSRefused"
    READY = "MPSReady"
    DRAINING = "MPSDraining"
    DRAINED = "MPSDrained"
    SICK = "GPUSick"
    UNAVAILABLE = "GPUUnavailable"
    UNWATCHED = "GPUUnwatched"
    # Of the node.
    CORDON_UNKNOWN = "MPSCordonUnknown"
    EVENTS_DROPPED = "MPSEventsDropped"
    IN_NO_POD = "GPUProcessInNoPod"
    UNEXPLAINED_MEMORY = "GPUMemoryUnexplained"
    # Of a pod.
    ALLOCATION_REFUSED = "AllocationRefused"
    DEVICES_GIVEN_TWICE = "GPUDevicesGivenTwice"
    START_HELD_BACK = "StartHeldBack"
    LIMITS_MISMATCH = "LimitsMismatch"
    EVICTED = "MPSEvicted"
    MEMORY_OVER_GRANT = "GPUMemoryExceeded"
    OUTSIDE_MPS = "GPUOutsideMPS"
    WITHOUT_GRANT = "GPUWithoutGrant"
    LIMIT_LIFTED = "GPULimitLifted"
    PARTITIONING_ENABLED = "GPUPartitioningEnabled"
    THREADS_LIFTED = "GPUThreadsLifted"
    PRIORITY_RAISED = "GPUPriorityRaised"
    TOO_MANY_CLIENTS = "GPUTooManyClients"

    @property
    def is_warning(self) -> bool:
        return self not in {Reason.READY, Reason.DRAINING, Reason.DRAINED}


@dataclass(frozen=True, slots=True)
class Subject:
    """What an event is about. namespace: empty for a node."""

    kind: str
    namespace: str
    name: str
    uid: str

    @property
    def place(self) -> str:
        return f"{self.namespace}/{self.name}".removeprefix("/")

    def __str__(self) -> str:
        return f"{self.kind} {self.place}"

    @property
    def event_namespace(self) -> str:
        """Events of what has no namespace are in `default`, where kubectl looks for them."""
        return self.namespace or "default"


def pod_subject(pod: PodName) -> Subject:
    return Subject("Pod", pod.namespace, pod.name, pod.uid)


def node_subject(node: str) -> Subject:
    """With its name for a uid, as kubelet's events have and `kubectl describe node` looks for."""
    return Subject("Node", "", node, node)


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. message: without what differs from tick to tick. at: when, in
    seconds since 1970, where that is recorded, so that it is reported once although a restarted
    agent finds it again; None for now."""

    subject: Subject
    reason: Reason
    message: str
    at: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class EventCount:
    """How often something has happened. first, last: seconds since 1970."""

    event: Event
    first: float
    last: float
    count: int

    @property
    def name(self) -> str:
        """The same for the same thing, so that a restarted agent counts on."""
        from hashlib import sha256  # OpenSSL, 3 MiB of `mpsd control`, which makes no event

        one = self.event
        key = "\0".join((one.subject.kind, one.subject.uid, one.reason, one.message))
        mark = sha256(key.encode()).hexdigest()[:16]
        return f"{one.subject.name[: LONGEST_NAME - 17]}.{mark}"


def event_object(seen: EventCount, node: str) -> Object:
    subject = seen.event.subject
    about = {"apiVersion": "v1", **asdict(subject)}
    reason = seen.event.reason
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": seen.name, "namespace": subject.event_namespace},
        "involvedObject": {key: value for key, value in about.items() if value},
        "reason": reason.value,
        "message": seen.event.message[:1024],  # Kubernetes' own limit
        "type": "Warning" if reason.is_warning else "Normal",
        "source": {"component": COMPONENT, "host": node},
        "reportingComponent": COMPONENT,
        "reportingInstance": node,
        "firstTimestamp": stamp(seen.first),
        "lastTimestamp": stamp(seen.last),
        "count": seen.count,
    }


def event_patch(seen: EventCount) -> Object:
    return {"count": seen.count, "lastTimestamp": stamp(seen.last)}


def count_in(event: Mapping[str, Any]) -> int:
    """How often an Event in the API counts that it happened; 0 where it has no count."""
    count = event.get("count")
    return max(0, count) if isinstance(count, int) else 0


def is_reported_by(event: Mapping[str, Any], seen: EventCount) -> bool:
    """Whether an Event in the API reports this already, by when it last happened."""
    last = event.get("lastTimestamp")
    return seen.event.at is not None and isinstance(last, str) and last >= stamp(seen.last)


@dataclass(frozen=True, slots=True)
class PastEvent:
    """An event that an agent remembers for its page. what: a value of Reason, or "Refused" of a
    request. uid: of the object it is about, if that has one."""

    at: float
    what: str
    where: str
    text: str
    uid: str = ""
