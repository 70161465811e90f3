"""What mpsd tells of single pods and nodes: Kubernetes Events, with reasons from one list.

A reason never changes its name, since people's alerts are made of them; what happened is in the message.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any

from mpsd.model.identity import PodName
from mpsd.model.problem import LONGEST_NAME
from mpsd.model.times import stamp

COMPONENT = "mpsd-agent"
_LONGEST_MESSAGE = 1024  # Kubernetes' own limit

Object = dict[str, Any]


class Reason(StrEnum):
    """Why an event is told; `is_warning` says of which type it is."""

    # Of a domain, told on its node, and on every pod that lost something by it.
    DAEMON_DOWN = "MPSDaemonDown"
    FAULT = "MPSFault"
    WEDGED = "MPSWedged"
    REFUSED = "MPSRefused"
    READY = "MPSReady"
    DRAINING = "MPSDraining"
    DRAINED = "MPSDrained"
    # Of the node.
    CORDON_UNKNOWN = "MPSCordonUnknown"
    EVENTS_DROPPED = "MPSEventsDropped"
    IN_NO_POD = "GPUProcessInNoPod"
    # Of a pod.
    ALLOCATION_REFUSED = "AllocationRefused"
    START_HELD_BACK = "StartHeldBack"
    LIMITS_MISMATCH = "LimitsMismatch"
    EVICTED = "MPSEvicted"
    GPU_MEMORY_EXCEEDED = "GPUMemoryExceeded"
    OUTSIDE_MPS = "GPUOutsideMPS"
    WITHOUT_GRANT = "GPUWithoutGrant"
    LIMIT_LIFTED = "GPULimitLifted"
    PARTITIONING_ENABLED = "GPUPartitioningEnabled"
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

    def __str__(self) -> str:
        return f"{self.kind} " + (f"{self.namespace}/{self.name}" if self.namespace else self.name)

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
    """One thing to tell. message: in plain words, without what differs from tick to tick.

    at: when it happened, in seconds since 1970, where that is written down, so that whoever finds it again after a
    restart tells it once; None where it happens now.
    """

    subject: Subject
    reason: Reason
    message: str
    at: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class EventCount:
    """How often something has happened. first, last: seconds since 1970."""

    happening: Event
    first: float
    last: float
    count: int

    @property
    def name(self) -> str:
        """The event's, the same for the same happening, so that a restarted agent counts on where it was."""
        one = self.happening
        said = "\0".join((one.subject.kind, one.subject.uid, one.reason, one.message))
        mark = sha256(said.encode()).hexdigest()[:16]
        return f"{one.subject.name[: LONGEST_NAME - 17]}.{mark}"


def event_object(told: EventCount, node: str) -> Object:
    """The Event to create."""
    subject = told.happening.subject
    involved = {"apiVersion": "v1", "kind": subject.kind, "name": subject.name, "uid": subject.uid}
    if subject.namespace:
        involved["namespace"] = subject.namespace
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": told.name, "namespace": subject.event_namespace},
        "involvedObject": {key: value for key, value in involved.items() if value},
        "reason": told.happening.reason.value,
        "message": told.happening.message[:_LONGEST_MESSAGE],
        "type": "Warning" if told.happening.reason.is_warning else "Normal",
        "source": {"component": COMPONENT, "host": node},
        "reportingComponent": COMPONENT,
        "reportingInstance": node,
        "firstTimestamp": stamp(told.first),
        "lastTimestamp": stamp(told.last),
        "count": told.count,
    }


def event_patch(told: EventCount) -> Object:
    """The merge patch that counts an Event up."""
    return {"count": told.count, "lastTimestamp": stamp(told.last)}


def count_in(event: Mapping[str, Any]) -> int:
    """How often an Event in the API says that it happened; 0 where it does not say."""
    count = event.get("count")
    return count if isinstance(count, int) and count > 0 else 0


def is_told_by(event: Mapping[str, Any], told: EventCount) -> bool:
    """Whether an Event in the API already tells of this, by the time that it last happened."""
    last = event.get("lastTimestamp")
    return told.happening.at is not None and isinstance(last, str) and last >= stamp(told.last)


@dataclass(frozen=True, slots=True)
class PastEvent:
    """An event that an agent remembers for its page. what: a value of Reason, or "Refused" for a refused request.

    uid: of the object it is about; empty where that has none.
    """

    at: float
    what: str
    where: str
    text: str
    uid: str = ""
