"""Derives what is shown of a node (model.cluster_status) from its MPSNode.

Any JSON is a node here, with what could be read of it and the rest reported as unreadable; nothing raises.
"""

from collections.abc import Iterable, Sequence

from mpsd.model.cluster_status import (
    ClusterNode,
    ClusterStatus,
    ConditionStatus,
    DomainRow,
    GpuRow,
    KindCount,
    PodStatus,
    PodViolations,
    ShownViolation,
    ShownViolations,
    is_ready,
    is_stale,
)
from mpsd.model.domain import ALL, Domain, drains
from mpsd.model.fields import FieldReader, Fields
from mpsd.model.mpsnode import (
    MPSNode,
    MPSNodeMetadata,
    MPSNodeSpec,
    MPSNodeStatus,
    ReportedCount,
    ReportedGpu,
    ReportedGrant,
    ReportedPodViolation,
    read,
)
from mpsd.model.problem import shown
from mpsd.model.times import seconds


def cluster_status(mpsnodes: Iterable[object], now: float) -> ClusterStatus:
    """The nodes by name."""
    nodes = [read_mpsnode(thing, now) for thing in mpsnodes]
    return ClusterStatus(now, tuple(sorted(nodes, key=lambda node: node.name)))


def read_mpsnode(thing: object, now: float) -> ClusterNode:
    """One MPSNode, whatever it holds."""
    fields: Fields = thing if isinstance(thing, dict) else {}
    shape = FieldReader()
    found = read(fields, shape)
    unreadable = [problem.fault for problem in shape.problems]
    if not isinstance(thing, dict):
        unreadable = [f"the object is {shown(thing)}, which is no MPSNode"]
    if shape.too_many:  # nothing of it may be believed
        found, unreadable = MPSNode(found.metadata), [str(shape.too_many)]
    return _node(found, unreadable, now)


def _node(found: MPSNode, unreadable: Sequence[str], now: float) -> ClusterNode:
    status = found.status or MPSNodeStatus()
    name = (found.metadata or MPSNodeMetadata()).name or "(no name)"
    cordoned = frozenset((found.spec or MPSNodeSpec()).cordoned or ())
    told_at = seconds(status.told_at)
    stale = is_stale(told_at, now)
    conditions = [
        ConditionStatus(
            one.type or "", one.status or "", one.reason or "", one.message or "", seconds(one.last_transition_time)
        )
        for one in status.conditions or ()
    ]
    domains = _domains(status, name)
    gpus = _gpus(status.gpus or (), name, cordoned, domains)
    violations = _violations(status)
    return ClusterNode(
        name=name,
        ready=is_ready(told_at, stale, [gpu.state for gpu in gpus], conditions),
        told_at=told_at,
        stale=stale,
        driver=status.driver or "",
        cordoned=tuple(sorted(cordoned)),
        conditions=tuple(conditions),
        gpus=tuple(gpus),
        domains=tuple(domains),
        pods=None if status.grants is None else _pods(status.grants, name, violations),
        unreadable=tuple(unreadable),
        version=status.version or "",
        violations=violations,
    )


def _domains(status: MPSNodeStatus, node: str) -> list[DomainRow]:
    rows = []
    for domain in status.domains or ():
        canary, faults = domain.canary, domain.faults
        suspects = (faults.suspects if faults else None) or ()
        rows.append(
            DomainRow(
                node=node,
                name=domain.name or "",
                gpus=tuple(domain.gpus or ()),
                state=domain.state or "unknown",
                since=seconds(domain.since),
                reason=domain.reason or "",
                restarts=domain.restarts,
                suspects=tuple([(one.pod or "", one.faults) for one in suspects]),
                context_mib=canary.context_mib if canary else None,
                doubt=(canary.problem or canary.warning or "") if canary else "",
                version=domain.version or "",
                faults=faults.count if faults else None,
                last_fault=seconds(faults.last) if faults else None,
            )
        )
    return rows


def _gpus(
    gpus: Iterable[ReportedGpu], node: str, cordoned: frozenset[str], domains: Sequence[DomainRow]
) -> list[GpuRow]:
    by_name = {domain.name: domain for domain in domains}
    draining = drains(cordoned, [Domain(domain.name, domain.gpus) for domain in domains] if cordoned else [])
    rows = []
    for gpu in gpus:
        uuid, domain = gpu.uuid or "", by_name.get(gpu.domain or "")
        rows.append(
            GpuRow(
                node=node,
                uuid=uuid,
                label=uuid if gpu.index is None else f"gpu{gpu.index}",
                name=gpu.model or "",
                domain=domain.name if domain else None,
                state=domain.state if domain else None,
                cordoned=ALL in cordoned or uuid in cordoned or bool(domain and domain.name in draining),
                restarts=domain.restarts if domain else None,
                memory_mib=gpu.memory_mib,
                promised_mib=gpu.promised_mib,
                granted_mib=gpu.granted_mib,
                granted_percent=gpu.granted_percent,
                used_mib=gpu.used_mib,
                clients=gpu.clients,
                context_mib=domain.context_mib if domain else None,
                promised_percent=gpu.promised_percent,
                promised_clients=gpu.promised_clients,
            )
        )
    return rows


def _pods(grants: Sequence[ReportedGrant], node: str, violations: ShownViolations | None) -> tuple[PodStatus, ...]:
    reported = sum([grant.violations is not None for grant in grants])
    others = PodViolations() if violations and violations.pods == reported else None
    rows = []
    for grant in grants:
        namespace, _slash, name = (grant.pod or "").rpartition("/")
        own = grant.violations
        last = _violation(own.last, grant.pod) if own and own.last else None
        rows.append(
            PodStatus(
                node=node,
                namespace=namespace,
                pod=name,
                uid=grant.uid or "",
                gpus=tuple(grant.gpus or ()),
                memory_mib=grant.memory_mib,
                thread_percent=grant.thread_percent,
                reserved_percent=grant.reserved_percent,
                used_mib=grant.used_mib,
                clients=grant.clients,
                violations=PodViolations(_counts(own.counts), last) if own else others,
            )
        )
    return tuple(rows)


def _violations(status: MPSNodeStatus) -> ShownViolations | None:
    found = status.violations
    if found is None:
        return None
    last = tuple([_violation(one, one.pod) for one in found.last or ()])
    return ShownViolations(seconds(found.since), found.pods, _counts(found.counts), last)


def _violation(found: ReportedPodViolation, pod: str | None) -> ShownViolation:
    namespace, _slash, name = (pod or "").rpartition("/")
    return ShownViolation(seconds(found.at), found.kind or "", found.action or "", namespace, name)


def _counts(counts: Iterable[ReportedCount] | None) -> tuple[KindCount, ...]:
    return tuple([KindCount(one.kind or "", one.count) for one in counts or ()])
