"""What of a cluster is mpsd's, in which order it is deleted, and who would lose something by it.

An object is mpsd's by its label and by nothing else. The order of deletion is one in which nothing that remains depends
on what is gone.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from mpsd.model.cluster_status import ClusterNode, ClusterStatus, silence
from mpsd.model.names import CONTROL, LABEL, NAME_LABEL, PRODUCT
from mpsd.operations.lifecycle.rules.drain import holders, holding


class Stage(IntEnum):
    """In their order."""

    ADMISSION = 1  # first, so that nothing is refused by a webhook that is gone
    SERVERS = 2  # agents, webhook and whatever else runs: no pod gets a GPU any more
    DAEMONS = 3  # control daemons, which put the compute modes back as they end
    REST = 4
    RIGHTS = 5
    PLACES = 6
    KINDS = 7


@dataclass(frozen=True, slots=True)
class Thing:
    """One object of mpsd's. api: group and version. namespace: empty where its kind has none."""

    api: str
    plural: str
    kind: str
    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str]

    @property
    def group(self) -> str:
        return self.api.rpartition("/")[0]

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


def is_deleted(metadata: Mapping[str, Any], group: str, own_groups: Collection[str]) -> bool:
    """Whether an object with mpsd's label is to be deleted itself. own_groups: those of mpsd's definitions, whose
    objects go with them; as what another object owns goes with that one.
    """
    return group not in own_groups and not metadata.get("ownerReferences")


def stage_of(thing: Thing) -> Stage:
    match thing.group, thing.kind:
        case "admissionregistration.k8s.io", _:
            return Stage.ADMISSION
        case (("apps" | "batch" | "extensions"), _):
            return Stage.DAEMONS if thing.labels.get(NAME_LABEL) == CONTROL else Stage.SERVERS
        case ("rbac.authorization.k8s.io", _) | ("", "ServiceAccount"):
            return Stage.RIGHTS
        case "", "Namespace":
            return Stage.PLACES
        case "apiextensions.k8s.io", _:
            return Stage.KINDS
        case _:
            return Stage.REST


def in_order(things: Iterable[Thing]) -> list[Thing]:
    """As they are to be deleted; a binding before what it binds."""
    return sorted(things, key=lambda one: (stage_of(one), not one.kind.endswith("Binding"), one.kind, str(one)))


def in_use(status: ClusterStatus, daemons: Collection[str], *, agents: bool = True) -> Iterator[str]:
    """Who would lose something, or might, a sentence each. daemons: the nodes where a control pod is.

    agents False: there are none any more that could let anybody onto a GPU, so what nodes told last still holds.
    """
    told = {node.name for node in status.nodes}
    for name in sorted(set(daemons) - told):
        yield f"{name} runs a control daemon and has no MPSNode, so who uses its GPUs is not known"
    for node in status.nodes:
        silent = silence(node, status.now)
        if silent and node.name in daemons and (agents or node.told_at is None):
            yield f"who uses the GPUs of {node.name} is not known: {silent}"
        elif not silent or node.name in daemons:  # without a daemon nothing can be on MPS there
            yield from _users(node, has_daemon=node.name in daemons)


def _users(node: ClusterNode, *, has_daemon: bool) -> Iterator[str]:
    if node.unreadable:
        yield f"who uses the GPUs of {node.name} is not known: {node.unreadable[0]}"
    elif node.pods is None:
        yield f"who uses the GPUs of {node.name} is not known: it cannot say which pods hold them"
    for pod in node.pods or ():  # also of GPUs that the node does not name
        yield f"{node.name}: pod {holding(pod, node.labels)}"
    for gpu in node.gpus:
        if gpu.clients is None and has_daemon:
            yield f"{node.name}: how many programs run on {gpu.label} is not known"
        elif gpu.clients and not holders(node, [gpu.uuid]):
            yield f"{node.name}: {gpu.label} has {gpu.clients} client{'' if gpu.clients == 1 else 's'} of no pod"


# -- what is in a namespace of ours and not ours ------------------------------------------------------------------

_EVERYWHERE = frozenset({("ConfigMap", "kube-root-ca.crt"), ("ServiceAccount", "default")})
_OF_THE_CLUSTER = frozenset({"Event", "Endpoints", "EndpointSlice", "Lease"})
_TOKENS = "kubernetes.io/service-account-token"


def is_strange(kind: str, thing: Mapping[str, Any]) -> bool:
    """Whether somebody has put this there: it is neither mpsd's, nor the cluster's own, nor owned by something."""
    metadata = thing["metadata"]
    known = (metadata.get("labels") or {}).get(LABEL) == PRODUCT or bool(metadata.get("ownerReferences"))
    made_by_it = kind in _OF_THE_CLUSTER or (kind, metadata["name"]) in _EVERYWHERE or thing.get("type") == _TOKENS
    return not known and not made_by_it
