"""The GPUs of a node or a cluster, their domains and who holds them, as shown: the shape of `kubectl mps -o json`.

Names and units are an interface, those of model.node_status where they mean the same; fields are added, never renamed.
What is not known is None, and never zero.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from mpsd.model.conditions import CONDITION, REASONS_OF_DOMAINS, Truth
from mpsd.model.domain import Domain, State, unknown_cordons
from mpsd.model.names import HEARTBEAT_S, STALE_S
from mpsd.model.problem import shown
from mpsd.model.times import lasting

if TYPE_CHECKING:  # as in model.grants
    from mpsd.model.node_status import CardStatus, NodeStatus


class GpuRow(msgspec.Struct, frozen=True, gc=False):
    """A GPU. node: empty where it is this machine. domain, state: None where no control daemon holds the GPU.

    cordoned: an operator has asked that it takes no new pods, or that a GPU of its domain does.
    """

    node: str
    uuid: str
    label: str
    name: str
    domain: str | None
    state: str | None
    cordoned: bool
    restarts: int | None
    memory_mib: int | None
    promised_mib: int | None
    granted_mib: int | None
    granted_percent: int | None
    used_mib: int | None
    clients: int | None
    context_mib: int | None = None
    promised_percent: int | None = None
    promised_clients: int | None = None


class DomainRow(msgspec.Struct, frozen=True, gc=False):
    """A control daemon and its GPUs. since: seconds since 1970. suspects: pods that each of the last faults affected,
    and how many faults that were.

    context_mib: what a context costs there, as the canary measured it. doubt: what else it found, empty where nothing.
    version: of the `mpsd control` that holds it; empty where it is not reported. faults: of this boot; last_fault:
    seconds since 1970; None where there was none, or where it is not reported.
    """

    node: str
    name: str
    gpus: tuple[str, ...]
    state: str
    since: float | None
    reason: str
    restarts: int | None
    suspects: tuple[tuple[str, int | None], ...] = ()
    context_mib: int | None = None
    doubt: str = ""
    version: str = ""
    faults: int | None = None
    last_fault: float | None = None


class GrantRow(msgspec.Struct, frozen=True):
    """Who holds a part of which GPUs, on this machine or on a node of a cluster.

    id: the grant's on this machine, the pod's uid in a cluster; empty where that is not known. gpus: UUIDs, and their
    labels. pod: namespace and name. container: its name, or the beginning of its id. pid: of the program that holds the
    grant. memory_mib, used_mib: the most of one GPU. cards: GPU by GPU, where that is reported. ended: its holder is
    gone, though not all of its programs. over: it uses more than it may; False where that is not reported. violations:
    None where they are not reported.
    """

    node: str
    id: str
    gpus: tuple[str, ...]
    labels: tuple[str, ...]
    pod: str | None
    memory_mib: int | None
    thread_percent: int | None
    reserved_percent: int | None
    used_mib: int | None
    clients: int | None
    container: str | None = None
    pid: int | None = None
    command: str = ""
    ended: bool = False
    over: bool = False
    cards: tuple["CardStatus", ...] = ()
    violations: "PodViolations | None" = None

    @property
    def is_uneven(self) -> bool:
        """Whether it has more of one GPU than of another."""
        return len({card.memory_mib for card in self.cards}) > 1


def gpu_rows(node: "NodeStatus") -> tuple[GpuRow, ...]:
    """The GPUs of this machine."""
    domains = {domain.name: domain for domain in node.domains}
    rows = []
    for gpu in node.gpus:
        domain = domains.get(gpu.domain or "")
        rows.append(
            GpuRow(
                node="",
                uuid=gpu.uuid,
                label=gpu.label,
                name=gpu.name,
                domain=gpu.domain,
                state=domain.state.value if domain else None,
                cordoned=False,  # the state says so here
                restarts=domain.restarts if domain else None,
                memory_mib=gpu.memory_mib,
                promised_mib=gpu.promised_mib,
                granted_mib=gpu.granted_mib,
                granted_percent=gpu.granted_percent,
                used_mib=gpu.used_mib,
                clients=gpu.clients,
                context_mib=domain.canary.context_mib if domain and domain.canary else None,
                promised_percent=gpu.promised_percent,
                promised_clients=gpu.promised_clients,
            )
        )
    return tuple(rows)


def domain_rows(node: "NodeStatus") -> tuple[DomainRow, ...]:
    """The domains of this machine."""
    return tuple(
        DomainRow(
            node="",
            name=domain.name,
            gpus=domain.gpus,
            state=domain.state.value,
            since=domain.since,
            reason=domain.reason,
            restarts=domain.restarts,
            suspects=tuple((one.pod, one.faults) for one in domain.faults.suspects),
            context_mib=domain.canary.context_mib if domain.canary else None,
            doubt=(domain.canary.problem or domain.canary.warning) if domain.canary else "",
            version=domain.version,
            faults=domain.faults.count or None,
            last_fault=domain.faults.last,
        )
        for domain in node.domains
    )


def grant_rows(node: "NodeStatus") -> tuple[GrantRow, ...]:
    """The grants of this machine."""
    labels = {gpu.uuid: gpu.label for gpu in node.gpus}
    return tuple(
        GrantRow(
            node="",
            id=grant.id,
            gpus=grant.gpus,
            labels=tuple(labels.get(uuid, uuid) for uuid in grant.gpus),
            pod=None if grant.pod is None else f"{grant.namespace}/{grant.pod}",
            memory_mib=grant.memory_mib,
            thread_percent=grant.thread_percent,
            reserved_percent=max((card.reserved_percent for card in grant.cards), default=None),
            used_mib=grant.used_mib,
            clients=grant.clients,
            container=grant.container_name or grant.container[:12] if grant.container else None,
            pid=grant.holder_pid,
            command=grant.command,
            ended=not grant.holder_alive,
            over=grant.over,
            cards=grant.cards,
        )
        for grant in node.grants
    )


def pod_rows(node: "ClusterNode") -> tuple[GrantRow, ...]:
    """The pods of a node of the cluster, as `grant_rows` has those of this machine."""
    labels = node.labels
    return tuple(
        [
            GrantRow(
                node=pod.node,
                id=pod.uid,
                gpus=pod.gpus,
                labels=tuple([labels.get(uuid, uuid) for uuid in pod.gpus]),
                pod=f"{pod.namespace}/{pod.pod}",
                memory_mib=pod.memory_mib,
                thread_percent=pod.thread_percent,
                reserved_percent=pod.reserved_percent,
                used_mib=pod.used_mib,
                clients=pod.clients,
                violations=pod.violations,
            )
            for pod in node.pods or ()
        ]
    )


@dataclass(frozen=True, slots=True)
class ConditionStatus:
    """A condition of an MPSNode. since: seconds since 1970."""

    type: str
    status: str
    reason: str
    message: str
    since: float | None


@dataclass(frozen=True, slots=True)
class KindCount:
    """How often a violation was seen. kind: as in the policy, or one of a newer agent."""

    kind: str
    count: int | None


@dataclass(frozen=True, slots=True)
class ShownViolation:
    """A violation. at: seconds since 1970. action: what the policy has done about it. namespace, pod: empty where none
    is known.
    """

    at: float | None
    kind: str
    action: str
    namespace: str
    pod: str


@dataclass(frozen=True, slots=True)
class PodViolations:
    """The violations of a pod. last: None where there was none."""

    counts: tuple[KindCount, ...] = ()
    last: ShownViolation | None = None

    @property
    def total(self) -> int | None:
        return total(one.count for one in self.counts)


@dataclass(frozen=True, slots=True)
class ShownViolations:
    """The violations of everybody on a node, pods that are gone too.

    since: seconds since 1970, when its agent began to watch. pods: that have a grant and broke their limits; not all of
    them are reported. last: the newest last.
    """

    since: float | None
    pods: int | None
    counts: tuple[KindCount, ...]
    last: tuple[ShownViolation, ...]

    @property
    def total(self) -> int | None:
        return total(one.count for one in self.counts)


class PodStatus(msgspec.Struct, frozen=True, gc=False):
    """What a pod got, memory on each of its GPUs (UUIDs). used_mib: on the GPU where it uses most.

    violations: None where its node does not report them.
    """

    node: str
    namespace: str
    pod: str
    uid: str
    gpus: tuple[str, ...]
    memory_mib: int | None
    thread_percent: int | None
    reserved_percent: int | None
    used_mib: int | None
    clients: int | None
    violations: PodViolations | None = None


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node of a cluster. ready: it has reported of late that every GPU takes programs; a cordoned one takes none.

    told_at: of its last report, seconds since 1970, None where there is none. stale: too long ago to be believed.
    cordoned: as in the spec, UUIDs or `all`. pods None: the node does not know. unreadable: what is wrong with the
    object, a sentence each. version: of the agent's mpsd; empty where an older one does not report it. violations: None
    likewise.
    """

    name: str
    ready: bool
    told_at: float | None
    stale: bool
    driver: str
    cordoned: tuple[str, ...]
    conditions: tuple[ConditionStatus, ...]
    gpus: tuple[GpuRow, ...]
    domains: tuple[DomainRow, ...]
    pods: tuple[PodStatus, ...] | None
    unreadable: tuple[str, ...]
    version: str = ""
    violations: ShownViolations | None = None

    @property
    def condition(self) -> ConditionStatus | None:
        """MPSReady; None where it is not reported."""
        return next((one for one in self.conditions if one.type == CONDITION), None)

    @property
    def labels(self) -> dict[str, str]:
        """The GPUs' labels by UUID."""
        return {gpu.uuid: gpu.label for gpu in self.gpus}

    @property
    def cordoned_labels(self) -> str:
        """What is cordoned, by label; empty where nothing is."""
        labels = self.labels
        return ",".join(sorted(labels.get(one, one) for one in self.cordoned))


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The nodes of a cluster. now: seconds since 1970, by the clock of whoever asks."""

    now: float
    nodes: tuple[ClusterNode, ...]

    @property
    def ready(self) -> bool:
        return bool(self.nodes) and all(node.ready for node in self.nodes)


def is_stale(told_at: float | None, now: float) -> bool:
    return told_at is not None and now - told_at > STALE_S


def is_ready(
    told_at: float | None, stale: bool, states: Sequence[str | None], conditions: Iterable[ConditionStatus]
) -> bool:
    """states: of the domain of each GPU, None where no control daemon holds it."""
    return (
        told_at is not None
        and not stale
        and bool(states)
        and all(state == State.READY for state in states)
        and any(one.type == CONDITION and one.status == Truth.TRUE for one in conditions)
    )


def total(amounts: Iterable[int | None]) -> int | None:
    """The sum; None as soon as one is not known."""
    found = 0
    for amount in amounts:
        if amount is None:
            return None
        found += amount
    return found


# Sentences about a node; each begins with its name, for it is read in a list of many nodes.


def silence(node: ClusterNode, now: float) -> str | None:
    """Why what is shown of a node may be out of date; None where it has reported of late."""
    if node.told_at is None:
        return f"{node.name} has reported nothing yet; see whether a pod of the DaemonSet mpsd-agent runs there"
    if not node.stale:
        return None
    how_long = f"for {lasting(now - node.told_at)}, and should every {lasting(HEARTBEAT_S)}"
    why = "its agent does not run, or does not reach the API server"
    return f"{node.name} has reported nothing {how_long}: {why}; its last report is shown"


def troubles(node: ClusterNode, now: float) -> Iterator[str]:
    """What an operator should know of a node beside its rows and its domains, a sentence each."""
    if silent := silence(node, now):
        yield silent
    for one in node.conditions:
        if one.status != Truth.TRUE and one.reason not in REASONS_OF_DOMAINS:
            since = "" if one.since is None else f" for {lasting(now - one.since)}"
            yield f"{node.name}: {one.type} is {one.status}{since}, {one.reason}: {one.message}"
    known = [Domain(domain.name, domain.gpus) for domain in node.domains]
    for stranger in unknown_cordons(frozenset(node.cordoned), known) if known else ():
        yield f"{node.name}: spec.cordoned names {shown(stranger)}, which is no GPU of this node"
    if node.unreadable:
        more = f" (and {len(node.unreadable) - 1} more)" if len(node.unreadable) > 1 else ""
        yield f"{node.name}: its MPSNode cannot be read: {node.unreadable[0]}{more}"
