"""The GPUs of a node or a cluster, their domains and who holds them, as shown: the shape of
`kubectl mps -o json`.

Names and units are an interface, those of model.node_status where they mean the same; fields are
added, never renamed. What is not known is None, and never zero.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from mpsd.model.conditions import CONDITION, REASONS_OF_DOMAINS, Truth
from mpsd.model.domain import unknown_cordons
from mpsd.model.names import HEARTBEAT_S, STALE_S
from mpsd.model.problem import shortened, shown
from mpsd.model.times import lasting

if TYPE_CHECKING:  # as in model.grants
    from mpsd.model.mpsnode import ReportedDomain, ReportedGpu
    from mpsd.model.node_status import CardStatus, DomainStatus, GpuStatus, NodeStatus


class GpuRow(msgspec.Struct, frozen=True, gc=False):
    """A GPU. node: empty where it is this machine. domain, state: None where no control daemon
    holds the GPU. cordoned: an operator has asked that it takes no new pods, or that a GPU of its
    domain does.
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
    """A control daemon and its GPUs. since: seconds since 1970. suspects: pods that each of the
    last faults affected, and how many faults that were. causes: whose end is the last fault's
    likely cause, and how it ended. context_mib: what a context costs there, as the canary measured
    it. doubt: what else it found, empty where nothing. version: of the `mpsd control` that holds
    it; empty where it is not reported. faults: of this boot; last_fault: seconds since 1970; None
    where there was none, or where it is not reported. kind: `alone`, `listed` by the policy, or
    `joined` on demand; empty where it is not reported.
    """

    node: str
    name: str
    gpus: tuple[str, ...]
    state: str
    since: float | None
    reason: str
    restarts: int | None
    suspects: tuple[tuple[str, int | None], ...] = ()
    causes: tuple[str, ...] = ()
    context_mib: int | None = None
    doubt: str = ""
    version: str = ""
    faults: int | None = None
    last_fault: float | None = None
    kind: str = ""


class GrantRow(msgspec.Struct, frozen=True):
    """Who holds a part of which GPUs, on this machine or on a node of a cluster.

    id: the grant's on this machine, the pod's uid in a cluster; empty where that is not known.
    gpus: UUIDs, and their labels. pod: namespace and name. container: its name, or the beginning of
    its id. pid: of the program that holds the grant. memory_mib, used_mib: the most of one GPU.
    cards: GPU by GPU, where that is reported. ended: its holder is gone, though not all of its
    programs. no_cgroup: mpsd made none for this program. over: it uses more than it may; False
    where that is not reported. violations: None where they are not reported. claim: namespace and
    name of the resource claim that it is of; None where it is of none. shared_with: the pods that
    hold the claim beside `pod`. priority: of its clients, 0 or 1, which is below normal.
    """

    node: str
    id: str
    gpus: tuple[str, ...]
    labels: tuple[str, ...]
    pod: str | None
    memory_mib: int | None
    thread_percent: int | None
    used_mib: int | None
    clients: int | None
    reserved_percent: int | None = None
    container: str | None = None
    pid: int | None = None
    command: str = ""
    ended: bool = False
    no_cgroup: bool = False
    over: bool = False
    cards: tuple["CardStatus", ...] = ()
    violations: "PodViolations | None" = None
    claim: str | None = None
    shared_with: tuple[str, ...] = ()
    priority: int = 0


def gpu_row(
    gpu: "GpuStatus | ReportedGpu",
    label: str,
    name: str,
    domain: DomainRow | None,
    node: str = "",
    *,
    cordoned: bool,
) -> GpuRow:
    return GpuRow(
        node=node,
        uuid=gpu.uuid or "",
        label=label,
        name=name,
        domain=domain.name if domain else None,
        state=domain.state if domain else None,
        cordoned=cordoned,
        restarts=domain.restarts if domain else None,
        memory_mib=gpu.memory_mib,
        promised_mib=gpu.promised_mib,
        granted_mib=gpu.granted_mib,
        granted_percent=gpu.granted_percent,
        used_mib=gpu.used_mib,
        clients=gpu.clients,
        context_mib=domain.context_mib if domain else None,
        promised_percent=gpu.promised_percent,
        promised_clients=gpu.promised_clients,
    )


def domain_row(
    domain: "DomainStatus | ReportedDomain",
    since: float | None,
    last_fault: float | None,
    node: str = "",
) -> DomainRow:
    """since, last_fault: seconds since 1970."""
    canary, faults = domain.canary, domain.faults
    return DomainRow(
        node=node,
        name=domain.name or "",
        gpus=tuple(domain.gpus or ()),
        state=str(domain.state or "unknown"),
        since=since,
        reason=domain.reason or "",
        restarts=domain.restarts,
        suspects=tuple(
            [(one.pod or "", one.faults) for one in (faults.suspects if faults else None) or ()]
        ),
        causes=tuple(
            [
                f"{one.pod or one.program}: {one.how}"
                for one in (faults.causes if faults else None) or ()
            ]
        ),
        context_mib=canary.context_mib if canary else None,
        doubt=(canary.problem or canary.warning or "") if canary else "",
        version=domain.version or "",
        faults=(faults.count or None) if faults else None,
        last_fault=last_fault,
        kind=domain.kind or "",
    )


def ended_before(causes: Iterable[str]) -> str:
    """Whose ends are a fault's likely cause, in words."""
    who = shortened([*dict.fromkeys(causes)])
    return f"likely cause, ended just before it: {who}" if who else "its cause is not known"


def gpu_rows(node: "NodeStatus") -> tuple[GpuRow, ...]:
    """The GPUs of this machine. None is `cordoned`: here its state shows that."""
    domains = {domain.name: domain for domain in domain_rows(node)}
    return tuple(
        gpu_row(gpu, gpu.label, gpu.name, domains.get(gpu.domain or ""), cordoned=False)
        for gpu in node.gpus
    )


def domain_rows(node: "NodeStatus") -> tuple[DomainRow, ...]:
    return tuple(domain_row(domain, domain.since, domain.faults.last) for domain in node.domains)


def pods_in_words(pod: str, shared_with: Sequence[str]) -> str:
    """Who holds a grant: `default/train-0`, or `default/train-0 and 2 more` where several pods
    share a claim."""
    return shortened((pod, *shared_with), 1)


def grant_rows(node: "NodeStatus") -> tuple[GrantRow, ...]:
    labels = {gpu.uuid: gpu.label for gpu in node.gpus}
    return tuple(
        GrantRow(
            "",
            grant.id,
            grant.gpus,
            tuple(labels.get(uuid, uuid) for uuid in grant.gpus),
            None if grant.pod is None else f"{grant.namespace}/{grant.pod}",
            grant.memory_mib,
            grant.thread_percent,
            grant.used_mib,
            grant.clients,
            reserved_percent=max((card.reserved_percent for card in grant.cards), default=None),
            container=grant.container_name or grant.container[:12] if grant.container else None,
            pid=grant.holder_pid,
            command=grant.command,
            ended=not grant.holder_alive,
            no_cgroup=grant.cgroup == "",
            over=grant.over,
            cards=grant.cards,
            claim=grant.claim,
            shared_with=grant.shared_with,
            priority=grant.priority,
        )
        for grant in node.grants
    )


def pod_rows(node: "ClusterNode") -> tuple[GrantRow, ...]:
    """The pods of a node of the cluster, as `grant_rows` has those of this machine."""
    labels = node.labels
    rows = []
    for pod in node.pods or ():
        own, name = (
            tuple([labels.get(uuid, uuid) for uuid in pod.gpus]),
            f"{pod.namespace}/{pod.pod}",
        )
        amounts = (
            pod.memory_mib,
            pod.thread_percent,
            pod.used_mib,
            pod.clients,
            pod.reserved_percent,
        )
        row = GrantRow(
            pod.node,
            pod.uid,
            pod.gpus,
            own,
            name,
            *amounts,
            violations=pod.violations,
            claim=pod.claim,
        )
        if pod.shared_with or pod.priority:
            row = msgspec.structs.replace(row, shared_with=pod.names[1:], priority=pod.priority)
        rows.append(row)
    return tuple(rows)


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
    """A violation. at: seconds since 1970. action: what the policy has done. namespace, pod: empty
    where not known."""

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


@dataclass(frozen=True, slots=True)
class ShownViolations:
    """The violations of everybody on a node, pods that are gone too. since: seconds since 1970,
    when its agent began to watch. pods: that have a grant and broke their limits; not all of them
    are reported. last: the newest last.
    """

    since: float | None
    pods: int | None
    counts: tuple[KindCount, ...]
    last: tuple[ShownViolation, ...]


class SharingPod(msgspec.Struct, frozen=True, gc=False):
    """A pod that holds a resource claim beside the first one. uid: empty where it is not known."""

    namespace: str
    pod: str
    uid: str


class PodStatus(msgspec.Struct, frozen=True, gc=False):
    """What a pod got, memory on each of its GPUs (UUIDs). used_mib: on the GPU where it uses most.
    violations: None where its node does not report them. claim: the resource claim (namespace and
    name) that it got it by; None where it is by none. shared_with: the other pods of the claim,
    which hold the same. priority: as in GrantRow. memory_cap: `cgroup` where memory limits of its
    cgroups are in force; empty where that is not reported.
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
    claim: str | None = None
    claim_uid: str = ""
    shared_with: tuple[SharingPod, ...] = ()
    priority: int = 0
    memory_cap: str = ""

    @property
    def pods(self) -> "tuple[PodStatus, ...]":
        """Itself, and the same with each other pod of its claim."""
        other = partial(msgspec.structs.replace, self)
        return (
            self,
            *[other(namespace=one.namespace, pod=one.pod, uid=one.uid) for one in self.shared_with],
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Namespace and name of each of these."""
        return tuple([f"{one.namespace}/{one.pod}" for one in self.pods])


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node of a cluster. ready: it has reported of late that every GPU takes programs; a cordoned
    one takes none. told_at: of its last report, seconds since 1970, None where there is none.
    stale: too long ago to be believed. cordoned: as in the spec, UUIDs or `all`. pods None: the
    node does not know. unreadable: what is wrong with the object, a sentence each. version: of the
    agent's mpsd; empty where an older one does not report it. violations: None likewise.
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


def total(amounts: Iterable[int | None]) -> int | None:
    """The sum; None as soon as one is not known."""
    found = [*amounts]
    return None if None in found else sum(filter(None, found))


# Sentences about a node; each begins with its name, for it is read in a list of many nodes.


def silence(node: ClusterNode, now: float) -> str | None:
    """Why what is shown of a node may be out of date; None where it has reported of late."""
    if node.told_at is None:
        return (
            f"{node.name} has reported nothing yet; check that a pod of the DaemonSet mpsd-agent"
            " runs there"
        )
    if not node.stale:
        return None
    silent = (
        f"has reported nothing for {lasting(now - node.told_at)} (expected every"
        f" {lasting(HEARTBEAT_S)})"
    )
    why = "its agent does not run, or does not reach the API server"
    return f"{node.name} {silent}: {why}; its last report is shown"


def troubles(node: ClusterNode, now: float) -> Iterator[str]:
    """What an operator should know of a node beside its rows and its domains, a sentence each."""
    if silent := silence(node, now):
        yield silent
    for one in node.conditions:
        if one.status != Truth.TRUE and one.reason not in REASONS_OF_DOMAINS:
            since = "" if one.since is None else f" for {lasting(now - one.since)}"
            yield f"{node.name}: {one.type} is {one.status}{since}, {one.reason}: {one.message}"
    for stranger in unknown_cordons(frozenset(node.cordoned), node.domains) if node.domains else ():
        yield f"{node.name}: spec.cordoned names {shown(stranger)}, which is not a GPU of this node"
    if node.unreadable:
        more = f" (and {len(node.unreadable) - 1} more)" if len(node.unreadable) > 1 else ""
        yield f"{node.name}: its MPSNode cannot be read: {node.unreadable[0]}{more}"
