"""What a cluster tells of its GPUs, for people and programs: the shape of `kubectl mps -o json`.

One rule: names and units are an interface, those of model.node_status where they mean the same; fields are added, never
renamed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mpsd.model.conditions import CONDITION, Truth
from mpsd.model.domain_states import State
from mpsd.model.heartbeat import STALE_S
from mpsd.model.status_rows import DomainRow, GpuRow

Seconds = Callable[[str], float | None]  # since 1970, of a time as Kubernetes writes it; None for any other text


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
