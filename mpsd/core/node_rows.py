"""A row a node: what somebody who looks at a cluster reads first, and is shown before the rest has been read.

One rule: an MPSNode that is as an agent writes it makes the row that all that can be read of it makes; any other makes
none here, and is read whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from mpsd.core.cluster_status import (
    ClusterNode,
    ConditionStatus,
    Seconds,
    amount,
    cordoned_gpus,
    is_ready,
    is_stale,
)
from mpsd.core.domain_states import State
from mpsd.core.mps_ready import CONDITION
from mpsd.core.mpsnode_told import ToldDomain, ToldMetadata


@dataclass(frozen=True, slots=True)
class NodeRow:
    """Amounts of all its GPUs; None where one is not known, and where it has told nothing.

    condition: MPSReady; None where nobody has told it. ready_domains: of `domains`. cordoned: by label, with commas.
    violations: since its agent began; violation_at: seconds since 1970, the last one; None where there was none too.
    """

    name: str
    ready: bool
    condition: ConditionStatus | None
    told_at: float | None
    stale: bool
    gpus: int | None
    domains: int | None
    ready_domains: int | None
    granted_mib: int | None
    promised_mib: int | None
    used_mib: int | None
    clients: int | None
    pods: int | None
    cordoned: str
    driver: str
    violations: int | None = None
    violation_at: float | None = None


def node_row(node: ClusterNode) -> NodeRow:
    gpus, told = node.gpus, node.told_at is not None
    return NodeRow(
        name=node.name,
        ready=node.ready,
        condition=node.condition,
        told_at=node.told_at,
        stale=node.stale,
        gpus=len(gpus) if told else None,
        domains=len(node.domains) if told else None,
        ready_domains=sum([domain.state == State.READY for domain in node.domains]) if told else None,
        granted_mib=_sum([gpu.granted_mib for gpu in gpus]) if told else None,
        promised_mib=_sum([gpu.promised_mib for gpu in gpus]) if told else None,
        used_mib=_sum([gpu.used_mib for gpu in gpus]) if told else None,
        clients=_sum([gpu.clients for gpu in gpus]) if told else None,
        pods=None if node.pods is None else len(node.pods),
        cordoned=cordoned_gpus(node),
        driver=node.driver,
        violations=node.violations.total if node.violations else None,
        violation_at=node.violations.last[-1].at if node.violations and node.violations.last else None,
    )


def _sum(amounts: Sequence[int | None]) -> int | None:
    """None as soon as one is not known."""
    known = [one for one in amounts if one is not None]
    return sum(known) if len(known) == len(amounts) else None


# -- as an agent writes it -----------------------------------------------------------------------------------------


class ToldSpec(TypedDict, total=False):
    cordoned: list[str] | None


class ToldCondition(TypedDict, total=False):
    type: str | None
    status: str | None
    reason: str | None
    message: str | None
    lastTransitionTime: str | None


class ToldGpu(TypedDict, total=False):
    domain: str | None
    promisedMiB: int | None
    grantedMiB: int | None
    usedMiB: int | None
    clients: int | None


class ToldGrant(TypedDict, total=False):
    """Only counted."""


class ToldCount(TypedDict, total=False):
    count: int | None


class ToldViolation(TypedDict, total=False):
    at: str | None


class ToldViolations(TypedDict, total=False):
    counts: list[ToldCount] | None
    last: list[ToldViolation] | None


class ToldStatus(TypedDict, total=False):
    toldAt: str | None
    driver: str | None
    conditions: list[ToldCondition] | None
    gpus: list[ToldGpu] | None
    domains: list[ToldDomain] | None
    grants: list[ToldGrant] | None
    violations: ToldViolations | None


class ToldNode(TypedDict, total=False):
    """The fields of an MPSNode that a row is made of, for whoever reads JSON by types."""

    metadata: ToldMetadata | None
    spec: ToldSpec | None
    status: ToldStatus | None


def told_row(told: ToldNode, now: float, seconds: Seconds) -> NodeRow | None:
    """None where something is cordoned, which takes more fields to say by label."""
    status: ToldStatus = told.get("status") or {}
    if (told.get("spec") or {}).get("cordoned"):
        return None
    told_at = seconds(status.get("toldAt") or "")
    stale = is_stale(told_at, now)
    conditions = [_condition(one, seconds) for one in status.get("conditions") or ()]
    domains, gpus, grants = status.get("domains") or (), status.get("gpus") or (), status.get("grants")
    states = {domain.get("name") or "": domain.get("state") for domain in domains}
    is_told = told_at is not None
    violations = status.get("violations")
    last: Sequence[ToldViolation] = (violations or {}).get("last") or ()
    return NodeRow(
        name=(told.get("metadata") or {}).get("name") or "(no name)",
        ready=is_ready(told_at, stale, [states.get(gpu.get("domain") or "") for gpu in gpus], conditions),
        condition=next((one for one in conditions if one.type == CONDITION), None),
        told_at=told_at,
        stale=stale,
        gpus=len(gpus) if is_told else None,
        domains=len(domains) if is_told else None,
        ready_domains=sum([domain.get("state") == State.READY for domain in domains]) if is_told else None,
        granted_mib=_told_sum([gpu.get("grantedMiB") for gpu in gpus]) if is_told else None,
        promised_mib=_told_sum([gpu.get("promisedMiB") for gpu in gpus]) if is_told else None,
        used_mib=_told_sum([gpu.get("usedMiB") for gpu in gpus]) if is_told else None,
        clients=_told_sum([gpu.get("clients") for gpu in gpus]) if is_told else None,
        pods=None if grants is None else len(grants),
        cordoned="",
        driver=status.get("driver") or "",
        violations=None
        if violations is None
        else _told_sum([one.get("count") for one in violations.get("counts") or ()]),
        violation_at=seconds(last[-1].get("at") or "") if last else None,
    )


def _condition(told: ToldCondition, seconds: Seconds) -> ConditionStatus:
    return ConditionStatus(
        type=told.get("type") or "",
        status=told.get("status") or "",
        reason=told.get("reason") or "",
        message=told.get("message") or "",
        since=seconds(told.get("lastTransitionTime") or ""),
    )


def _told_sum(amounts: Sequence[int | None]) -> int | None:
    known = [one for one in amounts if one is not None]
    are_amounts = not known or (amount(min(known)) is not None and amount(max(known)) is not None)
    return sum(known) if are_amounts and len(known) == len(amounts) else None
