"""Whether GPUs of a node are empty, which pods are left, and which of them a drain may evict.

What is unknown is not empty, and the report of a silent node is not believed. As `kubectl drain`, it evicts no pod that
would be back on the same node at once: those of DaemonSets, and static ones.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mpsd.model.cluster_status import ClusterNode, GpuRow, PodStatus
from mpsd.model.domain import ALL, State
from mpsd.model.quantity import gib
from mpsd.model.times import lasting
from mpsd.status.rules.cordon import CordonChange

# No daemon of ours runs there, so nobody waits for a drain: what is there is counted instead.
_WITHOUT_DAEMON = frozenset({None, State.REFUSED.value, State.DOWN.value})

_MIRROR = "kubernetes.io/config.mirror"  # kubelet's, on what stands for a static pod in the API
_LONGEST_PAUSE_S = 10.0
_OFFERED = frozenset({State.READY.value, State.STARTING.value, State.FAULT.value})  # where devices are Healthy


def are_empty(node: ClusterNode, gpus: Collection[str]) -> bool:
    """Whether nobody could lose anything by the end of these GPUs' control daemons. gpus: UUIDs."""
    told = node.told_at is not None and not node.stale
    return told and all(_is_empty(node, gpu) for gpu in node.gpus if gpu.uuid in gpus)


def _is_empty(node: ClusterNode, gpu: GpuRow) -> bool:
    if gpu.state == State.DRAINED:
        return True
    nobody = node.pods is not None and not holders(node, [gpu.uuid])
    return gpu.state in _WITHOUT_DAEMON and gpu.clients == 0 and nobody


def holders(node: ClusterNode, gpus: Collection[str]) -> tuple[PodStatus, ...]:
    """The pods that hold something of these GPUs."""
    return tuple(pod for pod in node.pods or () if not set(pod.gpus).isdisjoint(gpus))


def what_is_left(node: ClusterNode, gpus: Collection[str]) -> str:
    """Each GPU's state, and the pods that are there with what they hold, in one line."""
    labels = node.labels
    rows = [gpu for gpu in node.gpus if gpu.uuid in gpus]
    each = ", ".join(_gpu(gpu) for gpu in rows) or _none(node)
    if node.pods is None:
        return f"{each}; which pods are there {node.name} does not know"
    pods = holders(node, gpus)
    left = ", ".join(holding(pod, labels) for pod in pods)
    return f"{each}; left: {left}" if pods else each


def _gpu(gpu: GpuRow) -> str:
    """Clients are told of at most twice a minute, so none is no news."""
    said = f"{gpu.label} {gpu.state or 'without a daemon'}"
    if gpu.clients is None:
        return f"{said} (clients unknown)"
    return said if gpu.state == State.DRAINED or not gpu.clients else f"{said} (clients: {gpu.clients})"


def holding(pod: PodStatus, labels: dict[str, str]) -> str:
    """A pod with what it holds, such as `default/train-0 (12 GiB of gpu0)`."""
    amount = "something" if pod.memory_mib is None else f"{gib(pod.memory_mib)} GiB"
    return f"{pod.namespace}/{pod.pod} ({amount} of {','.join(labels.get(uuid, uuid) for uuid in pod.gpus)})"


def refusals(node: ClusterNode, gpus: Collection[str]) -> Iterator[str]:
    """The domains of these GPUs that mpsd refuses to serve, each with its reason."""
    for domain in node.domains:
        if domain.state == State.REFUSED and not set(domain.gpus).isdisjoint(gpus):
            yield f"{domain.name} is refused: {domain.reason or 'no reason said'}"


def serving(node: ClusterNode, gpus: Collection[str]) -> bool:
    """Whether programs may start on all of these GPUs."""
    told = node.told_at is not None and not node.stale
    return told and all(gpu.state == State.READY for gpu in node.gpus if gpu.uuid in gpus)


def states(node: ClusterNode, gpus: Collection[str]) -> str:
    """Each GPU's state, in one line."""
    each = (f"{gpu.label} {gpu.state or 'without a daemon'}" for gpu in node.gpus if gpu.uuid in gpus)
    return ", ".join(each) or _none(node)


def _none(node: ClusterNode) -> str:
    return "it has reported no GPU yet" if node.told_at is None else "no GPU"


def no_answer(node: ClusterNode, now: float) -> str | None:
    """Why a node cannot say whether its GPUs are empty, and what to do; None where it can."""
    look = f"see whether the pod of the DaemonSet mpsd-agent runs on {node.name} and reaches the API server"
    anyway = f"to take its GPUs out of use all the same: kubectl mps cordon {node.name}"
    if node.told_at is None:
        return f"{node.name} has reported nothing yet, so it is not known when its GPUs are empty; {look}; {anyway}"
    if node.stale:
        ago = lasting(now - node.told_at)
        return f"{node.name} last reported its GPUs {ago} ago, so it is not known when they are empty; {look}; {anyway}"
    if not node.gpus:
        return f"{node.name} has no GPU that mpsd shares"
    return None


def not_taken_up(node: ClusterNode, now: float, for_s: float) -> str:
    """What is said of a node that does nothing about its cordon."""
    last = "never" if node.told_at is None else f"{lasting(now - node.told_at)} ago"
    what = f"{node.name} has not taken the cordon up for {lasting(for_s)}, and reported last {last}"
    return f"{what}; see whether mpsd-agent and mps-control-daemon run there"


def newly_cordoned(before: ClusterNode, change: CordonChange) -> tuple[str, ...]:
    """The UUIDs of the GPUs that this change takes out of use, and nobody had before."""
    had = frozenset(before.cordoned)
    return () if ALL in had or not change.changes else tuple(uuid for uuid in change.gpus if uuid not in had)


def undrain_words(before: ClusterNode, change: CordonChange) -> tuple[str, ...]:
    """The command, after `kubectl mps`, that withdraws this change alone; no words where it changed nothing."""
    newly = newly_cordoned(before, change)
    if not newly:
        return ()
    if len(newly) == len(before.gpus):
        return ("undrain", before.name)
    labels = before.labels
    return ("undrain", before.name, *(word for uuid in newly for word in ("--gpu", labels.get(uuid, uuid))))


# -- evictions ---------------------------------------------------------------------------------------------------------


class EvictionFate(StrEnum):
    EVICT = "evict"
    ENDING = "ending"
    GONE = "gone"
    STAYS = "stays"


@dataclass(frozen=True, slots=True)
class EvictionVerdict:
    """why: in plain words, empty where there is nothing to be said."""

    fate: EvictionFate
    why: str = ""


def verdict(pod: Mapping[str, Any] | None, holder: PodStatus) -> EvictionVerdict:
    """What becomes of the pod of a grant. pod: what has its name in the API, None where nothing has."""
    if not holder.uid:
        return EvictionVerdict(EvictionFate.STAYS, "its uid is not known, and another pod may have its name by now")
    metadata = (pod or {}).get("metadata") or {}
    if metadata.get("uid") != holder.uid:
        return EvictionVerdict(EvictionFate.GONE)
    if metadata.get("deletionTimestamp"):
        return EvictionVerdict(EvictionFate.ENDING)
    if _MIRROR in (metadata.get("annotations") or {}):
        return EvictionVerdict(EvictionFate.STAYS, "it is a static pod, of a file on the node")
    owner = next((one for one in metadata.get("ownerReferences") or () if one.get("controller")), None)
    if owner is None:
        return EvictionVerdict(EvictionFate.EVICT, "nothing makes it again elsewhere")
    if owner.get("kind") == "DaemonSet":
        return EvictionVerdict(
            EvictionFate.STAYS, f"it is of the DaemonSet {owner.get('name')}, which would make it again here"
        )
    return EvictionVerdict(EvictionFate.EVICT)


def offers_room(node: ClusterNode, gpus: Collection[str]) -> bool:
    """Whether kubelet may still be told of room on these GPUs: the node has not taken their cordon up."""
    return any(gpu.state in _OFFERED for gpu in node.gpus if gpu.uuid in gpus)


def closed_for_s(node: ClusterNode, gpus: Collection[str]) -> float:
    """How long these GPUs have not been offered any more, at least, by the node's own clock."""
    since = [domain.since for domain in node.domains if not set(domain.gpus).isdisjoint(gpus)]
    known = [at for at in since if at is not None]
    if node.told_at is None or not known or len(known) < len(since):
        return 0.0
    return max(0.0, node.told_at - max(known))


def again_after_s(refused: int) -> float:
    """Seconds until an eviction that was refused so many times is asked for again."""
    return min(2.0 ** max(refused - 1, 0), _LONGEST_PAUSE_S)
