"""What was answered to kubelet, read back: who has been served, with what, and what need not be remembered.

One rule: an entry is believed as long as nothing contradicts it, and a pod is the one it names only with its uid.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

from mpsd.kubelet.rules.allocation import JournalEntry
from mpsd.kubelet.rules.node_pods import ContainerName, NodePod
from mpsd.kubelet.rules.pod_grants import ContainerDevices


def served(
    resource: Literal["memory", "percent"],
    held: Iterable[ContainerDevices],
    journal: Iterable[JournalEntry],
    pods: Iterable[NodePod],
) -> frozenset[ContainerName]:
    """The containers that have their devices of this resource, by kubelet's word or by the journal's.

    An entry whose devices kubelet has given to another pod named the wrong one. Were that one taken for served, then of
    pods that ask for the same at the same time every second would have nobody to be asked for.
    """
    known = _by_name(pods)
    owners = {one_id: one for one in held for one_id in (one.memory if resource == "memory" else one.percent)}
    listed = {one.container for one in owners.values()}
    noted = {
        entry.pod
        for entry in journal
        if entry.resource == resource and entry.pod and _names_one(entry, known) and not _is_of_another(entry, owners)
    }
    return frozenset(listed | noted)


def by_devices(journal: Iterable[JournalEntry]) -> dict[frozenset[str], JournalEntry]:
    """The last answer that was given for exactly these devices."""
    return {frozenset(entry.ids): entry for entry in sorted(journal, key=lambda entry: entry.at)}


def newest(ids: Iterable[str], journal: Iterable[JournalEntry]) -> JournalEntry | None:
    """The last answer that was given for exactly these devices; None where there is none."""
    return by_devices(journal).get(frozenset(ids))


def corrected(
    journal: Iterable[JournalEntry],
    asked_with: Iterable[JournalEntry],
    held: Iterable[ContainerDevices],
    pods: Iterable[NodePod],
) -> tuple[JournalEntry, ...]:
    """The entries, each with the container that kubelet has by now given exactly its devices.

    So that a pod still has all that is its own where kubelet, which forgets at a restart, lists nothing for a while.
    asked_with: the entries that were there when kubelet was asked; its answer says nothing of newer ones.
    """
    known = _by_name(pods)
    last = {id(entry) for entry in by_devices(asked_with).values()}
    whose = {frozenset(ids): one.container for one in held for ids in (one.memory, one.percent) if ids}
    return tuple(_corrected(entry, whose, known) if id(entry) in last else entry for entry in journal)


def _corrected(
    entry: JournalEntry, whose: Mapping[frozenset[str], ContainerName], known: Mapping[tuple[str, str], NodePod]
) -> JournalEntry:
    container = whose.get(frozenset(entry.ids))
    pod = known.get((container.namespace, container.pod)) if container else None
    if pod is None or (entry.pod and (entry.pod.namespace, entry.pod.pod) == (pod.namespace, pod.name)):
        return entry
    return replace(entry, pod=container, uid=pod.uid)


def still_needed(
    journal: Iterable[JournalEntry], held: Iterable[ContainerDevices], pods: Iterable[NodePod], not_before: float
) -> tuple[JournalEntry, ...]:
    """The entries that say anything yet, in order of time: of pods that are there, or of devices that are held.

    pods: all of this node that ask for a GPU, so this is no question while the API cannot say. not_before: seconds
    since 1970; entries from then on stay, since kubelet and the API may not know of them yet.
    """
    known = _by_name(pods)
    in_use = {device_id for one in held for device_id in (*one.memory, *one.percent)}
    kept: list[JournalEntry] = []
    newer: set[str] = set()
    for entry in sorted(journal, key=lambda entry: entry.at, reverse=True):
        speaks = not in_use.isdisjoint(entry.ids) and not newer.issuperset(entry.ids)
        if entry.at >= not_before or speaks or _names_one(entry, known):
            kept.append(entry)
            newer.update(entry.ids)
    return tuple(reversed(kept))


def _is_of_another(entry: JournalEntry, owners: Mapping[str, ContainerDevices]) -> bool:
    """Whether kubelet says that another pod than the entry's holds any of its devices."""
    holders = {owners[one_id].pod for one_id in entry.ids if one_id in owners}
    return entry.pod is not None and bool(holders - {(entry.pod.namespace, entry.pod.pod)})


def _by_name(pods: Iterable[NodePod]) -> dict[tuple[str, str], NodePod]:
    return {(pod.namespace, pod.name): pod for pod in pods}


def _names_one(entry: JournalEntry, known: Mapping[tuple[str, str], NodePod]) -> bool:
    """Whether the entry names one of these pods, and not an earlier one of its name."""
    pod = known.get((entry.pod.namespace, entry.pod.pod)) if entry.pod else None
    return pod is not None and not pod.is_finished and entry.uid in ("", pod.uid)
