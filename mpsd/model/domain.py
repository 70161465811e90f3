"""The states of a domain (the GPUs of one control daemon), as a table of all transitions, and which
GPUs are of one. What a look saw is at most one event, the most serious."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from mpsd.model.problem import InvalidInput, Problem

if TYPE_CHECKING:  # as in model.grants
    from mpsd.model.grants import Gpu
    from mpsd.model.node_report import DomainReport
    from mpsd.model.policy import Policy, Restarts


class ServerStatus(StrEnum):
    """`get_server_status`; GONE stands for "Server S not found"."""

    ACTIVE = "ACTIVE"
    FAULT = "FAULT"
    GONE = "GONE"


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
    """A state as it reads after `is`, also one that a newer mpsd has reported."""
    return "in fault" if state == State.FAULT else str(state)


def because(what: str, reason: str) -> str:
    """reason: empty where none is known."""
    return f"{what}: {reason}" if reason else what


_REMEDIES: dict[str, str] = {
    State.REFUSED: "mpsd retries by itself once that is fixed",
    State.DOWN: "mpsd restarts it; log/control.log in the domain's folder says why it ended",
    State.WEDGED: (
        "wait: after wedged_limit_s the daemon is restarted, which terminates its programs"
    ),
    State.FAULT: (
        "wait: after fault_grace_s mpsd kills the processes that remain, and the GPU serves again"
    ),
    State.STARTING: "wait; if the reason names an error, fix it",
}


def remedy(state: str, reason: str) -> str:
    """Empty where it serves, is about to, or is drained on request."""
    if state == State.STARTING and not reason:
        return ""
    return _REMEDIES.get(state, "")


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


SERVING = frozenset({State.READY})  # new programs may start
DRAINS = frozenset({State.DRAINING, State.DRAINED})
ENDED = frozenset({State.DRAINED, State.DOWN, State.REFUSED})  # no program of mpsd's is on its GPUs
ANSWERING = frozenset({State.READY, State.FAULT, State.DRAINING})  # commands are answered

# an event, and the state it leads to from others
_MOVES: tuple[tuple[DomainEvent, State, Collection[State]], ...] = (
    (DomainEvent.OBSTACLE_SEEN, State.REFUSED, {State.STARTING, State.DOWN}),
    (DomainEvent.OBSTACLE_GONE, State.STARTING, {State.REFUSED}),
    (DomainEvent.DAEMON_GONE, State.DOWN, set(State) - {State.DOWN}),
    (DomainEvent.DAEMON_STARTED, State.STARTING, {State.DOWN}),
    (DomainEvent.UNANSWERED, State.WEDGED, {State.STARTING, *ANSWERING, State.DRAINED}),
    (DomainEvent.ANSWERED, State.STARTING, {State.WEDGED}),
    (DomainEvent.SETTLED, State.READY, {State.STARTING, State.WEDGED}),
    (DomainEvent.NO_SERVER, State.STARTING, {State.READY, State.FAULT}),
    (DomainEvent.SERVER_FAULT, State.FAULT, {State.STARTING, State.READY, State.WEDGED}),
    (DomainEvent.SERVER_ACTIVE, State.READY, {State.FAULT}),
    (DomainEvent.DRAIN_ASKED, State.DRAINING, set(State) - {State.DOWN, State.REFUSED} - DRAINS),
    (DomainEvent.DRAIN_WITHDRAWN, State.READY, {State.DRAINING}),
    (DomainEvent.DRAIN_WITHDRAWN, State.STARTING, {State.DRAINED}),
    (DomainEvent.NO_CLIENTS, State.DRAINED, {State.DRAINING}),
    (DomainEvent.CLIENTS_AGAIN, State.DRAINING, {State.DRAINED}),
)
TRANSITIONS: dict[tuple[State, DomainEvent], State] = {
    (state, event): target
    for state in State
    for event, target, sources in _MOVES
    if state in sources
}


@dataclass(frozen=True, slots=True)
class DaemonView:
    """What one look at a domain's daemon found. obstacle: why no daemon of mpsd can serve here.
    unanswered: commands in a row without an answer in time. settled: every setting was read back
    since the daemon's start. server: None while it is not known; GONE when there is none, which is
    healthy. no_server: one was started, and did not come up. clients: processes on MPS here; None
    while that is not known. granted: somebody holds a grant here, and may come to the GPU yet."""

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
    """All that this look shows, the most serious first."""
    if seen.obstacle:
        return (DomainEvent.OBSTACLE_SEEN,)
    if not seen.alive:
        return (DomainEvent.DAEMON_GONE, DomainEvent.OBSTACLE_GONE)
    answered = seen.unanswered == 0 and seen.server is not None
    faulty = seen.server is ServerStatus.FAULT
    used = None if seen.clients is None else bool(seen.clients or seen.granted)
    happened = {
        DomainEvent.OBSTACLE_GONE: True,
        DomainEvent.DAEMON_STARTED: True,
        DomainEvent.UNANSWERED: seen.unanswered >= 3,
        DomainEvent.DRAIN_WITHDRAWN: answered and not seen.drain_asked,
        # Before SETTLED, so that a domain that comes up does not serve for a moment.
        DomainEvent.DRAIN_ASKED: answered and seen.drain_asked and seen.settled,
        DomainEvent.NO_SERVER: answered and seen.no_server,
        DomainEvent.SERVER_FAULT: answered and seen.settled and faulty,
        DomainEvent.SETTLED: answered and seen.settled,
        DomainEvent.ANSWERED: answered,
        DomainEvent.SERVER_ACTIVE: answered and not faulty,
        DomainEvent.NO_CLIENTS: answered and used is False,
        DomainEvent.CLIENTS_AGAIN: answered and used,
    }
    return tuple(event for event, so in happened.items() if so)


def next_state(state: State, seen: DaemonView) -> State:
    """The state after this look: at most one step of the table."""
    for event in events_of(seen):
        if (state, event) in TRANSITIONS:
            return TRANSITIONS[state, event]
    return state


def restart_delay_s(restarts_in_a_row: int, restarts: "Restarts") -> float:
    """Before the next start: 0 the first time, then doubling up to the longest."""
    if not restarts_in_a_row:
        return 0.0
    return min(restarts.longest_s, restarts.first_s * 2.0 ** min(restarts_in_a_row - 1, 32))


# -- which GPUs share a control daemon
# One that nothing puts beside others has a daemon to itself, so that a fault or a restart stays
# with it, and a server's limit for ordinal 0 is exact.


class DomainKind(StrEnum):
    """Why the GPUs of a domain share a control daemon."""

    ALONE = "alone"  # it is one GPU
    LISTED = "listed"  # `domains` in the policy names them; they stay together
    JOINED = "joined"  # for a request of several GPUs, until nobody holds a grant there
    # one MIG instance, beside which a CUDA process can have no other GPU
    INSTANCE = "instance"


ON_DEMAND = frozenset({DomainKind.ALONE, DomainKind.JOINED})  # may be joined and divided


@dataclass(frozen=True, slots=True)
class Domain:
    """The GPUs (UUIDs, by ordinal) of one control daemon; its name, `gpu0`, `gpu2-3` or
    `gpu0-mig7`, is that of its folder."""

    name: str
    gpus: tuple[str, ...]
    kind: DomainKind = DomainKind.ALONE


def domain_name(ordinals: Iterable[int]) -> str:
    return "gpu" + "-".join(map(str, sorted(ordinals)))


Groups = tuple[tuple[str, ...], ...]  # of GPUs (UUIDs) that are joined on demand


def domains(gpus: Sequence["Gpu"], policy: "Policy", joined: Groups = ()) -> tuple[Domain, ...]:
    """The domains of a node with these GPUs. InvalidInput where the policy names a GPU that is not
    there. joined: a group with a GPU that is not there, or that the policy lists, does not count. A
    MIG instance is in no group."""
    left = {gpu.ordinal: gpu.uuid for gpu in gpus if not gpu.instance}
    message = f"is no GPU of this node, which has {len(left)}"
    remedy = "name ordinals that nvidia-smi -L lists"
    problems = []
    grouped: list[tuple[list[int], list[str], DomainKind]] = []
    for index, listed in enumerate(policy.domains):
        where = f"domains[{index}]"
        problems += [
            Problem("domain-gpu-missing", where, str(ordinal), message, remedy)
            for ordinal in listed
            if ordinal not in left
        ]
        ordinals = sorted(listed)
        grouped.append((ordinals, [left.pop(n, "") for n in ordinals], DomainKind.LISTED))
    if problems:
        raise InvalidInput("policy.yaml", problems)
    for group in joined:
        ordinals = [ordinal for ordinal, uuid in left.items() if uuid in group]
        if len(ordinals) == len(set(group)):
            ordinals.sort()
            grouped.append((ordinals, [left.pop(n) for n in ordinals], DomainKind.JOINED))
    grouped += [([ordinal], [uuid], DomainKind.ALONE) for ordinal, uuid in left.items()]
    found = [Domain(domain_name(each), tuple(uuids), kind) for each, uuids, kind in sorted(grouped)]
    parts = [gpu for gpu in gpus if gpu.instance]
    found += [Domain(gpu.label, (gpu.uuid,), DomainKind.INSTANCE) for gpu in parts]
    return tuple(found)


def regrouped(
    wanted: Collection[str], now: Iterable[Domain], held: Collection[str]
) -> Groups | None:
    """The GPUs to join on demand so that these are in one domain: the groups of `now` where they
    are already, unless they are a part of a joined domain in which nobody holds a grant, which is
    then divided. None where they cannot be: the policy lists one of them otherwise, or somebody
    holds a grant in their domains. held: the GPUs of all grants.
    """
    asked = set(wanted)
    taken = set(held)
    here = set[str]()
    joined = []
    touched = []
    movable = True
    for domain in now:
        if domain.kind is DomainKind.JOINED:
            joined.append(domain.gpus)
        if not asked.isdisjoint(domain.gpus):
            touched.append(domain)
            here.update(domain.gpus)
            if domain.kind not in ON_DEMAND or not taken.isdisjoint(domain.gpus):
                movable = False
    if not asked <= here:
        return None
    if len(touched) == 1 and (not movable or asked == here):
        return tuple(joined)
    if not movable:
        return None
    kept = [group for group in joined if asked.isdisjoint(group)]
    if len(asked) > 1:
        kept.append(tuple(wanted))
    return tuple(kept)


# why the domain of a MIG instance that was removed is drained
GONE = "its GPU is gone, as after a change of the MIG layout; its programs are waited for"

# What an operator takes out of use: `spec.cordoned` of a node's MPSNode. A domain is drained whole,
# since its GPUs share one control daemon.

ALL = "all"


def read_cordoned(mpsnode: Mapping[str, Any]) -> frozenset[str]:
    """UUIDs, or `all`. Any JSON; what cannot be read cordons nothing."""
    spec = mpsnode.get("spec")
    cordoned = spec.get("cordoned") if isinstance(spec, dict) else None
    if not isinstance(cordoned, list):
        return frozenset()
    return frozenset(one for one in cordoned if isinstance(one, str))


def drains(
    cordoned: frozenset[str],
    domains: "Iterable[Domain | DomainReport]",
    nvidia_mps: str = "",
    driver_upgrade: str = "",
) -> dict[str, str]:
    """By name, the domains to drain, and why: every one while a label of the Node is of an upgrade
    of its driver, driver_upgrade, or starts NVIDIA's own MPS daemon, nvidia_mps."""
    of_all = ""
    if driver_upgrade:
        of_all = f"the Node's label {driver_upgrade} is of a driver upgrade"
    elif nvidia_mps:
        of_all = f"the Node's label {nvidia_mps} starts NVIDIA's own MPS daemon"
    found = {}
    for domain in domains:
        if of_all:
            found[domain.name] = of_all
        elif named := sorted(cordoned.intersection((ALL, *domain.gpus))):
            found[domain.name] = f"cordoned by spec.cordoned of the MPSNode: {', '.join(named)}"
    return found


def unknown_cordons(
    cordoned: frozenset[str], domains: "Iterable[Domain | DomainReport]"
) -> tuple[str, ...]:
    """What is cordoned and is no GPU of this node, such as one that was mistyped."""
    return tuple(sorted(cordoned.difference({ALL}, *(domain.gpus for domain in domains))))
