"""Violations: the ways in which a process exceeds its grant, and the response to each."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from mpsd.model.events import Reason
from mpsd.model.grants import GpuShare
from mpsd.model.identity import PodName
from mpsd.model.node_view import Client
from mpsd.model.problem import printable

if TYPE_CHECKING:  # as in model.grants
    from mpsd.model.policy import Policy


class Response(StrEnum):
    """In the words of the policy; here, since its reader takes a tenth of a second to load."""

    OBSERVE = "observe"
    WARN = "warn"
    KILL = "kill"
    EVICT = "evict"

    @property
    def ends(self) -> bool:
        return self in {Response.KILL, Response.EVICT}

    @property
    def reports(self) -> bool:
        """Whether it is reported beyond the status: an event, a line in the log."""
        return self is not Response.OBSERVE


# Of the policy's actions for too_many_clients: KILL where another grant lacks a client of its own,
# else WARN.
KILL_WHEN_SHORT = "kill_when_short"

# In the words of people, by the policy's.
DONE: Mapping[str, str] = {
    Response.OBSERVE: "only seen",
    Response.WARN: "reported",
    Response.KILL: "to be ended",
    Response.EVICT: "to be ended and evicted",
}


class ViolationKind(StrEnum):
    """By their fields in `violations` of the policy; the reason of its events has the same name."""

    MEMORY_OVER_GRANT = "memory_over_grant"
    LIMIT_LIFTED = "limit_lifted"
    PARTITIONING_ENABLED = "partitioning_enabled"
    OUTSIDE_MPS = "outside_mps"
    WITHOUT_GRANT = "without_grant"
    IN_NO_POD = "in_no_pod"
    TOO_MANY_CLIENTS = "too_many_clients"
    THREADS_LIFTED = "threads_lifted"
    PRIORITY_RAISED = "priority_raised"

    @property
    def reason(self) -> Reason:
        return Reason[self.name]

    def response(self, policy: "Policy", *, short: bool = False) -> Response:
        """short: whether another grant lacks a client of its own because of this process."""
        action = getattr(policy.violations, self.value).action
        if action == KILL_WHEN_SHORT:
            return Response.KILL if short else Response.WARN
        return Response(action)


@dataclass(frozen=True, slots=True)
class Violation:
    """One process that takes more than it was given. gpu: a UUID. pod: None where none is known by
    name. client: the process to end, if any. again: it was signalled before and is still there."""

    kind: ViolationKind
    response: Response
    gpu: str
    grant: str | None
    pod: PodName | None
    client: Client
    message: str
    again: bool = False

    def __str__(self) -> str:
        return f"{named(self.client)} {self.message}"


def named(client: Client) -> str:
    """With its program alone, since arguments may be secret."""
    program = client.command.partition(" ")[0].rpartition("/")[2]
    return f"{client.process} ({printable(program, 40)})"


def most_mib(part: GpuShare, policy: "Policy") -> int:
    """That the processes of a grant may use together without a violation."""
    return part.memory_mib + policy.violations.memory_over_grant.tolerance_mib
