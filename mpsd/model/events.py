"""What mpsd reports of single pods and nodes: Kubernetes Events, with reasons from one list.

A reason never changes its name, since people's alerts are made of them; what happened is in the
message.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
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
    # Of the node.
    CORDON_UNKNOWN = "MPSCordonUnknown"
    EVENTS_DROPPED = "MPSEventsDropped"
    IN_NO_POD = "GPUProcessInNoPod"
    UNEXPLAINED_MEMORY = "GPUMemoryUnexplained"
    # Of a pod.
    ALLOCATION_REFUSED = "AllocationRefused"
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
    """One thing that happened. message: in plain words, without what differs from tick to tick. at:
    when it happened, in seconds since 1970, where that is recorded, so that it is reported once
    although a restarted agent finds it again; None where it happens now.
    """

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
        """The event's, the same for the same thing, so that a restarted agent counts on where it
        was."""
        from hashlib import sha256  # OpenSSL, 3 MiB of `mpsd control`, which makes no event

        one = self.event
        key = "\0".join((one.subject.kind, one.subject.uid, one.reason, one.message))
        mark = sha256(key.encode()).hexdigest()[:16]
        return f"{one.subject.name[: LONGEST_NAME - 17]}.{mark}"


def event_object(seen: EventCount, node: str) -> Object:
    subject = seen.event.subject
    about = {
        "kind": subject.kind,
        "name": subject.name,
        "uid": subject.uid,
        "namespace": subject.namespace,
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": seen.name, "namespace": subject.event_namespace},
        "involvedObject": {
            "apiVersion": "v1",
            **{key: value for key, value in about.items() if value},
        },
        "reason": seen.event.reason.value,
        "message": seen.event.message[:1024],  # Kubernetes' own limit
        "type": "Warning" if seen.event.reason.is_warning else "Normal",
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
    return count if isinstance(count, int) and count > 0 else 0


def is_reported_by(event: Mapping[str, Any], seen: EventCount) -> bool:
    """Whether an Event in the API already reports this, by the time that it last happened."""
    last = event.get("lastTimestamp")
    return seen.event.at is not None and isinstance(last, str) and last >= stamp(seen.last)


@dataclass(frozen=True, slots=True)
class PastEvent:
    """An event that an agent remembers for its page. what: a value of Reason, or "Refused" for a
    refused request. uid: of the object it is about; empty where that has none.
    """

    at: float
    what: str
    where: str
    text: str
    uid: str = ""
