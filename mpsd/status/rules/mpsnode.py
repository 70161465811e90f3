"""MPSNode: what is reported of a node to the API server, and when it is written again; and the labels of its Node.

What is not known is left out, and a write replaces the whole status, so that nothing stays of what was reported before.
Whatever happens on the node, its status is written at most once a second, what its programs use (which never stands
still) at most twice a minute, and the last state is always written in the end. The shape is that of
manifests/chart/templates/crd/mpsnode.yaml.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from mpsd.model import mpsnode
from mpsd.model.cluster_status import total
from mpsd.model.domain import State
from mpsd.model.grants import Gpu, promised_mib
from mpsd.model.names import HEARTBEAT_S as HEARTBEAT_S
from mpsd.model.names import LABEL, NAME_LABEL, PRODUCT
from mpsd.model.node_status import DomainStatus, GpuStatus, NodeStatus
from mpsd.model.node_view import NodeView
from mpsd.model.times import stamp
from mpsd.status.rules.node_status import node_status
from mpsd.watchdog.rules.reported import FIELD as VIOLATIONS
from mpsd.watchdog.rules.reported import differs, is_news

if TYPE_CHECKING:  # as in model.grants
    from mpsd.model.policy import Policy

# A resource of the Node: when GPU memory was last given back, in seconds since 1970. No watch of kube-scheduler's is on
# MPSNodes; what a Node has to allocate is the one thing that makes every version of it try again the pods that wait.
GIVEN_BACK = "mpsd.io/given-back-at"

CHANGE_S = 1.0  # between two writes, at least
USE_S = 30.0  # the same where only what programs use has changed
USE_STEP_MIB = 256  # less than this is no change
_USE = frozenset({"usedMiB", "used", "clients", "toldAt", VIOLATIONS})  # more of the same violations is as use

Object = dict[str, Any]


def mpsnode_status(view: NodeView, policy: "Policy", condition: Object, version: str = "") -> Object:
    """The whole status, less what is not known. condition: as `condition_object` makes it. version: of this mpsd."""
    node = node_status(replace(view, waiting=()), policy)  # why somebody waits takes long to say, and is not reported
    grants = _grants(view, node) if view.grants_known else None
    status = mpsnode.MPSNodeStatus(
        told_at=stamp(view.now),
        driver=view.driver,
        version=version or None,
        summary=_summary(node, None if grants is None else _pods(grants)),
        gpus=[_gpu(gpu, one, grants_known=view.grants_known) for gpu, one in zip(view.gpus, node.gpus, strict=True)],
        domains=[_domain(domain) for domain in node.domains],
        grants=grants,
    )
    return mpsnode.as_object(status) | {"conditions": [condition]}


def status_patch(status: Object) -> list[Object]:
    """A JSON patch. A merge patch would keep what another version, an earlier agent or an earlier report named."""
    return [{"op": "add", "path": "/status", "value": status}]  # RFC 6902: "add" replaces a member that exists


@dataclass(frozen=True, slots=True)
class WrittenStatus:
    """A status as it was written, and when, on a clock that never goes back."""

    status: Object
    at: float


def write_due(status: Object, written: WrittenStatus | None) -> float:
    """When this status is to be written, on the clock of `written`; in the past where it should have been by now."""
    if written is None:
        return float("-inf")
    if is_news(status, written.status) or not _is_same_but_for_use(status, written.status):
        return written.at + CHANGE_S
    pairs = [  # what programs use; the two differ in nothing else
        *zip(status["gpus"], written.status["gpus"], strict=True),
        *zip(status.get("grants", ()), written.status.get("grants", ()), strict=True),
    ]
    moved = differs(status, written.status) or any(_moved(one, other) for one, other in pairs)
    return written.at + (USE_S if moved else HEARTBEAT_S)


def mpsnode_for(node: str, node_uid: str) -> Object:
    """A new MPSNode, which Kubernetes deletes with its Node."""
    metadata = {"name": node, "labels": dict(_LABELS), "ownerReferences": [_owner(node, node_uid)]}
    return {"apiVersion": mpsnode.API, "kind": mpsnode.KIND, "metadata": metadata, "spec": {}}


def belonging_patch(thing: Mapping[str, Any], node: str, node_uid: str) -> Object | None:
    """The merge patch that makes an MPSNode somebody else made belong to its Node; None where it does already."""
    metadata = thing.get("metadata") or {}
    owners, labels = metadata.get("ownerReferences") or [], metadata.get("labels") or {}
    if any(owner.get("uid") == node_uid for owner in owners) and labels.items() >= _LABELS.items():
        return None
    others = [owner for owner in owners if owner.get("kind") != "Node"]
    changed = {"labels": dict(_LABELS), "ownerReferences": [*others, _owner(node, node_uid)]}
    return {"metadata": {"resourceVersion": metadata.get("resourceVersion"), **changed}}


_LABELS = {NAME_LABEL: "mpsnode", LABEL: PRODUCT}


def _owner(node: str, node_uid: str) -> Object:
    return {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid}


# -- the parts of a status -----------------------------------------------------------------------------------------


def _gpu(gpu: Gpu, status: GpuStatus, *, grants_known: bool) -> mpsnode.ReportedGpu:
    """The fields that both have are of the same meaning and unit."""
    found = msgspec.convert(status, mpsnode.ReportedGpu, from_attributes=True)
    named: Object = {"index": None} if gpu.instance else {"index": gpu.ordinal, "label": None}
    found = msgspec.structs.replace(found, model=gpu.name, **named)
    return found if grants_known else msgspec.structs.replace(found, granted_mib=None, granted_percent=None)


def _domain(domain: DomainStatus) -> mpsnode.ReportedDomain:
    canary, faults = domain.canary, domain.faults
    suspects = [mpsnode.ReportedSuspect(one.pod, one.uid, one.faults) for one in faults.suspects] or None
    causes = [mpsnode.ReportedCause(one.pod, one.uid, one.program, one.how) for one in faults.causes] or None
    last = None if faults.last is None else stamp(faults.last)
    return mpsnode.ReportedDomain(
        name=domain.name,
        gpus=list(domain.gpus),
        state=domain.state.value,
        since=stamp(domain.since),
        restarts=domain.restarts,
        reason=domain.reason,
        faults=mpsnode.ReportedFaults(faults.count, last, suspects, causes) if faults.count else None,
        canary=mpsnode.ReportedCanary(
            at=stamp(canary.at),
            driver=canary.driver,
            context_mib=canary.context_mib,
            sms=canary.sms,
            problem=canary.problem or None,
            warning=canary.warning or None,
        )
        if canary
        else None,
        version=domain.version or None,
        kind=domain.kind or None,
    )


def _grants(view: NodeView, node: NodeStatus) -> list[mpsnode.ReportedGrant]:
    """Of pods, by name, a claim by its first; programs of `mpsd run` are not reported to a cluster."""
    pairs = zip(view.grants, node.grants, strict=True)
    held = [(one.grant.pod, one.grant.pods[1:], grant) for one, grant in pairs if one.grant.pod]
    return [
        mpsnode.ReportedGrant(
            pod=str(pod),
            uid=pod.uid or None,
            gpus=list(grant.gpus),
            memory_mib=grant.memory_mib,
            thread_percent=grant.thread_percent,
            reserved_percent=max(card.reserved_percent for card in grant.cards),
            used_mib=grant.used_mib,
            clients=grant.clients,
            claim=grant.claim,
            claim_uid=grant.id if grant.claim else None,
            shared_with=[mpsnode.ReportedPod(str(other), other.uid or None) for other in others] or None,
            priority=grant.priority or None,
            memory_cap=grant.memory_cap if grant.memory_cap == "cgroup" else None,
        )
        for pod, others, grant in sorted(held, key=lambda each: (str(each[0]), each[0].uid))
    ]


def _pods(grants: Iterable[mpsnode.ReportedGrant]) -> int:
    """A pod of several claims is one."""
    return len({(one.pod, one.uid) for grant in grants for one in (grant, *(grant.shared_with or ()))})


def _summary(node: NodeStatus, pods: int | None) -> mpsnode.ReportedSummary:
    used_mib = total(gpu.used_mib for gpu in node.gpus)  # GiB are rounded down, as units are
    granted = sum(gpu.granted_mib for gpu in node.gpus) // 1024 if node.grants_known else "?"
    models = Counter(gpu.name for gpu in node.gpus)
    return mpsnode.ReportedSummary(
        gpus=", ".join(f"{number}x {name}" for name, number in models.items()),
        domains=f"{sum(domain.state is State.READY for domain in node.domains)}/{len(node.domains)}",
        granted=f"{granted}/{sum(gpu.promised_mib for gpu in node.gpus) // 1024}Gi",
        used="?" if used_mib is None else f"{used_mib // 1024}Gi",
        clients="?" if node.clients is None else str(len({client.pid for client in node.clients})),
        pods=pods,
    )


def gave_back(status: Object, before: Object) -> bool:
    """Whether a waiting pod may fit by now: a GPU has less granted, has its grants known again, or serves again."""
    had, serving = _offer(before)
    has, serving_now = _offer(status)
    freed = any(mib is not None and (had.get(uuid) is None or mib < had[uuid]) for uuid, mib in has.items())
    return freed or not serving_now <= serving


def _offer(status: Object) -> tuple[dict[str, Any], set[str]]:
    """What is granted of each GPU, None where that is not known; and the domains that serve."""
    granted = {gpu["uuid"]: gpu.get("grantedMiB") for gpu in status["gpus"]}
    return granted, {domain["name"] for domain in status["domains"] if domain["state"] == State.READY.value}


# -- what counts as a change ---------------------------------------------------------------------------------------


def _is_same_but_for_use(one: Any, other: Any) -> bool:
    if one == other:
        return True
    if isinstance(one, dict) and isinstance(other, dict):
        firm = (one.keys() | other.keys()) - _USE
        return all(name in one and name in other and _is_same_but_for_use(one[name], other[name]) for name in firm)
    lists = isinstance(one, list) and isinstance(other, list) and len(one) == len(other)
    return lists and all(map(_is_same_but_for_use, one, other))


def _moved(one: Object, other: Object) -> bool:
    """Whether what programs use is another by enough."""
    if one.get("clients") != other.get("clients"):
        return True
    used, before = one.get("usedMiB"), other.get("usedMiB")
    if used is None or before is None:
        return used is not before
    return bool(abs(used - before) >= USE_STEP_MIB)


# -- the labels of the Node ----------------------------------------------------------------------------------------

PRODUCT_LABEL, MEMORY_LABEL = "mpsd.io/gpu.product", "mpsd.io/gpu.memory"
COUNT_LABEL, SHARING_LABEL = "mpsd.io/gpu.count", "mpsd.io/sharing"
UPGRADE_LABEL = "mpsd.io/driver-upgrade"  # by which mpsd's pods leave a node for an upgrade of its driver
NODE_LABELS = (PRODUCT_LABEL, MEMORY_LABEL, COUNT_LABEL, SHARING_LABEL, UPGRADE_LABEL)
SHARING = "mps"
_LONGEST_LABEL = 63  # characters of a label's value
_NO_LABEL = re.compile(r"[^A-Za-z0-9._-]+")


def node_labels(gpus: Sequence[Gpu], policy: "Policy") -> dict[str, str]:
    """What pods may choose this node by: none without a GPU, and none about what differs from one GPU to another."""
    unit_mib = policy.resources.memory_unit_mib
    memory = {max(0, promised_mib(gpu, policy)) // unit_mib * unit_mib // 1024 for gpu in gpus}
    return labels_of({gpu.name for gpu in gpus}, memory, len(gpus))


def labels_of(products: Collection[str], memory_gib: Collection[int], count: int) -> dict[str, str]:
    """products: the names of these GPUs. memory_gib: what may be requested of one. Of several there is no label."""
    names = {label_value(name) for name in products}
    named = {PRODUCT_LABEL: names.pop() if len(names) == 1 else ""}
    named[MEMORY_LABEL] = str(*memory_gib) if len(memory_gib) == 1 else ""
    named |= {COUNT_LABEL: str(count), SHARING_LABEL: SHARING} if count else {}
    return {name: value for name, value in named.items() if value}


def label_value(text: str) -> str:
    """As NVIDIA's GPU feature discovery writes a product, such as NVIDIA-H200; empty where nothing of it may stand in a
    label."""
    return _NO_LABEL.sub("-", text).strip("-._")[:_LONGEST_LABEL].rstrip("-._")


def labels_patch(labels: Mapping[str, str], wanted: Mapping[str, str]) -> Object | None:
    """The merge patch of a Node that has these labels; None where ours are as wanted. It touches no others."""
    changed = {name: wanted.get(name) for name in NODE_LABELS if labels.get(name) != wanted.get(name)}
    return {"metadata": {"labels": changed}} if changed else None
