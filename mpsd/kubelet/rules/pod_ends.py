"""When the clients of a deleted pod are stopped, so that no signal of kubelet's ends one in
mid-kernel.

Kubelet sends SIGTERM at once, or after a hook at a time that nobody sees, and SIGKILL once the
grace is over. Whoever would die of the first is stopped as soon as the deletion is seen (a pending
SIGTERM does not wake a stopped process), and everybody in time before the second. Static pods are
left out: the deletion of a mirror pod ends none of them, and their cgroups have another uid.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from mpsd.model.identity import PodName, ProcessIdentity
from mpsd.model.node_view import Client
from mpsd.model.pod import PodDeletion

REMOVED_S = 60.0  # for the processes of a removed pod to end, for which kubelet allows them 2 s


@dataclass(frozen=True, slots=True)
class PodEnd:
    """The end of a pod, as it is kept on the node. Times are seconds of CLOCK_BOOTTIME."""

    pod: PodName
    #: when its deletion was first seen
    seen_s: float
    #: how long after that its clients may run, in seconds; it only ever becomes less
    grace_s: float
    #: whether a hook, other than mpsd's, runs before its first signal
    has_pre_stop: bool = False
    #: the names of first signals other than SIGTERM
    stop_signals: tuple[str, ...] = ()
    #: when it was removed from the API server; None while it is there
    removed_s: float | None = None


def deleted(
    known: PodEnd | None, pod: PodName, deletion: PodDeletion, now_s: float, *, was_running: bool
) -> PodEnd:
    """The end of a pod whose deletion is requested. known: None where that is new. was_running:
    whether the pod was seen without that just before; else nobody knows for how long its grace has
    run, and none is left."""
    if known:
        return replace(known, grace_s=min(known.grace_s, deletion.grace_s))
    grace_s = deletion.grace_s if was_running else 0.0
    return PodEnd(pod, now_s, grace_s, deletion.has_pre_stop, deletion.stop_signals)


def removed(known: PodEnd | None, pod: PodName, now_s: float) -> PodEnd:
    """The end of a pod that the API server does not have any more. known: None where nobody saw its
    deletion."""
    end = known or PodEnd(pod, now_s, 0.0)
    return end if end.removed_s is not None else replace(end, removed_s=now_s)


def is_over(end: PodEnd, now_s: float) -> bool:
    """Whether no process of the pod can be left, as far as kubelet has its way."""
    return end.removed_s is not None and now_s >= end.removed_s + REMOVED_S


def stop_at_s(end: PodEnd, pod_end_s: float) -> float:
    """When its clients are stopped at last. pod_end_s: how long before the grace is over."""
    if end.removed_s is not None:
        return end.seen_s
    return end.seen_s + max(0.0, end.grace_s - pod_end_s)


@dataclass(frozen=True, slots=True)
class DueClients:
    """What is to be done at one time."""

    #: those that are to be stopped now
    clients: tuple[Client, ...]
    #: when others are, in seconds of CLOCK_BOOTTIME; infinite where none waits
    next_s: float


def due_clients(
    ends: Mapping[str, PodEnd],
    clients: Iterable[Client],
    mortal: Collection[ProcessIdentity],
    now_s: float,
    pod_end_s: float,
) -> DueClients:
    """ends: by the pod's uid. mortal: those that die of a first signal."""
    found = []
    next_s = math.inf
    for client in clients:
        end = ends.get(client.pod or "")
        if end is None or not client.on_mps:
            continue
        at_s = stop_at_s(end, pod_end_s)
        is_struck_first = client.process in mortal and not end.has_pre_stop
        if is_struck_first or now_s >= at_s:
            found.append(client)
        else:
            next_s = min(next_s, at_s)
    return DueClients(tuple(found), next_s)
