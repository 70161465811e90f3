"""Derives what is shown of a node (model.cluster_status) from its MPSNode.

Any JSON is a node here, with what could be read of it and the rest said to be unreadable; nothing raises.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

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
    gpu_label,
    is_ready,
    is_stale,
)
from mpsd.model.domain import ALL, Domain, drains
from mpsd.model.fields import FieldReader, Fields, Seconds
from mpsd.model.mpsnode import (
    MPSNode,
    MPSNodeMetadata,
    MPSNodeSpec,
    MPSNodeStatus,
    ReportedCount,
    ReportedDomain,
    ReportedGpu,
    ReportedGrant,
    ReportedPodViolation,
    read,
)
from mpsd.model.problem import shown


def cluster_status(mpsnodes: Iterable[object], now: float, seconds: Seconds) -> ClusterStatus:
    """The nodes by name."""
    nodes = [read_mpsnode(thing, now, seconds) for thing in mpsnodes]
    return ClusterStatus(now, tuple(sorted(nodes, key=lambda node: node.name)))


def read_mpsnode(thing: object, now: float, seconds: Seconds) -> ClusterNode:
    """One MPSNode, whatever it holds."""
    fields: Fields = thing if isinstance(thing, dict) else {}
    shape = FieldReader()
    found = read(fields, shape)
    unreadable = [problem.fault for problem in shape.problems]
    if not isinstance(thing, dict):
        unreadable = [f"the object is {shown(thing)}, which is no MPSNode"]
    if shape.too_many:  # nothing of it may be believed
        found, unreadable = MPSNode(found.metadata), [str(shape.too_many)]
    return _NodeReader(found, seconds).shown(now, unreadable)


class _NodeReader:
    def __init__(self, found: MPSNode, seconds: Seconds) -> None:
        self._seconds = seconds
        self._status = found.status or MPSNodeStatus()
        self._name = (found.metadata or MPSNodeMetadata()).name or "(no name)"
        self._cordoned = frozenset((found.spec or MPSNodeSpec()).cordoned or ())

    def shown(self, now: float, unreadable: Sequence[str]) -> ClusterNode:
        status = self._status
        told_at = self._time(status.told_at)
        stale = is_stale(told_at, now)
        conditions = tuple(
            [
                ConditionStatus(
                    type=one.type or "",
                    status=one.status or "",
                    reason=one.reason or "",
                    message=one.message or "",
                    since=self._time(one.last_transition_time),
                )
                for one in status.conditions or ()
            ]
        )
        domains = tuple([self._domain(one) for one in status.domains or ()])
        gpus = tuple(self._gpus(domains))
        violations = self._violations()
        return ClusterNode(
            name=self._name,
            ready=is_ready(told_at, stale, [gpu.state for gpu in gpus], conditions),
            told_at=told_at,
            stale=stale,
            driver=status.driver or "",
            cordoned=tuple(sorted(self._cordoned)),
            conditions=conditions,
            gpus=gpus,
            domains=domains,
            pods=None if status.grants is None else tuple(self._pods(status.grants, violations)),
            unreadable=tuple(unreadable),
            version=status.version or "",
            violations=violations,
        )

    def _domain(self, domain: ReportedDomain) -> DomainRow:
        canary, faults = domain.canary, domain.faults
        suspects = (faults.suspects if faults else None) or ()
        return DomainRow(
            node=self._name,
            name=domain.name or "",
            gpus=tuple(domain.gpus or ()),
            state=domain.state or "unknown",
            since=self._time(domain.since),
            reason=domain.reason or "",
            restarts=domain.restarts,
            suspects=tuple([(one.pod or "", one.faults) for one in suspects]),
            context_mib=canary.context_mib if canary else None,
            doubt=(canary.problem or canary.warning or "") if canary else "",
            version=domain.version or "",
            faults=faults.count if faults else None,
            last_fault=self._time(faults.last) if faults else None,
        )

    def _gpus(self, domains: Sequence[DomainRow]) -> Iterator[GpuRow]:
        by_name = {domain.name: domain for domain in domains}
        known = [Domain(domain.name, domain.gpus) for domain in domains] if self._cordoned else []
        draining = drains(self._cordoned, known)
        for gpu in self._status.gpus or ():
            yield self._gpu(gpu, by_name.get(gpu.domain or ""), draining)

    def _gpu(self, gpu: ReportedGpu, domain: DomainRow | None, draining: Mapping[str, str]) -> GpuRow:
        uuid, cordoned = gpu.uuid or "", self._cordoned
        return GpuRow(
            node=self._name,
            uuid=uuid,
            label=gpu_label(uuid, gpu.index),
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

    def _pods(self, grants: Sequence[ReportedGrant], violations: ShownViolations | None) -> Iterator[PodStatus]:
        reported = sum([grant.violations is not None for grant in grants])
        others = PodViolations() if violations and violations.pods == reported else None
        for grant in grants:
            namespace, _slash, name = (grant.pod or "").rpartition("/")
            yield PodStatus(
                node=self._name,
                namespace=namespace,
                pod=name,
                uid=grant.uid or "",
                gpus=tuple(grant.gpus or ()),
                memory_mib=grant.memory_mib,
                thread_percent=grant.thread_percent,
                reserved_percent=grant.reserved_percent,
                used_mib=grant.used_mib,
                clients=grant.clients,
                violations=others if grant.violations is None else self._pod_violations(grant),
            )

    def _violations(self) -> ShownViolations | None:
        found = self._status.violations
        if found is None:
            return None
        last = [self._violation(one, one.pod) for one in found.last or ()]
        return ShownViolations(self._time(found.since), found.pods, _counts(found.counts), tuple(last))

    def _pod_violations(self, grant: ReportedGrant) -> PodViolations | None:
        found = grant.violations
        if found is None:
            return None
        return PodViolations(_counts(found.counts), self._violation(found.last, grant.pod) if found.last else None)

    def _violation(self, found: ReportedPodViolation, pod: str | None) -> ShownViolation:
        namespace, _slash, name = (pod or "").rpartition("/")
        return ShownViolation(self._time(found.at), found.kind or "", found.action or "", namespace, name)

    def _time(self, text: str | None) -> float | None:
        return self._seconds(text or "")


def _counts(counts: Iterable[ReportedCount] | None) -> tuple[KindCount, ...]:
    return tuple([KindCount(one.kind or "", one.count) for one in counts or ()])
