"""What a cluster tells of its GPUs, for people and programs: the shape of `kubectl mps -o json`.

One rule: names and units are an interface, those of core.node_status where they mean the same; fields are added, never
renamed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mpsd.core.domain_states import State
from mpsd.core.heartbeat import STALE_S
from mpsd.core.mps_ready import CONDITION, Truth
from mpsd.core.status_rows import DomainRow, GpuRow
from mpsd.core.violations_told import NodeViolations, PodViolations

_LARGEST = 2**63 - 1  # an int64, as the definition has it

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
    violations: NodeViolations | None = None

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


# -- what the two ways of reading an MPSNode have in common (core.mpsnode_reading, core.node_rows) ---------------------


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


def amount(found: int | None) -> int | None:
    """None for what is none, such as -1."""
    return found if found is not None and 0 <= found <= _LARGEST else None


def gpu_label(uuid: str, index: int | None) -> str:
    return uuid if index is None else f"gpu{index}"


def cordoned_gpus(node: ClusterNode) -> str:
    """What is cordoned, by label; empty where nothing is."""
    labels = node.labels
    return ",".join(sorted(labels.get(one, one) for one in node.cordoned))
