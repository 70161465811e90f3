"""Whether GPUs of a node are empty, and who may be evicted; in which order mpsd is deleted from a
cluster, and who would lose something by it.

What is unknown is not empty, and the report of a silent node is not believed. As `kubectl drain`,
it evicts no pod that would be back on the same node at once: those of DaemonSets, and static ones.
"""

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from mpsd.model.cluster_status import ClusterNode, ClusterStatus, ServedGpu, silence
from mpsd.model.domain import ALL, State
from mpsd.model.names import CONTROL, MIRROR
from mpsd.model.node_report import PodReport
from mpsd.model.times import lasting
from mpsd.status.rules.cordon import CordonChange, holders, holding

# No daemon of ours runs there, so nobody waits for a drain: what is there is counted instead.
_WITHOUT_DAEMON = frozenset({None, State.REFUSED.value, State.DOWN.value})
# where devices are Healthy
_OFFERED = frozenset({State.READY.value, State.STARTING.value, State.FAULT.value})


def reports(node: ClusterNode) -> bool:
    return node.reported_at is not None and not node.stale


def chosen(node: ClusterNode, gpus: Collection[str]) -> list[ServedGpu]:
    return [gpu for gpu in node.gpus if gpu.uuid in gpus]


def are_empty(node: ClusterNode, gpus: Collection[str]) -> bool:
    """Whether nobody could lose anything by the end of these GPUs' control daemons. gpus: UUIDs."""
    others = [gpu for gpu in chosen(node, gpus) if gpu.state != State.DRAINED]
    if not reports(node) or not others:
        return reports(node)
    unused = all(gpu.state in _WITHOUT_DAEMON and gpu.clients == 0 for gpu in others)
    return unused and node.pods is not None and not holders(node, [gpu.uuid for gpu in others])


def what_is_left(node: ClusterNode, gpus: Collection[str]) -> str:
    each = states(node, gpus, with_clients=True)
    if node.pods is None:
        return f"{each}; {node.name} does not report its pods"
    if pods := holders(node, gpus):
        return f"{each}; left: {', '.join(holding(pod, node.labels) for pod in pods)}"
    return each


def states(node: ClusterNode, gpus: Collection[str], *, with_clients: bool = False) -> str:
    """Each GPU's state, in one line. Clients are reported twice a minute at most, so none is no
    news."""
    found = []
    for gpu in chosen(node, gpus):
        clients = ""
        if with_clients and gpu.clients is None:
            clients = " (clients unknown)"
        elif with_clients and gpu.clients and gpu.state != State.DRAINED:
            clients = f" (clients: {gpu.clients})"
        found.append(f"{gpu.label} {gpu.state or 'without a daemon'}{clients}")
    none = "it has reported no GPU yet" if node.reported_at is None else "no GPU"
    return ", ".join(found) or none


def refusals(node: ClusterNode, gpus: Collection[str]) -> Iterator[str]:
    """The domains of these GPUs that mpsd refuses to serve, each with its reason."""
    for domain in node.domains:
        if domain.state == State.REFUSED and not set(domain.gpus).isdisjoint(gpus):
            yield f"{domain.name} is refused: {domain.reason or 'no reason reported'}"


def serving(node: ClusterNode, gpus: Collection[str]) -> bool:
    return reports(node) and all(gpu.state == State.READY for gpu in chosen(node, gpus))


def no_answer(node: ClusterNode, now: float) -> str:
    """Why a node cannot report whether its GPUs are empty, and what to do; empty where it can."""
    if reports(node) and node.gpus:
        return ""
    if reports(node):
        return f"{node.name} has no GPU that mpsd shares"
    why = "has reported nothing yet"
    if node.reported_at is not None:
        why = f"last reported {lasting(now - node.reported_at)} ago"
    look = f"check that the pod of the DaemonSet mpsd-agent runs on {node.name}"
    anyway = f"to take its GPUs out of use without waiting: kubectl mps cordon {node.name}"
    unknown = f"{node.name} {why}, so it is not known whether its GPUs are empty"
    return f"{unknown}; {look} and reaches the API server; {anyway}"


def newly_cordoned(before: ClusterNode, change: CordonChange) -> tuple[str, ...]:
    """The UUIDs of the GPUs that this change takes out of use, and nobody had before."""
    if ALL in before.cordoned or not change.changes:
        return ()
    return tuple(uuid for uuid in change.gpus if uuid not in before.cordoned)


def what_stays(before: ClusterNode, change: CordonChange, where: str) -> str:
    """What is so from now on, and how to undo it. where: options, with a leading blank."""
    newly = newly_cordoned(before, change)
    if not newly:
        return f"{before.name}: GPUs that were cordoned before stay cordoned"
    labels = ", ".join(before.labels.get(uuid, uuid) for uuid in newly)
    back = f"to put them back into use: {put_back(before, newly, where)}"
    return f"{before.name}: still cordoned: {labels}; {back}"


def put_back(node: ClusterNode, gpus: Collection[str], where: str) -> str:
    """The command that does it."""
    words = ["undrain", node.name]
    if len(gpus) < len(node.gpus):  # else all
        for uuid in gpus:
            words += ["--gpu", node.labels.get(uuid, uuid)]
    return f"kubectl mps {shlex.join(words)}{where}"


# -- evictions


def eviction_of(pod: Mapping[str, Any] | None, holder: PodReport) -> tuple[bool, str]:
    """Whether to evict the pod of a grant, and why. pod: what has its name in the API."""
    name = holder.pod
    metadata = (pod or {}).get("metadata") or {}
    owners = [one for one in metadata.get("ownerReferences") or () if one.get("controller")]
    if not holder.uid:
        why = "its uid is unknown, and another pod may have its name"
        return False, f"{name} is not evicted: {why}"
    if metadata.get("uid") != holder.uid:
        return False, f"{name} is gone from the API; its GPU will be free soon"
    if metadata.get("deletionTimestamp"):
        return False, f"{name} is already terminating"
    if MIRROR in (metadata.get("annotations") or {}):
        return False, f"{name} is not evicted: it is a static pod, which kubelet would recreate"
    for owner in owners:
        if owner.get("kind") == "DaemonSet":
            of = f"the DaemonSet {owner.get('name')}, which would recreate it here"
            return False, f"{name} is not evicted: it belongs to {of}"
    if not owners:
        return True, f"evicted {name} (no controller recreates it)"
    return True, f"evicted {name}"


def offers_room(node: ClusterNode, gpus: Collection[str]) -> bool:
    """Whether kubelet may still count on room on these GPUs: the node has not applied their
    cordon."""
    return any(gpu.state in _OFFERED for gpu in chosen(node, gpus))


# -- uninstalling: nothing that remains depends on what is gone


class Stage(IntEnum):
    """The value: what is deleted first."""

    ADMISSION = 1  # so that nothing is refused by a webhook that is gone
    SERVERS = 2  # agents, webhook and scheduler: no pod gets a GPU any more
    DAEMONS = 3  # control daemons, which put the compute modes back as they end
    REST = 4
    RIGHTS = 5
    KINDS = 6


@dataclass(frozen=True, slots=True)
class Thing:
    #: Group and version.
    api: str
    plural: str
    kind: str
    #: Empty where its kind has none.
    namespace: str
    name: str
    uid: str
    #: The component that it is of, by its label; empty where that says none.
    component: str

    @property
    def stage(self) -> Stage:
        group = self.api.rpartition("/")[0]
        if group in ("apps", "batch", "extensions") and self.component == CONTROL:
            return Stage.DAEMONS
        return _STAGES.get(group or self.kind, Stage.REST)

    def __str__(self) -> str:
        return f"{self.kind} {'/'.join(filter(None, (self.namespace, self.name)))}"


# by group, and by kind in the core group
_STAGES = {
    **dict.fromkeys(("apps", "batch", "extensions"), Stage.SERVERS),
    "admissionregistration.k8s.io": Stage.ADMISSION,
    "rbac.authorization.k8s.io": Stage.RIGHTS,
    "apiextensions.k8s.io": Stage.KINDS,
    "ServiceAccount": Stage.RIGHTS,
}


def in_order(things: Iterable[Thing]) -> list[Thing]:
    """As they are to be deleted; a binding before what it binds."""
    return sorted(
        things, key=lambda one: (one.stage, not one.kind.endswith("Binding"), one.kind, str(one))
    )


def in_use(
    status: ClusterStatus, daemons: Collection[str], *, agents: bool = True
) -> Iterator[str]:
    """Who would lose something, or might, a sentence each.

    daemons: the nodes where a control pod is. agents False: none is left that could give anybody a
    GPU, so what nodes reported last still holds.
    """
    for name in sorted(set(daemons) - {node.name for node in status.nodes}):
        why = "runs a control daemon and has no MPSNode"
        yield f"{name} {why}, so the users of its GPUs are not known"
    for node in status.nodes:
        silent = silence(node, status.now)
        if silent and node.name in daemons and (agents or node.reported_at is None):
            yield f"the users of the GPUs of {node.name} are not known: {silent}"
        elif not silent or node.name in daemons:  # without a daemon nothing can be on MPS there
            yield from _users(node, has_daemon=node.name in daemons)


def _users(node: ClusterNode, *, has_daemon: bool) -> Iterator[str]:
    missing = [*node.unreadable]
    if node.pods is None:
        missing.append("it does not report its pods")
    for why in missing[:1]:
        yield f"the users of the GPUs of {node.name} are not known: {why}"
    for pod in node.pods or ():  # also of GPUs that the node does not name
        yield f"{node.name}: pod {holding(pod, node.labels)}"
    for gpu in node.gpus:
        if gpu.clients is None and has_daemon:
            yield f"{node.name}: the number of programs on {gpu.label} is not known"
        elif gpu.clients and not holders(node, [gpu.uuid]):
            number = "1 client" if gpu.clients == 1 else f"{gpu.clients} clients"
            yield f"{node.name}: {gpu.label} has {number} of no pod"
