"""The ways in which a process takes more than it was given, and what is said of each.

A kind has the name of its field in `limits/policy.yaml`, which says what is done about it; the reason of its
event never changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from mpsd.model.events import Reason
from mpsd.model.grants import GpuShare
from mpsd.model.identity import PodName
from mpsd.model.node_view import Client
from mpsd.model.problem import printable


class Response(StrEnum):
    """What is done about a violation, in the words of the policy. Here, since whoever only shows it does without the
    policy's reader, which takes a tenth of a second to load.
    """

    OBSERVE = "observe"
    WARN = "warn"
    KILL = "kill"
    EVICT = "evict"

    @property
    def ends(self) -> bool:
        """Whether a process is to be ended."""
        return self in {Response.KILL, Response.EVICT}

    @property
    def tells(self) -> bool:
        """Whether anybody but who looks hears of it."""
        return self is not Response.OBSERVE


# In the words of people, by the policy's.
DONE: Mapping[str, str] = {
    Response.OBSERVE: "only seen",
    Response.WARN: "told of",
    Response.KILL: "to be ended",
    Response.EVICT: "to be ended and evicted",
}


if TYPE_CHECKING:  # as in model.grants
    from mpsd.model.policy import Policy

_PROGRAM = 40  # characters of it in a message


class ViolationKind(StrEnum):
    """The values are the fields of `violations` in the policy."""

    MEMORY_OVER_GRANT = "memory_over_grant"
    LIMIT_LIFTED = "limit_lifted"
    PARTITIONING_ENABLED = "partitioning_enabled"
    OUTSIDE_MPS = "outside_mps"
    WITHOUT_GRANT = "without_grant"
    IN_NO_POD = "in_no_pod"
    TOO_MANY_CLIENTS = "too_many_clients"

    @property
    def reason(self) -> Reason:
        """Of its events."""
        return _REASONS[self]

    def response(self, policy: "Policy") -> Response:
        """What the policy has done about it."""
        return Response(getattr(policy.violations, self.value).action)


_REASONS = {
    ViolationKind.MEMORY_OVER_GRANT: Reason.GPU_MEMORY_EXCEEDED,
    ViolationKind.LIMIT_LIFTED: Reason.LIMIT_LIFTED,
    ViolationKind.PARTITIONING_ENABLED: Reason.PARTITIONING_ENABLED,
    ViolationKind.OUTSIDE_MPS: Reason.OUTSIDE_MPS,
    ViolationKind.WITHOUT_GRANT: Reason.WITHOUT_GRANT,
    ViolationKind.IN_NO_POD: Reason.IN_NO_POD,
    ViolationKind.TOO_MANY_CLIENTS: Reason.TOO_MANY_CLIENTS,
}


@dataclass(frozen=True, slots=True)
class Violation:
    """One process that takes more than it was given, and what is done about it.

    gpu: its UUID. pod: None where no pod that is known by name holds the process. client: the process to end where
    `ends`. again: it was signalled before and is still there. message: in plain words, what the process does.
    """

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

    @property
    def ends(self) -> bool:
        return self.response.ends

    @property
    def told(self) -> bool:
        return self.response.tells


def named(client: Client) -> str:
    """A process as people are told of it: its program alone, since arguments may be secret."""
    program = client.command.partition(" ")[0].rpartition("/")[2]
    return f"{client.process} ({printable(program, _PROGRAM)})"


def most_mib(part: GpuShare, policy: "Policy") -> int:
    """What the processes of a grant may use together of one of its GPUs before it is a violation."""
    return part.memory_mib + policy.violations.memory_over_grant.tolerance_mib
