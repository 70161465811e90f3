"""Pods that run although kubelet never gave them the devices they ask for.

A kubelet that has just started, with an old status of its node and no plugin registered yet, was seen to run pods
without a call of Allocate. Such a pod has no limit and no place in the ledger.

One rule: nobody is taken for such a pod before that was so for a while, since kubelet and the API each lag behind.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mpsd.kubelet.rules import journal
from mpsd.kubelet.rules.allocation import JournalEntry
from mpsd.kubelet.rules.node_pods import CLAIM, Bystander, NodePod, memory_units
from mpsd.kubelet.rules.pod_grants import ContainerDevices
from mpsd.model.identity import PodName
from mpsd.model.names import matches
from mpsd.model.pod import Role
from mpsd.model.policy import Policy

PATIENCE_S = 60.0


def without_devices(
    pods: Iterable[NodePod],
    held: Sequence[ContainerDevices],
    listed: Collection[tuple[str, str]],
    entries: Sequence[JournalEntry],
) -> tuple[NodePod, ...]:
    """The pods that run, ask for memory of a GPU, and have nothing by kubelet's word nor by the journal's.

    listed: the namespace and name of every pod that kubelet spoke of; of others it does not know yet what they hold.
    """
    known = tuple(pods)
    served = {(one.namespace, one.pod) for one in journal.served("memory", held, entries, known)}
    return tuple(
        pod
        for pod in known
        if pod.phase == "Running"
        and not pod.terminating
        and (pod.namespace, pod.name) in listed
        and (pod.namespace, pod.name) not in served
        and any(request.role is Role.MAIN and memory_units(request) for request in pod.requests)
    )


def since(before: Mapping[str, float], seen: Iterable[NodePod], now: float) -> dict[str, float]:
    """From the uid of each pod to when it was first seen so, without a break."""
    return {pod.uid: before.get(pod.uid, now) for pod in seen}


# Which pods of a node are known to hold no grant, so that a process of theirs on a GPU is a violation.
#
# One rule: who is wrongly in here is ended, so whatever leaves room for a doubt keeps a pod out: it is not known then.
# What a pod asks never changes once it is made, and its uid is the API's: a static pod's, which an annotation says that
# every user may write, counts for nothing here. That a pod holds nothing of what it asks is believed only after kubelet
# has said so for a while (`kubelet.rules.unallocated`).


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a node's pods. unallocated: the uids of pods that have long been without what they ask."""

    pods: Sequence[NodePod]
    bystanders: Sequence[Bystander]
    held: Sequence[ContainerDevices]
    journal: Sequence[JournalEntry]
    unallocated: Collection[str]


def ungranted(known: Known, policy: Policy) -> dict[str, PodName]:
    """By the uid in its cgroups, each pod that holds no grant without a doubt."""
    served = {(one.namespace, one.pod) for one in journal.served("memory", known.held, known.journal, known.pods)}
    rows: tuple[NodePod | Bystander, ...] = (*known.pods, *known.bystanders)
    pods = (row.identity for row in rows if _holds_nothing(row, known, policy))
    return {pod.uid: pod for pod in pods if (pod.namespace, pod.name) not in served}


def _holds_nothing(row: NodePod | Bystander, known: Known, policy: Policy) -> bool:
    """Whether the pod asked nothing that a GPU could come with, or has long been without what it asks."""
    return row.identity.uid in known.unallocated or not _may_have_a_gpu(row.asked, policy)


def _may_have_a_gpu(asked: Iterable[str], policy: Policy) -> bool:
    """Whether anybody may have given a GPU for this: we, another device plugin, or whoever serves resource claims.

    A share of the threads alone is no GPU.
    """
    ways = {policy.resources.memory, CLAIM}
    none = {policy.resources.percent, policy.resources.count}
    kept = policy.admission.visible_devices_kept_for
    return any(name in ways or matches(name, kept) for name in asked if name not in none)
