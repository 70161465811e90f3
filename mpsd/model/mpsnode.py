"""The MPSNode of a node (manifests/chart/templates/crd/mpsnode.yaml), as anybody may have written
it: any JSON is one, with what could be read of it, and the rest reported as unreadable."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, cast

import msgspec
from msgspec.structs import replace

from mpsd.model.cluster_status import ClusterNode, ClusterStatus, is_stale, served_gpus
from mpsd.model.conditions import Truth
from mpsd.model.domain import State
from mpsd.model.fields import FieldReader, Fields, as_mapping
from mpsd.model.node_report import (
    MOST_ENTRIES,
    NO_VIOLATIONS,
    GrantReport,
    NodeReport,
    NodeStatus,
    ReportPart,
)
from mpsd.model.problem import shown
from mpsd.model.times import epoch, seconds

API = "mpsd.io/v1alpha1"
KIND = "MPSNode"


class MPSNodeMetadata(ReportPart, frozen=True):
    name: str = ""


class MPSNodeSpec(ReportPart, frozen=True):
    """What an operator asks for."""

    #: UUIDs, or `all`.
    cordoned: Annotated[tuple[str, ...], msgspec.Meta(max_length=MOST_ENTRIES)] = ()


class MPSNode(ReportPart, frozen=True):
    metadata: MPSNodeMetadata = MPSNodeMetadata()
    spec: MPSNodeSpec = MPSNodeSpec()
    status: NodeReport = NodeReport()


def as_object(part: ReportPart) -> dict[str, Any]:
    """The JSON of it, without what is absent."""
    return cast("dict[str, Any]", msgspec.json.decode(msgspec.json.encode(part)))


def read(fields: Fields, shape: FieldReader) -> MPSNode:
    return shape.record(MPSNode, fields, "")


def cluster_status(mpsnodes: Iterable[object], now: float) -> ClusterStatus:
    nodes = [read_mpsnode(thing, now) for thing in mpsnodes]
    return ClusterStatus(now, tuple(sorted(nodes, key=lambda node: node.name)))


def read_mpsnode(thing: object, now: float) -> ClusterNode:
    fields: Fields = thing if isinstance(thing, dict) else {}
    shape = FieldReader()
    found = read(fields, shape)
    unreadable = [problem.fault for problem in shape.problems]
    if not isinstance(thing, dict):
        unreadable = [f"the object is {shown(thing)}, which is no MPSNode"]
    if shape.too_many:  # nothing of it may be believed
        found = MPSNode(found.metadata)
        unreadable = [str(shape.too_many)]
    return _node(found, unreadable, status_writes(fields), now)


def status_writes(thing: Fields) -> list[float]:
    """When the API server took what a node has reported, in seconds since 1970 by its own clock;
    none where it has no managedFields."""
    managed = as_mapping(thing.get("metadata")).get("managedFields")
    found = []
    for one in managed if isinstance(managed, list) else ():
        fields = as_mapping(one)
        at = seconds(str(fields.get("time")))
        if at is not None and "f:status" in as_mapping(fields.get("fieldsV1")):
            found.append(at)
    return found


def _node(
    found: MPSNode, unreadable: Sequence[str], writes: Sequence[float], now: float
) -> ClusterNode:
    status = found.status
    name = found.metadata.name or "(no name)"
    cordoned = frozenset(found.spec.cordoned)
    reported_at = epoch(status.reported_at)
    if reported_at is not None and writes:  # the node's own clock may be another
        reported_at = max(writes)
    stale = is_stale(reported_at, now)
    gpus = served_gpus(status, name, cordoned)
    serves = bool(gpus) and all(gpu.state == State.READY for gpu in gpus)
    says_so = status.condition is not None and status.condition.status == Truth.TRUE
    common = {field: getattr(status, field) for field in NodeStatus.__struct_fields__}
    common["gpus"] = gpus
    return ClusterNode(
        **common,
        name=name,
        ready=reported_at is not None and not stale and serves and says_so,
        reported_at=reported_at,
        stale=stale,
        cordoned=tuple(sorted(cordoned)),
        pods=_pods(status),
        unreadable=tuple(unreadable),
    )


def _pods(status: NodeReport) -> tuple[GrantReport, ...] | None:
    """The grants, with no violations where it is known that a pod has none."""
    if status.grants is None or not status.grants_known:
        return None
    grants = []
    listed = 0
    for grant in status.grants:
        if grant.violations:
            listed += 1
            grants.append(grant)
        else:
            grants.append(replace(grant, violations=NO_VIOLATIONS))
    if status.violations is None or status.violations.pods != listed:
        return status.grants
    return tuple(grants)
