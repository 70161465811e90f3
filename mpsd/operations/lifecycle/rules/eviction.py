"""Which pods a drain may evict: those that hold something there, and no namesake of theirs.

One rule: as `kubectl drain`, it ends no pod that would be back on the same node at once: those of DaemonSets, and
static ones.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mpsd.model.cluster_status import ClusterNode, PodStatus
from mpsd.model.domain_states import State

_MIRROR = "kubernetes.io/config.mirror"  # kubelet's, on what stands for a static pod in the API
_LONGEST_PAUSE_S = 10.0
_OFFERED = frozenset({State.READY.value, State.STARTING.value, State.FAULT.value})  # where devices are Healthy


class Fate(StrEnum):
    EVICT = "evict"
    ENDING = "ending"
    GONE = "gone"
    STAYS = "stays"


@dataclass(frozen=True, slots=True)
class Verdict:
    """why: in plain words, empty where there is nothing to be said."""

    fate: Fate
    why: str = ""


def verdict(pod: Mapping[str, Any] | None, holder: PodStatus) -> Verdict:
    """What becomes of the pod of a grant. pod: what has its name in the API, None where nothing has."""
    if not holder.uid:
        return Verdict(Fate.STAYS, "its uid is not known, and another pod may have its name by now")
    metadata = (pod or {}).get("metadata") or {}
    if metadata.get("uid") != holder.uid:
        return Verdict(Fate.GONE)
    if metadata.get("deletionTimestamp"):
        return Verdict(Fate.ENDING)
    if _MIRROR in (metadata.get("annotations") or {}):
        return Verdict(Fate.STAYS, "it is a static pod, of a file on the node")
    owner = next((one for one in metadata.get("ownerReferences") or () if one.get("controller")), None)
    if owner is None:
        return Verdict(Fate.EVICT, "nothing makes it again elsewhere")
    if owner.get("kind") == "DaemonSet":
        return Verdict(Fate.STAYS, f"it is of the DaemonSet {owner.get('name')}, which would make it again here")
    return Verdict(Fate.EVICT)


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
