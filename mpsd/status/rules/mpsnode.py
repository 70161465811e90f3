"""What an MPSNode reports of its node, and when it is written again; and the labels of its Node.

A write replaces the whole status, so that nothing stays of what was reported before. It is written
at most once a second, for what programs use (which never stands still) at most twice a minute, and
the last state is always written in the end. Its shape: manifests/chart/templates/crd/mpsnode.yaml.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace as changed

from mpsd.model import mpsnode
from mpsd.model.domain import State
from mpsd.model.grants import Gpu, promised_mib
from mpsd.model.mpsnode import as_object
from mpsd.model.names import HEARTBEAT_S as HEARTBEAT_S
from mpsd.model.names import LABEL, NAME_LABEL, PRODUCT
from mpsd.model.node_report import (
    DomainReport,
    GrantReport,
    GrantViolations,
    NodeReport,
    Summary,
    ViolationReport,
    ViolationsReport,
    total,
)
from mpsd.model.times import epoch, in_whole_seconds

if TYPE_CHECKING:  # as in model.grants
    from mpsd.model.policy import Policy

# A resource of the Node: when GPU memory was last given back, in seconds since 1970. What a Node
# has to allocate is all that makes every version of kube-scheduler try waiting pods again.
GIVEN_BACK = "mpsd.io/given-back-at"

CHANGE_S = 1.0  # between two writes, at least
USE_S = 30.0  # the same where only what programs use has changed
USE_STEP_MIB = 256  # less than this is no change
VIOLATIONS = "violations"  # of the status, of its summary, and of a grant
# What does not count as a change; more of the same violations is as use.
_USE = frozenset({"usedMiB", "used", "clients", "reportedAt", VIOLATIONS})
# whose violations are listed, the most recent: whatever programs do, the object stays small
MOST_PODS = 32
MOST_LAST = 5  # violations of the node

Object = dict[str, Any]


def mpsnode_status(report: NodeReport, condition: Object) -> Object:
    """The whole status, without programs and what only its own machine needs. condition: as
    `condition_object` makes it."""
    held = None
    if report.grants is not None and report.grants_known:
        held = [one for one in report.grants if one.pod]
    status = NodeReport(
        reported_at=in_whole_seconds(report.reported_at),
        driver=report.driver,
        version=report.version,
        summary=_summary(report, held),
        gpus=tuple([changed(gpu, sms=None, unexplained_mib=None, xids=()) for gpu in report.gpus]),
        domains=tuple(map(_domain, report.domains)),
    )
    if report.violations:
        status = changed(status, violations=_violations(report.violations, held))
    if held is not None:
        status = changed(status, grants=_grants(held))
    return as_object(status) | {"conditions": [condition]}


def status_patch(status: Object) -> list[Object]:
    """A JSON patch; a merge patch would keep what an earlier report named."""
    # RFC 6902: "add" replaces a member that exists
    return [{"op": "add", "path": "/status", "value": status}]


@dataclass(frozen=True, slots=True)
class WrittenStatus:
    status: Object
    at: float


def write_due(status: Object, written: WrittenStatus | None) -> float:
    if written is None:
        return float("-inf")
    if is_news(status, written.status) or not _is_same_but_for_use(status, written.status):
        return written.at + CHANGE_S
    moved = status.get(VIOLATIONS) != written.status.get(VIOLATIONS)
    for part in ("gpus", "grants"):  # they differ in nothing but what programs use
        moved = moved or any(map(_moved, status.get(part, ()), written.status.get(part, ())))
    return written.at + (USE_S if moved else HEARTBEAT_S)


def mpsnode_for(node: str, node_uid: str) -> Object:
    metadata = {"name": node, "labels": dict(_LABELS), "ownerReferences": [_owner(node, node_uid)]}
    return {"apiVersion": mpsnode.API, "kind": mpsnode.KIND, "metadata": metadata, "spec": {}}


def belonging_patch(thing: Mapping[str, Any], node: str, node_uid: str) -> Object | None:
    """The merge patch that makes an MPSNode belong to its Node; None where it does already."""
    metadata = thing.get("metadata") or {}
    owners = metadata.get("ownerReferences") or []
    labels = metadata.get("labels") or {}
    if any(owner.get("uid") == node_uid for owner in owners) and labels.items() >= _LABELS.items():
        return None
    others = [owner for owner in owners if owner.get("kind") != "Node"]
    changed = {"labels": dict(_LABELS), "ownerReferences": [*others, _owner(node, node_uid)]}
    return {"metadata": {"resourceVersion": metadata.get("resourceVersion"), **changed}}


_LABELS = {NAME_LABEL: "mpsnode", LABEL: PRODUCT}


def _owner(node: str, node_uid: str) -> Object:
    return {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid}


# -- the parts of a status


def _domain(domain: DomainReport) -> DomainReport:
    faults = domain.faults
    if faults.count:
        suspects = tuple([changed(one, since=None) for one in faults.suspects])
        faults = changed(
            faults, last=in_whole_seconds(faults.last), suspects=suspects, hit=(), healed=None
        )
    canary = domain.canary and changed(domain.canary, at=in_whole_seconds(domain.canary.at))
    since = in_whole_seconds(domain.since)
    return changed(domain, since=since, daemon_pid=None, servers=(), faults=faults, canary=canary)


def _grants(grants: Iterable[GrantReport]) -> tuple[GrantReport, ...]:
    erred = [one for one in grants if one.violations]  # the last violation first
    erred.sort(key=_last_at, reverse=True)
    listed = {one.id for one in erred[:MOST_PODS]}
    found = []
    for one in sorted(grants, key=lambda one: (one.pod, one.uid)):
        bare = changed(one, cards=(), over=False, ended=False, command="", cgroup=None)
        bare = changed(bare, memory_cap_why="", violations=None)
        if one.memory_cap != "cgroup":
            bare = changed(bare, memory_cap="")
        if one.violations and one.id in listed:
            bare = changed(bare, violations=_of_grant(one, one.violations))
        found.append(bare)
    return tuple(found)


def _last_at(grant: GrantReport) -> float:
    if grant.violations and grant.violations.last:
        return epoch(grant.violations.last.at) or 0.0
    return 0.0


def _of_grant(grant: GrantReport, own: GrantViolations) -> GrantViolations:
    if own.last is None:
        return own
    last = _violation(own.last)
    if not grant.shared_with:
        last = changed(last, pod="")
    return changed(own, last=last)


def _violation(one: ViolationReport) -> ViolationReport:
    return ViolationReport(
        at=in_whole_seconds(one.at), kind=one.kind, action=one.action, pod=one.pod
    )


def _violations(seen: ViolationsReport, grants: Iterable[GrantReport] | None) -> ViolationsReport:
    last = tuple(map(_violation, seen.last[-MOST_LAST:]))
    found = ViolationsReport(since=in_whole_seconds(seen.since), counts=seen.counts, last=last)
    if grants is None:
        return found
    return changed(found, pods=len([one for one in grants if one.violations is not None]))


def _summary(report: NodeReport, grants: Sequence[GrantReport] | None) -> Summary:
    """grants: of pods; None where they are not known."""
    models = Counter([gpu.model for gpu in report.gpus])
    ready = [domain.state for domain in report.domains].count(State.READY)
    granted, promised = _whole_gib(report, "granted_mib"), _whole_gib(report, "promised_mib")
    used = _whole_gib(report, "used_mib")
    summary = Summary(
        gpus=", ".join([f"{number}x {name}" for name, number in models.items()]),
        domains=f"{ready}/{len(report.domains)}",
        granted=f"{granted}/{promised}Gi",
        used=used if used == "?" else f"{used}Gi",
        clients="?",
    )
    if all(gpu.clients is not None for gpu in report.gpus):
        pids = {client.pid for client in report.clients or ()}
        summary = changed(summary, clients=str(len(pids)))
    if grants is not None:
        pods = {(one.pod, one.uid) for grant in grants for one in grant.pods}
        summary = changed(summary, pods=len(pods))
    if report.violations:
        violations = total([one.count for one in report.violations.counts])
        summary = changed(summary, violations=violations)
    return summary


def _whole_gib(report: NodeReport, field: str) -> str:
    every = total([getattr(gpu, field) for gpu in report.gpus])
    return "?" if every is None else str(every // 1024)


def gave_back(status: Object, before: Object) -> bool:
    """Whether a waiting pod may fit by now: a GPU has less granted, or serves or is known again."""
    had, serving = _offer(before)
    has, serving_now = _offer(status)
    for uuid, mib in has.items():
        if mib is not None and (had.get(uuid) is None or mib < had[uuid]):
            return True
    return not serving_now <= serving


def _offer(status: Object) -> tuple[dict[str, Any], set[str]]:
    granted = {gpu["uuid"]: gpu.get("grantedMiB") for gpu in status.get("gpus", ())}
    domains = status.get("domains", ())
    return granted, {one["name"] for one in domains if one.get("state") == State.READY.value}


# -- what counts as a change


def _is_same_but_for_use(one: Any, other: Any) -> bool:
    if one == other:
        return True
    if isinstance(one, dict) and isinstance(other, dict):
        firm = one.keys() - _USE
        return firm == other.keys() - _USE and all(
            _is_same_but_for_use(one[name], other[name]) for name in firm
        )
    lists = isinstance(one, list) and isinstance(other, list) and len(one) == len(other)
    return lists and all(map(_is_same_but_for_use, one, other))


def is_news(status: Object, written: Object) -> bool:
    """Whether there is a new kind of violation or one more pod with one, which no program can cause
    endlessly."""
    return _firm(status.get(VIOLATIONS)) != _firm(written.get(VIOLATIONS))


def _firm(found: Object | None) -> object:
    if not found:
        return None
    kinds = [(one["kind"], one.get("action")) for one in found.get("counts", ())]
    return found["since"], found.get("pods"), kinds


def _moved(one: Object, other: Object) -> bool:
    if one.get("clients") != other.get("clients") or one.get(VIOLATIONS) != other.get(VIOLATIONS):
        return True
    used = one.get("usedMiB")
    before = other.get("usedMiB")
    if used is None or before is None:
        return used is not before
    return bool(abs(used - before) >= USE_STEP_MIB)


# -- the labels of the Node

PRODUCT_LABEL = "mpsd.io/gpu.product"
MEMORY_LABEL = "mpsd.io/gpu.memory"
COUNT_LABEL = "mpsd.io/gpu.count"
SHARING_LABEL = "mpsd.io/sharing"
# by which mpsd's pods leave a node for an upgrade of its driver
UPGRADE_LABEL = "mpsd.io/driver-upgrade"
NODE_LABELS = (PRODUCT_LABEL, MEMORY_LABEL, COUNT_LABEL, SHARING_LABEL, UPGRADE_LABEL)
SHARING = "mps"
_LONGEST_LABEL = 63  # characters of a label's value
_NO_LABEL = re.compile(r"[^A-Za-z0-9._-]+")


def node_labels(gpus: Sequence[Gpu], policy: "Policy") -> dict[str, str]:
    """What pods may choose this node by: none about what differs from one GPU to another."""
    if not gpus:
        return {}
    unit_mib = policy.resources.memory_unit_mib
    products = {label_value(gpu.name) for gpu in gpus}
    memory = {max(0, promised_mib(gpu, policy)) // unit_mib * unit_mib // 1024 for gpu in gpus}
    named = {COUNT_LABEL: str(len(gpus)), SHARING_LABEL: SHARING}
    if len(products) == 1:
        named[PRODUCT_LABEL] = products.pop()
    if len(memory) == 1:
        named[MEMORY_LABEL] = str(memory.pop())
    return {name: value for name, value in named.items() if value}


def label_value(text: str) -> str:
    """As NVIDIA's GPU feature discovery writes a product, such as NVIDIA-H200; may be empty."""
    return _NO_LABEL.sub("-", text).strip("-._")[:_LONGEST_LABEL].rstrip("-._")


def labels_patch(labels: Mapping[str, str], wanted: Mapping[str, str]) -> Object | None:
    """The merge patch of a Node that has these labels; None where ours are as wanted."""
    changed = {
        name: wanted.get(name) for name in NODE_LABELS if labels.get(name) != wanted.get(name)
    }
    return {"metadata": {"labels": changed}} if changed else None
