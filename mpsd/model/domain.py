"""The states of a domain (the GPUs of one control daemon), as a table.

A transition that is not in the table does not happen; what was seen is turned into at most one event a look,
the most serious first.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from mpsd.model.problem import InvalidInput, Problem


class ServerStatus(StrEnum):
    """`get_server_status`; GONE stands for "Server S not found"."""

    ACTIVE = "ACTIVE"
    FAULT = "FAULT"
    GONE = "GONE"


if TYPE_CHECKING:  # as in model.grants
    from mpsd.model.policy import Restarts

UNANSWERED_BEFORE_WEDGED = 3


class State(StrEnum):
    STARTING = "starting"
    READY = "ready"
    FAULT = "fault"
    WEDGED = "wedged"
    DOWN = "down"
    DRAINING = "draining"
    DRAINED = "drained"
    REFUSED = "refused"


def after_is(state: str) -> str:
    """A state as it reads after `is`, also one that a newer mpsd has told of."""
    return "in fault" if state == State.FAULT else str(state)


_REMEDIES: dict[str, str] = {
    State.REFUSED: "mpsd retries by itself once that is fixed",
    State.DOWN: "it is started again by itself; log/control.log beside its record says why it ended",
    State.WEDGED: "wait: after wedged_limit_s it is restarted, which ends its programs",
    State.FAULT: "wait: mpsd ends what lingers after fault_grace_s, and it serves again",
    State.STARTING: "fix what the reason says; it serves by itself then",
}


def remedy(state: str, reason: str) -> str:
    """What to do about a domain in this state for this reason (empty where none is said).

    Empty where there is nothing to do: it serves, or is about to, or somebody has asked that it does not.
    """
    return _REMEDIES.get(state, "") if reason or state != State.STARTING else ""


class DomainEvent(StrEnum):
    OBSTACLE_SEEN = "something stands in the way"
    OBSTACLE_GONE = "nothing stands in the way any more"
    DAEMON_GONE = "the daemon's process is gone"
    DAEMON_STARTED = "a daemon was started or adopted"
    SETTLED = "settings read back, server up"
    UNANSWERED = "commands not answered, three times"
    ANSWERED = "commands answered again"
    NO_SERVER = "no server comes up"
    SERVER_FAULT = "server FAULT"
    SERVER_ACTIVE = "server ACTIVE or none"
    DRAIN_ASKED = "drain asked"
    DRAIN_WITHDRAWN = "drain withdrawn"
    NO_CLIENTS = "no clients and no grants left"
    CLIENTS_AGAIN = "clients or grants again"


TRANSITIONS: dict[tuple[State, DomainEvent], State] = {
    (State.STARTING, DomainEvent.OBSTACLE_SEEN): State.REFUSED,
    (State.STARTING, DomainEvent.DAEMON_GONE): State.DOWN,
    (State.STARTING, DomainEvent.UNANSWERED): State.WEDGED,
    (State.STARTING, DomainEvent.DRAIN_ASKED): State.DRAINING,
    (State.STARTING, DomainEvent.SERVER_FAULT): State.FAULT,
    (State.STARTING, DomainEvent.SETTLED): State.READY,
    (State.READY, DomainEvent.DAEMON_GONE): State.DOWN,
    (State.READY, DomainEvent.UNANSWERED): State.WEDGED,
    (State.READY, DomainEvent.NO_SERVER): State.STARTING,
    (State.READY, DomainEvent.SERVER_FAULT): State.FAULT,
    (State.READY, DomainEvent.DRAIN_ASKED): State.DRAINING,
    (State.FAULT, DomainEvent.DAEMON_GONE): State.DOWN,
    (State.FAULT, DomainEvent.UNANSWERED): State.WEDGED,
    (State.FAULT, DomainEvent.NO_SERVER): State.STARTING,
    (State.FAULT, DomainEvent.SERVER_ACTIVE): State.READY,
    (State.FAULT, DomainEvent.DRAIN_ASKED): State.DRAINING,
    (State.WEDGED, DomainEvent.DAEMON_GONE): State.DOWN,
    (State.WEDGED, DomainEvent.DRAIN_ASKED): State.DRAINING,
    (State.WEDGED, DomainEvent.SERVER_FAULT): State.FAULT,
    (State.WEDGED, DomainEvent.SETTLED): State.READY,
    (State.WEDGED, DomainEvent.ANSWERED): State.STARTING,
    (State.DRAINING, DomainEvent.DAEMON_GONE): State.DOWN,
    (State.DRAINING, DomainEvent.UNANSWERED): State.WEDGED,
    (State.DRAINING, DomainEvent.DRAIN_WITHDRAWN): State.READY,
    (State.DRAINING, DomainEvent.NO_CLIENTS): State.DRAINED,
    (State.DRAINED, DomainEvent.DAEMON_GONE): State.DOWN,
    (State.DRAINED, DomainEvent.UNANSWERED): State.WEDGED,
    (State.DRAINED, DomainEvent.DRAIN_WITHDRAWN): State.STARTING,
    (State.DRAINED, DomainEvent.CLIENTS_AGAIN): State.DRAINING,
    (State.DOWN, DomainEvent.OBSTACLE_SEEN): State.REFUSED,
    (State.DOWN, DomainEvent.DAEMON_STARTED): State.STARTING,
    (State.REFUSED, DomainEvent.OBSTACLE_GONE): State.STARTING,
    (State.REFUSED, DomainEvent.DAEMON_GONE): State.DOWN,
}

SERVING = frozenset({State.READY})  # new programs may start
ANSWERING = frozenset({State.READY, State.FAULT, State.DRAINING})  # commands are answered


@dataclass(frozen=True, slots=True)
class DaemonView:
    """What one look at a domain's daemon found.

    obstacle: why no daemon of ours can serve here; empty when nothing is in the way.
    unanswered: commands in a row that got no answer within their deadline.
    settled: every setting was read back since the daemon's start.
    server: None while it is not known (no answer yet); GONE when there is no server, which is healthy.
    no_server: one was started, and did not come up.
    clients: processes on MPS here; None while it is not known.
    granted: somebody holds a grant here, and may come to the GPU yet.
    """

    alive: bool
    obstacle: str = ""
    unanswered: int = 0
    settled: bool = False
    server: ServerStatus | None = None
    no_server: bool = False
    clients: int | None = None
    granted: bool = False
    drain_asked: bool = False


def events_of(seen: DaemonView) -> tuple[DomainEvent, ...]:
    """Everything that this look says, the most serious first."""
    if seen.obstacle:
        return (DomainEvent.OBSTACLE_SEEN,)
    if not seen.alive:
        return (DomainEvent.DAEMON_GONE, DomainEvent.OBSTACLE_GONE)
    said = [DomainEvent.OBSTACLE_GONE, DomainEvent.DAEMON_STARTED]
    if seen.unanswered >= UNANSWERED_BEFORE_WEDGED:
        said.append(DomainEvent.UNANSWERED)
    elif seen.unanswered == 0 and seen.server is not None:
        said.extend(_events_of_answers(seen))
    return tuple(said)


def _events_of_answers(seen: DaemonView) -> list[DomainEvent]:
    said = []
    if not seen.drain_asked:
        said.append(DomainEvent.DRAIN_WITHDRAWN)
    elif seen.settled:  # before SETTLED, so that a domain that comes up does not serve for a moment
        said.append(DomainEvent.DRAIN_ASKED)
    if seen.no_server:
        said.append(DomainEvent.NO_SERVER)
    if seen.settled and seen.server is ServerStatus.FAULT:
        said.append(DomainEvent.SERVER_FAULT)
    if seen.settled:
        said.append(DomainEvent.SETTLED)
    said.append(DomainEvent.ANSWERED)
    if seen.server is not ServerStatus.FAULT:
        said.append(DomainEvent.SERVER_ACTIVE)
    if seen.clients == 0 and not seen.granted:
        said.append(DomainEvent.NO_CLIENTS)
    elif seen.clients is not None:
        said.append(DomainEvent.CLIENTS_AGAIN)
    return said


def next_state(state: State, seen: DaemonView) -> State:
    """The state after this look: at most one step of the table."""
    for event in events_of(seen):
        if (state, event) in TRANSITIONS:
            return TRANSITIONS[state, event]
    return state


def restart_delay_s(restarts_in_a_row: int, restarts: "Restarts") -> float:
    """Seconds to wait before the next start: none the first time, then doubling up to the longest."""
    if restarts_in_a_row == 0:
        return 0.0
    doublings = min(restarts_in_a_row - 1, 32)
    return min(restarts.longest_s, restarts.first_s * 2.0**doublings)


# -- which GPUs share a control daemon ---------------------------------------------------------------------------------
#
# A GPU that the policy does not put beside others has a daemon to itself, so that a fault or a restart stays
# with it, and a server's limit for ordinal 0 is exact.

if TYPE_CHECKING:  # as in model.grants
    from mpsd.model.grants import Gpu
    from mpsd.model.policy import Policy


@dataclass(frozen=True, slots=True)
class Domain:
    """The GPUs (UUIDs, by ordinal) of one control daemon; its name is that of its folder, `gpu0` or `gpu2-3`."""

    name: str
    gpus: tuple[str, ...]


def domains(gpus: Sequence["Gpu"], policy: "Policy") -> tuple[Domain, ...]:
    """The domains of a node with these GPUs. InvalidInput where the policy names a GPU that is not there."""
    by_ordinal = {gpu.ordinal: gpu for gpu in gpus}
    problems = [
        Problem(
            "domain-gpu-missing",
            f"domains[{index}]",
            str(ordinal),
            f"is no GPU of this node, which has {len(gpus)}",
            "name ordinals that nvidia-smi -L lists",
        )
        for index, group in enumerate(policy.domains)
        for ordinal in group
        if ordinal not in by_ordinal
    ]
    if problems:
        raise InvalidInput("policy.yaml", problems)
    grouped = [tuple(sorted(group)) for group in policy.domains]
    alone = [(ordinal,) for ordinal in by_ordinal if not any(ordinal in group for group in grouped)]
    return tuple(
        Domain(name="gpu" + "-".join(map(str, ordinals)), gpus=tuple(by_ordinal[n].uuid for n in ordinals))
        for ordinals in sorted([*grouped, *alone])
    )


# What an operator takes out of use: `spec.cordoned` of a node's MPSNode.
#
# A domain is drained whole, since its GPUs share one control daemon.

ALL = "all"


def read_cordoned(mpsnode: Mapping[str, Any]) -> frozenset[str]:
    """UUIDs, or `all`. Any JSON; what cannot be read cordons nothing."""
    spec = mpsnode.get("spec")
    cordoned = spec.get("cordoned") if isinstance(spec, dict) else None
    return frozenset(one for one in cordoned if isinstance(one, str)) if isinstance(cordoned, list) else frozenset()


def drains(cordoned: frozenset[str], domains: Iterable[Domain]) -> dict[str, str]:
    """The domains to drain, by name, each with the reason in words."""
    reasons = {}
    for domain in domains:
        named = sorted(cordoned.intersection((ALL, *domain.gpus)))
        if named:
            reasons[domain.name] = f"cordoned by spec.cordoned of the MPSNode: {', '.join(named)}"
    return reasons


def unknown_cordons(cordoned: frozenset[str], domains: Sequence[Domain]) -> tuple[str, ...]:
    """What is cordoned and is no GPU of this node, such as one that was mistyped."""
    here = {ALL, *(uuid for domain in domains for uuid in domain.gpus)}
    return tuple(sorted(cordoned - here))
