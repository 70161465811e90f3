"""What was answered to kubelet, read back: who has been served, with what, and what need not be remembered.

One rule: an entry is believed as long as nothing contradicts it, and a pod is the one it names only with its uid.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from mpsd.core.allocation import Held
from mpsd.core.node_pods import ContainerName, NodePod
from mpsd.core.pod_grants import ContainerDevices


def served(
    resource: Literal["memory", "percent"],
    held: Iterable[ContainerDevices],
    journal: Iterable[Held],
    pods: Iterable[NodePod],
) -> frozenset[ContainerName]:
    """The containers that have their devices of this resource, by kubelet's word or by the journal's."""
    known = _by_name(pods)
    listed = {one.container for one in held if (one.memory if resource == "memory" else one.percent)}
    noted = {entry.pod for entry in journal if entry.resource == resource and entry.pod and _names_one(entry, known)}
    return frozenset(listed | noted)


def by_devices(journal: Iterable[Held]) -> dict[frozenset[str], Held]:
    """The last answer that was given for exactly these devices."""
    return {frozenset(entry.ids): entry for entry in sorted(journal, key=lambda entry: entry.at)}


def newest(ids: Iterable[str], journal: Iterable[Held]) -> Held | None:
    """The last answer that was given for exactly these devices; None where there is none."""
    return by_devices(journal).get(frozenset(ids))


def still_needed(
    journal: Iterable[Held], held: Iterable[ContainerDevices], pods: Iterable[NodePod], not_before: float
) -> tuple[Held, ...]:
    """The entries that say anything yet, in order of time: of pods that are there, or of devices that are held.

    pods: all of this node that ask for a GPU, so this is no question while the API cannot say. not_before: seconds
    since 1970; entries from then on stay, since kubelet and the API may not know of them yet.
    """
    known = _by_name(pods)
    in_use = {device_id for one in held for device_id in (*one.memory, *one.percent)}
    kept: list[Held] = []
    newer: set[str] = set()
    for entry in sorted(journal, key=lambda entry: entry.at, reverse=True):
        speaks = not in_use.isdisjoint(entry.ids) and not newer.issuperset(entry.ids)
        if entry.at >= not_before or speaks or _names_one(entry, known):
            kept.append(entry)
            newer.update(entry.ids)
    return tuple(reversed(kept))


def _by_name(pods: Iterable[NodePod]) -> dict[tuple[str, str], NodePod]:
    return {(pod.namespace, pod.name): pod for pod in pods}


def _names_one(entry: Held, known: Mapping[tuple[str, str], NodePod]) -> bool:
    """Whether the entry names one of these pods, and not an earlier one of its name."""
    pod = known.get((entry.pod.namespace, entry.pod.pod)) if entry.pod else None
    return pod is not None and not pod.is_finished and entry.uid in ("", pod.uid)
