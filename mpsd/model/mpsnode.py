"""The fields of an MPSNode, for the agent that writes one and for everybody who reads it.

They are those of manifests/chart/templates/crd/mpsnode.yaml. Every field may be absent, which is None: agents of
other versions report more or less. Times are RFC 3339, amounts whole numbers from 0 to what an int64 holds.

`read_mpsnode` derives what is shown of a node (model.cluster_status, which says what the fields mean). Any JSON is a
node there, with what could be read of it and the rest reported as unreadable; nothing raises.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin

import msgspec

from mpsd.model import cluster_status as rows
from mpsd.model.conditions import CONDITION, Truth
from mpsd.model.domain import ALL, State, drains
from mpsd.model.fields import MOST_FIELDS, FieldReader, Fields, at
from mpsd.model.problem import shown
from mpsd.model.times import seconds

API, KIND = "mpsd.io/v1alpha1", "MPSNode"

_LARGEST = 2**63 - 1  # an int64, as the definition has it
Amount = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)] | None
Text = str | None
Texts = list[str] | None


def _field(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join("MiB" if word == "mib" else word.title() for word in rest)


class Reported(msgspec.Struct, frozen=True, omit_defaults=True, rename=_field):
    """An object of an MPSNode."""


class ReportedCondition(Reported, frozen=True):
    type: Text = None
    status: Text = None
    last_transition_time: Text = None
    reason: Text = None
    message: Text = None


class ReportedCount(Reported, frozen=True):
    kind: Text = None
    count: Amount = None


class ReportedViolation(Reported, frozen=True):
    """pod: absent where none is known; of a grant absent where its own pod is meant."""

    at: Text = None
    kind: Text = None
    action: Text = None
    pod: Text = None


class ReportedPodViolations(Reported, frozen=True):
    counts: list[ReportedCount] | None = None
    last: ReportedViolation | None = None


class ReportedViolations(Reported, frozen=True):
    since: Text = None
    counts: list[ReportedCount] | None = None
    last: list[ReportedViolation] | None = None
    pods: Amount = None


class ReportedGpu(Reported, frozen=True):
    """index: absent of a MIG instance, which has a label, the UUID of its GPU and its profile instead."""

    uuid: Text = None
    index: Amount = None
    model: Text = None
    domain: Text = None
    memory_mib: Amount = None
    promised_mib: Amount = None
    promised_percent: Amount = None
    promised_clients: Amount = None
    granted_mib: Amount = None
    granted_percent: Amount = None
    used_mib: Amount = None
    clients: Amount = None
    label: Text = None
    parent: Text = None
    mig_profile: Text = None


class ReportedPod(Reported, frozen=True):
    """pod: namespace and name."""

    pod: Text = None
    uid: Text = None


class ReportedSuspect(ReportedPod, frozen=True):
    faults: Amount = None


class ReportedCause(ReportedPod, frozen=True):
    """pod: None of a process in no pod that is known."""

    program: Text = None
    how: Text = None


class ReportedFaults(Reported, frozen=True):
    count: Amount = None
    last: Text = None
    suspects: list[ReportedSuspect] | None = None
    causes: list[ReportedCause] | None = None


class ReportedCanary(Reported, frozen=True):
    at: Text = None
    driver: Text = None
    context_mib: Amount = None
    sms: Amount = None
    problem: Text = None
    warning: Text = None


class ReportedDomain(Reported, frozen=True):
    name: Text = None
    gpus: Texts = None
    state: Text = None
    since: Text = None
    restarts: Amount = None
    reason: Text = None
    faults: ReportedFaults | None = None
    canary: ReportedCanary | None = None
    version: Text = None
    kind: Text = None


class ReportedGrant(ReportedPod, frozen=True):
    """What a pod got, or a resource claim (namespace and name) of which it is the first pod. memory_mib: on each of its
    GPUs. shared_with: the other pods of the claim. priority: absent where it is normal. memory_cap: `cgroup`, absent
    where no memory limit of its cgroups is in force."""

    gpus: Texts = None
    memory_mib: Amount = None
    thread_percent: Amount = None
    reserved_percent: Amount = None
    used_mib: Amount = None
    clients: Amount = None
    violations: ReportedPodViolations | None = None
    claim: Text = None
    claim_uid: Text = None
    shared_with: list[ReportedPod] | None = None
    priority: Amount = None
    memory_cap: Text = None


class ReportedSummary(Reported, frozen=True):
    """The columns of `kubectl get mps`."""

    gpus: Text = None
    domains: Text = None
    granted: Text = None
    used: Text = None
    clients: Text = None
    pods: Amount = None
    violations: Amount = None


class MPSNodeStatus(Reported, frozen=True):
    """What an agent reports. grants: absent where they are not known. version: of the agent's mpsd."""

    told_at: Text = None
    driver: Text = None
    version: Text = None
    summary: ReportedSummary | None = None
    gpus: list[ReportedGpu] | None = None
    domains: list[ReportedDomain] | None = None
    grants: list[ReportedGrant] | None = None
    violations: ReportedViolations | None = None
    conditions: list[ReportedCondition] | None = None


class MPSNodeMetadata(Reported, frozen=True):
    name: Text = None


class MPSNodeSpec(Reported, frozen=True):
    """What an operator asks for. cordoned: UUIDs, or `all`."""

    cordoned: Texts = None


class MPSNode(Reported, frozen=True):
    metadata: MPSNodeMetadata | None = None
    spec: MPSNodeSpec | None = None
    status: MPSNodeStatus | None = None


Kind = TypeVar("Kind", bound=Reported)
_MOST_ENTRIES = MOST_FIELDS // 20  # of no more there are never too many fields, which then need no counting


def as_object(part: Reported) -> dict[str, Any]:
    """The JSON of it, without what is absent."""
    return cast("dict[str, Any]", msgspec.to_builtins(part))


def read(fields: Fields, shape: FieldReader) -> MPSNode:
    """What can be read of any JSON object; `shape` notes what cannot."""
    try:
        found = msgspec.convert(fields, MPSNode)
    except (msgspec.ValidationError, RecursionError):
        return _read(fields, MPSNode, "", shape)
    return found if _entries(found.status) <= _MOST_ENTRIES else _read(fields, MPSNode, "", shape)


def _entries(status: MPSNodeStatus | None) -> int:
    if status is None:
        return 0
    held: Iterable[Texts] = [one.gpus for one in (*(status.domains or ()), *(status.grants or ()))]
    sharing = sum([len(one.shared_with or ()) for one in status.grants or ()])
    lists = len(status.gpus or ()) + len(status.conditions or ()) + sharing
    return lists + sum([1 + len(gpus or ()) for gpus in held])


def _read(fields: Fields, kind: type[Kind], path: str, shape: FieldReader) -> Kind:
    """Field by field: one of a wrong type is absent, and nothing else is."""
    named = [(one, kind_of) for one, kind_of in _fields(kind) if fields.get(one.encode_name) is not None]
    return kind(**{one.name: _value(kind_of, fields, one.encode_name, path, shape) for one, kind_of in named})


@cache
def _fields(kind: type[Reported]) -> tuple[tuple[msgspec.structs.FieldInfo, Any], ...]:
    return tuple((one, get_args(one.type)[0]) for one in msgspec.structs.fields(kind))


def _value(kind: Any, fields: Fields, key: str, path: str, shape: FieldReader) -> object:
    """kind: text, a flag, an amount, another part, or a list of parts or of texts."""
    if kind is str:
        return shape.text(fields, key, path)
    if kind is bool:
        return shape.flag(fields, key, path)
    origin = get_origin(kind)
    if origin is Annotated:  # None for what is no amount, such as -1
        amount = shape.number(fields, key, path, absent=None)
        return amount if amount is not None and 0 <= amount <= _LARGEST else None
    if origin is not list:
        return _read(shape.mapping(fields, key, path), kind, at(path, key), shape)
    (entry,) = get_args(kind)
    if entry is str:
        return list(shape.texts(fields, key, path))
    return [_read(one, entry, where, shape) for where, one in shape.entries(fields, key, path)]


def cluster_status(mpsnodes: Iterable[object], now: float) -> rows.ClusterStatus:
    nodes = [read_mpsnode(thing, now) for thing in mpsnodes]
    return rows.ClusterStatus(now, tuple(sorted(nodes, key=lambda node: node.name)))


def read_mpsnode(thing: object, now: float) -> rows.ClusterNode:
    fields: Fields = thing if isinstance(thing, dict) else {}
    shape = FieldReader()
    found = read(fields, shape)
    unreadable = [problem.fault for problem in shape.problems]
    if not isinstance(thing, dict):
        unreadable = [f"the object is {shown(thing)}, which is no MPSNode"]
    if shape.too_many:  # nothing of it may be believed
        found, unreadable = MPSNode(found.metadata), [str(shape.too_many)]
    return _node(found, unreadable, now)


def _node(found: MPSNode, unreadable: Sequence[str], now: float) -> rows.ClusterNode:
    status = found.status or MPSNodeStatus()
    name = (found.metadata or MPSNodeMetadata()).name or "(no name)"
    cordoned = frozenset((found.spec or MPSNodeSpec()).cordoned or ())
    told_at = seconds(status.told_at)
    stale = rows.is_stale(told_at, now)
    conditions = [
        rows.ConditionStatus(
            one.type or "", one.status or "", one.reason or "", one.message or "", seconds(one.last_transition_time)
        )
        for one in status.conditions or ()
    ]
    domains = [
        rows.domain_row(one, seconds(one.since), seconds(one.faults.last) if one.faults else None, name)
        for one in status.domains or ()
    ]
    gpus = [*_gpus(status.gpus or (), name, cordoned, domains)]
    serves = bool(gpus) and all(gpu.state == State.READY for gpu in gpus)
    violations = None
    if seen := status.violations:
        last = tuple([_violation(one, one.pod) for one in seen.last or ()])
        violations = rows.ShownViolations(seconds(seen.since), seen.pods, _counts(seen.counts), last)
    return rows.ClusterNode(
        name=name,
        ready=told_at is not None
        and not stale
        and serves
        and any(one.type == CONDITION and one.status == Truth.TRUE for one in conditions),
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


def _gpus(
    gpus: Iterable[ReportedGpu], node: str, cordoned: frozenset[str], domains: Sequence[rows.DomainRow]
) -> Iterator[rows.GpuRow]:
    by_name = {domain.name: domain for domain in domains}
    draining = drains(cordoned, domains if cordoned else ())
    for gpu in gpus:
        uuid, domain = gpu.uuid or "", by_name.get(gpu.domain or "")
        label = gpu.label or (uuid if gpu.index is None else f"gpu{gpu.index}")
        drained = ALL in cordoned or uuid in cordoned or bool(domain and domain.name in draining)
        yield rows.gpu_row(gpu, label, gpu.model or "", domain, node, cordoned=drained)


def _pods(
    grants: Sequence[ReportedGrant], node: str, violations: rows.ShownViolations | None
) -> tuple[rows.PodStatus, ...]:
    reported = sum([grant.violations is not None for grant in grants])
    others = rows.PodViolations() if violations and violations.pods == reported else None
    pods = []
    for grant in grants:
        namespace, _slash, name = (grant.pod or "").rpartition("/")
        own = grant.violations
        last = _violation(own.last, own.last.pod or grant.pod) if own and own.last else None
        pods.append(
            rows.PodStatus(
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
                violations=rows.PodViolations(_counts(own.counts), last) if own else others,
                claim=grant.claim or None,
                claim_uid=grant.claim_uid or "",
                shared_with=tuple([_sharing(one) for one in grant.shared_with or ()]),
                priority=grant.priority or 0,
                memory_cap=grant.memory_cap or "",
            )
        )
    return tuple(pods)


def _sharing(pod: ReportedPod) -> rows.SharingPod:
    namespace, _slash, name = (pod.pod or "").rpartition("/")
    return rows.SharingPod(namespace, name, pod.uid or "")


def _violation(found: ReportedViolation, pod: str | None) -> rows.ShownViolation:
    namespace, _slash, name = (pod or "").rpartition("/")
    return rows.ShownViolation(seconds(found.at), found.kind or "", found.action or "", namespace, name)


def _counts(counts: Iterable[ReportedCount] | None) -> tuple[rows.KindCount, ...]:
    return tuple([rows.KindCount(one.kind or "", one.count) for one in counts or ()])
