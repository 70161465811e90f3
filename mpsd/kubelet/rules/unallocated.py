"""Pods that run although kubelet never gave them the devices they ask for.

A kubelet that has just started, with an old status of its node and no plugin registered yet, was seen to run pods
without a call of Allocate. Such a pod has no limit and no place in the books.

One rule: nobody is taken for such a pod before that was so for a while, since kubelet and the API each lag behind.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from mpsd.kubelet.rules import journal
from mpsd.kubelet.rules.allocation import Held
from mpsd.kubelet.rules.node_pods import NodePod, memory_units
from mpsd.kubelet.rules.pod_grants import ContainerDevices
from mpsd.model.container import Role

PATIENCE_S = 60.0


def without_devices(
    pods: Iterable[NodePod],
    held: Sequence[ContainerDevices],
    listed: Collection[tuple[str, str]],
    entries: Sequence[Held],
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
