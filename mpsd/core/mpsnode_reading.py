"""MPSNodes as they come from the API server, read into core.cluster_status.

One rule: any JSON is a node here, with what could be read of it and the rest said to be unreadable; nothing raises.
"""

from collections.abc import Iterable, Iterator, Sequence

from mpsd.core.cluster_status import (
    ClusterNode,
    ClusterStatus,
    ConditionStatus,
    PodStatus,
    Seconds,
    amount,
    gpu_label,
    is_ready,
    is_stale,
)
from mpsd.core.cordon import ALL, drains, read_cordoned
from mpsd.core.domains import Domain
from mpsd.core.problem import shown
from mpsd.core.shape import Fields, Shape
from mpsd.core.status_rows import DomainRow, GpuRow
from mpsd.core.violations_told import KindCount, LastViolation, NodeViolations, PodViolations


def cluster_status(mpsnodes: Iterable[object], now: float, seconds: Seconds) -> ClusterStatus:
    """The nodes by name."""
    nodes = [read_mpsnode(thing, now, seconds) for thing in mpsnodes]
    return ClusterStatus(now, tuple(sorted(nodes, key=lambda node: node.name)))


def read_mpsnode(thing: object, now: float, seconds: Seconds) -> ClusterNode:
    """One MPSNode, whatever it holds."""
    fields: Fields = thing if isinstance(thing, dict) else {}
    reader = _Reader(fields, seconds)
    if not isinstance(thing, dict):
        reader.unreadable.append(f"the object is {shown(thing)}, which is no MPSNode")
    node = reader.node(now)
    if reader.shape.too_many:  # nothing of it may be believed
        empty = _Reader({"metadata": {"name": node.name}}, seconds)
        empty.unreadable.append(str(reader.shape.too_many))
        return empty.node(now)
    return node


class _Reader:
    def __init__(self, fields: Fields, seconds: Seconds) -> None:
        self.shape = Shape()
        self.unreadable: list[str] = []
        self._fields = fields
        self._seconds = seconds
        self._status = self.shape.mapping(fields, "status", "")
        metadata = fields.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        self._name = name if isinstance(name, str) and name else "(no name)"

    def node(self, now: float) -> ClusterNode:
        told_at = self._time(self._status, "toldAt", "status")
        stale = is_stale(told_at, now)
        conditions = tuple(self._conditions())
        domains = tuple(self._domains())
        gpus = tuple(self._gpus(domains))
        violations = self._violations() if self._status.get("violations") is not None else None
        pods = tuple(self._pods(violations)) if self._status.get("grants") is not None else None
        return ClusterNode(
            name=self._name,
            ready=is_ready(told_at, stale, [gpu.state for gpu in gpus], conditions),
            told_at=told_at,
            stale=stale,
            driver=self.shape.text(self._status, "driver", "status"),
            cordoned=tuple(sorted(read_cordoned(self._fields))),
            conditions=conditions,
            gpus=gpus,
            domains=domains,
            pods=pods,
            unreadable=(*self.unreadable, *(problem.fault for problem in self.shape.problems)),
            version=self.shape.text(self._status, "version", "status"),
            violations=violations,
        )

    def _conditions(self) -> Iterator[ConditionStatus]:
        for path, entry in self.shape.entries(self._status, "conditions", "status"):
            yield ConditionStatus(
                type=self.shape.text(entry, "type", path),
                status=self.shape.text(entry, "status", path),
                reason=self.shape.text(entry, "reason", path),
                message=self.shape.text(entry, "message", path),
                since=self._time(entry, "lastTransitionTime", path),
            )

    def _domains(self) -> Iterator[DomainRow]:
        for path, entry in self.shape.entries(self._status, "domains", "status"):
            context_mib, doubt = self._canary(entry, path) if "canary" in entry else (None, "")
            suspects, faults, last_fault = self._faults(entry, path) if "faults" in entry else ((), None, None)
            yield DomainRow(
                node=self._name,
                name=self.shape.text(entry, "name", path),
                gpus=self.shape.texts(entry, "gpus", path),
                state=self.shape.text(entry, "state", path) or "unknown",
                since=self._time(entry, "since", path),
                reason=self.shape.text(entry, "reason", path),
                restarts=self._amount(entry, "restarts", path),
                suspects=suspects,
                context_mib=context_mib,
                doubt=doubt,
                version=self.shape.text(entry, "version", path),
                faults=faults,
                last_fault=last_fault,
            )

    def _canary(self, domain: Fields, path: str) -> tuple[int | None, str]:
        """What a context costs, and what the canary doubts."""
        inner = f"{path}.canary"
        canary = self.shape.mapping(domain, "canary", path)
        doubts = [self.shape.text(canary, name, inner) for name in ("problem", "warning")]
        return self._amount(canary, "contextMiB", inner), next(filter(None, doubts), "")

    def _faults(self, domain: Fields, path: str) -> tuple[tuple[tuple[str, int | None], ...], int | None, float | None]:
        """The suspects, how many faults there were, and when the last one was."""
        inner = f"{path}.faults"
        faults = self.shape.mapping(domain, "faults", path)
        suspects = tuple(
            (self.shape.text(entry, "pod", where), self._amount(entry, "faults", where))
            for where, entry in self.shape.entries(faults, "suspects", inner)
        )
        return suspects, self._amount(faults, "count", inner), self._time(faults, "last", inner)

    def _gpus(self, domains: Sequence[DomainRow]) -> Iterator[GpuRow]:
        by_name = {domain.name: domain for domain in domains}
        cordoned = read_cordoned(self._fields)
        known = [Domain(domain.name, domain.gpus) for domain in domains] if cordoned else []
        draining = drains(cordoned, known)
        for path, entry in self.shape.entries(self._status, "gpus", "status"):
            uuid = self.shape.text(entry, "uuid", path)
            index = self._amount(entry, "index", path)
            domain = by_name.get(self.shape.text(entry, "domain", path))
            yield GpuRow(
                node=self._name,
                uuid=uuid,
                label=gpu_label(uuid, index),
                name=self.shape.text(entry, "model", path),
                domain=domain.name if domain else None,
                state=domain.state if domain else None,
                cordoned=ALL in cordoned or uuid in cordoned or bool(domain and domain.name in draining),
                restarts=domain.restarts if domain else None,
                memory_mib=self._amount(entry, "memoryMiB", path),
                promised_mib=self._amount(entry, "promisedMiB", path),
                granted_mib=self._amount(entry, "grantedMiB", path),
                granted_percent=self._amount(entry, "grantedPercent", path),
                used_mib=self._amount(entry, "usedMiB", path),
                clients=self._amount(entry, "clients", path),
                context_mib=domain.context_mib if domain else None,
                promised_percent=self._amount(entry, "promisedPercent", path),
                promised_clients=self._amount(entry, "promisedClients", path),
            )

    def _pods(self, violations: NodeViolations | None) -> Iterator[PodStatus]:
        grants = self.shape.entries(self._status, "grants", "status")
        told_of = sum([entry.get("violations") is not None for _path, entry in grants])
        others = PodViolations() if violations and violations.pods == told_of else None
        for path, entry in grants:
            namespace, _slash, name = self.shape.text(entry, "pod", path).rpartition("/")
            yield PodStatus(
                node=self._name,
                namespace=namespace,
                pod=name,
                uid=self.shape.text(entry, "uid", path),
                gpus=self.shape.texts(entry, "gpus", path),
                memory_mib=self._amount(entry, "memoryMiB", path),
                thread_percent=self._amount(entry, "threadPercent", path),
                reserved_percent=self._amount(entry, "reservedPercent", path),
                used_mib=self._amount(entry, "usedMiB", path),
                clients=self._amount(entry, "clients", path),
                violations=others if entry.get("violations") is None else self._pod_violations(entry, path),
            )

    def _violations(self) -> NodeViolations:
        path = "status.violations"
        told = self.shape.mapping(self._status, "violations", "status")
        return NodeViolations(
            since=self._time(told, "since", path),
            pods=self._amount(told, "pods", path),
            counts=self._counts(told, path),
            last=tuple(
                self._last(entry, where, self.shape.text(entry, "pod", where))
                for where, entry in self.shape.entries(told, "last", path)
            ),
        )

    def _pod_violations(self, grant: Fields, path: str) -> PodViolations:
        inner = f"{path}.violations"
        told = self.shape.mapping(grant, "violations", path)
        last, pod = self.shape.mapping(told, "last", inner), self.shape.text(grant, "pod", path)
        return PodViolations(self._counts(told, inner), self._last(last, f"{inner}.last", pod) if last else None)

    def _counts(self, told: Fields, path: str) -> tuple[KindCount, ...]:
        return tuple(
            KindCount(self.shape.text(entry, "kind", where), self._amount(entry, "count", where))
            for where, entry in self.shape.entries(told, "counts", path)
        )

    def _last(self, told: Fields, path: str, pod: str) -> LastViolation:
        """pod: namespace and name."""
        namespace, _slash, name = pod.rpartition("/")
        kind, action = self.shape.text(told, "kind", path), self.shape.text(told, "action", path)
        return LastViolation(self._time(told, "at", path), kind, action, namespace, name)

    def _amount(self, fields: Fields, key: str, path: str) -> int | None:
        found = fields.get(key)
        if type(found) is not int:  # which it nearly always is
            found = self.shape.number(fields, key, path, absent=None)
        return amount(found)

    def _time(self, fields: Fields, key: str, path: str) -> float | None:
        return self._seconds(self.shape.text(fields, key, path))
