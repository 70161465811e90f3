"""What a cluster tells of its GPUs, for people and programs: the shape of `kubectl mps -o json`.

One rule: names and units are an interface, those of model.node_status where they mean the same; fields are added, never
renamed.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mpsd.model.conditions import CONDITION, SAID_OF_DOMAINS, Truth
from mpsd.model.domain import Domain, State, unknown_cordons
from mpsd.model.names import HEARTBEAT_S, STALE_S
from mpsd.model.problem import shown
from mpsd.model.quantity import lasting

# What a status shows: a row a GPU, a domain, a grant, whether the node itself tells of them or the cluster.
#
# One rule: what nobody knows is None in a row, and never zero.

if TYPE_CHECKING:  # as in model.grants
    from mpsd.model.node_status import CardStatus, GrantStatus, NodeStatus


@dataclass(frozen=True, slots=True)
class GpuRow:
    """node: empty where it is this machine. domain, state: None where no control daemon holds the GPU.

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


@dataclass(frozen=True, slots=True)
class DomainRow:
    """since: seconds since 1970. suspects: pods that the last faults hit each time, and how many faults that were.

    context_mib: what a context costs there, as the canary measured it. doubt: what else it found, empty where nothing.
    version: of the `mpsd control` that holds it; empty where it does not say. faults: of this boot; last_fault: seconds
    since 1970; None where there was none, or where that is not told.
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


@dataclass(frozen=True, slots=True)
class GrantRow:
    """gpus: their labels. pod: namespace and name; None where a process holds the grant, whose pid is then known.

    id: the pod's uid, empty where that is not known. over: it uses more than it may; False where that is not told.
    memory_mib, used_mib: the most of one GPU. cards: where it has more of one than of another, GPU by GPU as in `gpus`.
    violations: None where nobody tells of them.
    """

    node: str
    id: str
    pod: str | None
    pid: int | None
    gpus: tuple[str, ...]
    memory_mib: int | None
    thread_percent: int | None
    used_mib: int | None
    clients: int | None
    command: str
    ended: bool  # its holder, though not all of its programs
    over: bool = False
    cards: tuple["CardStatus", ...] = ()
    violations: "PodViolations | None" = None


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
            pod=_pod(grant),
            pid=grant.holder_pid,
            gpus=tuple(labels.get(uuid, uuid) for uuid in grant.gpus),
            memory_mib=grant.memory_mib,
            thread_percent=grant.thread_percent,
            used_mib=grant.used_mib,
            clients=grant.clients,
            command=grant.command,
            ended=not grant.holder_alive,
            over=grant.over,
            cards=grant.cards if len({card.memory_mib for card in grant.cards}) > 1 else (),
        )
        for grant in node.grants
    )


def pod_rows(node: "ClusterNode") -> tuple[GrantRow, ...]:
    """The pods of a node of the cluster, as `grant_rows` shows them there."""
    labels = node.labels
    return tuple(
        GrantRow(
            node=pod.node,
            id=pod.uid,
            pod=f"{pod.namespace}/{pod.pod}",
            pid=None,
            gpus=tuple(labels.get(uuid, uuid) for uuid in pod.gpus),
            memory_mib=pod.memory_mib,
            thread_percent=pod.thread_percent,
            used_mib=pod.used_mib,
            clients=pod.clients,
            command="",
            ended=False,
            violations=pod.violations,
        )
        for pod in node.pods or ()
    )


def _pod(grant: "GrantStatus") -> str | None:
    return None if grant.pod is None else f"{grant.namespace}/{grant.pod}"


@dataclass(frozen=True, slots=True)
class ConditionStatus:
    """since: seconds since 1970."""

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
    """at: seconds since 1970. action: what the policy has done about it. namespace, pod: empty where none is known."""

    at: float | None
    kind: str
    action: str
    namespace: str
    pod: str


@dataclass(frozen=True, slots=True)
class PodViolations:
    """The violations of a pod. last: None where it did nothing."""

    counts: tuple[KindCount, ...] = ()
    last: ShownViolation | None = None

    @property
    def total(self) -> int | None:
        return _sum(one.count for one in self.counts)


@dataclass(frozen=True, slots=True)
class ShownViolations:
    """The violations of everybody on a node, pods that are gone too.

    since: seconds since 1970, when its agent began to watch. pods: that have a grant and did something; not all of them
    are reported. last: the newest last.
    """

    since: float | None
    pods: int | None
    counts: tuple[KindCount, ...]
    last: tuple[ShownViolation, ...]

    @property
    def total(self) -> int | None:
        return _sum(one.count for one in self.counts)


@dataclass(frozen=True, slots=True)
class PodStatus:
    """What a pod got, memory on each of its GPUs (UUIDs). used_mib: on the GPU where it uses most.

    violations: None where its node does not tell.
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
    """ready: it has told of late that every GPU it has takes programs; a cordoned one takes none.

    told_at: seconds since 1970, None where it has told nothing yet. stale: too long ago to be believed.
    cordoned: as in the spec, UUIDs or `all`. pods None: the node does not know. unreadable: what is wrong with the
    object, a sentence each. version: of the agent's mpsd; empty where an older one does not say. violations: None
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
        """MPSReady; None where nobody has told it."""
        return next((one for one in self.conditions if one.type == CONDITION), None)

    @property
    def labels(self) -> dict[str, str]:
        """The GPUs' labels by UUID."""
        return {gpu.uuid: gpu.label for gpu in self.gpus}


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """now: seconds since 1970, by the clock of whoever asks."""

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


def gpu_label(uuid: str, index: int | None) -> str:
    return uuid if index is None else f"gpu{index}"


def cordoned_gpus(node: ClusterNode) -> str:
    """What is cordoned, by label; empty where nothing is."""
    labels = node.labels
    return ",".join(sorted(labels.get(one, one) for one in node.cordoned))


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A row a node. Amounts are of all its GPUs; None where one is not known, and where it has told nothing.

    condition: MPSReady; None where nobody has told it. ready_domains: of `domains`. cordoned: by label, with commas.
    violations: since its agent began; violation_at: seconds since 1970, the last one; None where there was none too.
    """

    name: str
    ready: bool
    condition: ConditionStatus | None
    told_at: float | None
    stale: bool
    gpus: int | None
    domains: int | None
    ready_domains: int | None
    granted_mib: int | None
    promised_mib: int | None
    used_mib: int | None
    clients: int | None
    pods: int | None
    cordoned: str
    driver: str
    violations: int | None = None
    violation_at: float | None = None


def node_row(node: ClusterNode) -> NodeRow:
    """The row of a node."""
    gpus, told = node.gpus, node.told_at is not None
    return NodeRow(
        name=node.name,
        ready=node.ready,
        condition=node.condition,
        told_at=node.told_at,
        stale=node.stale,
        gpus=len(gpus) if told else None,
        domains=len(node.domains) if told else None,
        ready_domains=sum(domain.state == State.READY for domain in node.domains) if told else None,
        granted_mib=_sum(gpu.granted_mib for gpu in gpus) if told else None,
        promised_mib=_sum(gpu.promised_mib for gpu in gpus) if told else None,
        used_mib=_sum(gpu.used_mib for gpu in gpus) if told else None,
        clients=_sum(gpu.clients for gpu in gpus) if told else None,
        pods=None if node.pods is None else len(node.pods),
        cordoned=cordoned_gpus(node),
        driver=node.driver,
        violations=node.violations.total if node.violations else None,
        violation_at=node.violations.last[-1].at if node.violations and node.violations.last else None,
    )


def _sum(amounts: Iterable[int | None]) -> int | None:
    """None as soon as one is not known."""
    found = 0
    for amount in amounts:
        if amount is None:
            return None
        found += amount
    return found


# What is to be known of a node of the cluster beside its rows: that it is silent, and what is wrong there.
#
# One rule: a sentence begins with the node's name, for it is read in a list of many nodes.


def silence(node: ClusterNode, now: float) -> str | None:
    """Why what is shown of a node may not be how it is; None where it has told of late."""
    if node.told_at is None:
        return f"{node.name} has told nothing yet; see whether a pod of the DaemonSet mpsd-agent runs there"
    if not node.stale:
        return None
    how_long = f"for {lasting(now - node.told_at)}, and should every {lasting(HEARTBEAT_S)}"
    why = "its agent does not run, or does not reach the API server"
    return f"{node.name} has told nothing {how_long}: {why}; shown is what it told last"


def troubles(node: ClusterNode, now: float) -> Iterator[str]:
    """What is to be known of a node beside its rows and its domains, a sentence each."""
    if silent := silence(node, now):
        yield silent
    for condition in node.conditions:
        if condition.status != Truth.TRUE and condition.reason not in SAID_OF_DOMAINS:
            yield _said(node, condition, now)
    known = [Domain(domain.name, domain.gpus) for domain in node.domains]
    for stranger in unknown_cordons(frozenset(node.cordoned), known) if known else ():
        yield f"{node.name}: spec.cordoned names {shown(stranger)}, which is no GPU of this node"
    if node.unreadable:
        more = f" (and {len(node.unreadable) - 1} more)" if len(node.unreadable) > 1 else ""
        yield f"{node.name}: what it told cannot be read: {node.unreadable[0]}{more}"


def _said(node: ClusterNode, condition: ConditionStatus, now: float) -> str:
    since = "" if condition.since is None else f" for {lasting(now - condition.since)}"
    return f"{node.name}: {condition.type} is {condition.status}{since}, {condition.reason}: {condition.message}"
