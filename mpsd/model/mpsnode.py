"""The MPSNode of a node, as anybody may have written it.

Its fields are those of the definition, manifests/chart/templates/crd/mpsnode.yaml; its status is a
NodeReport. Any JSON is a node here, with what could be read of it and the rest reported as
unreadable; nothing raises.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin

import msgspec
from msgspec.structs import replace

from mpsd.model.cluster_status import ClusterNode, ClusterStatus, is_stale, served_gpus
from mpsd.model.conditions import Truth
from mpsd.model.domain import State
from mpsd.model.fields import FieldReader, Fields, at
from mpsd.model.node_report import (
    LARGEST,
    MOST_ENTRIES,
    NO_VIOLATIONS,
    GrantReport,
    NodeReport,
    NodeStatus,
    ReportPart,
)
from mpsd.model.problem import Problem, shown
from mpsd.model.times import Instant, epoch

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


Kind = TypeVar("Kind", bound=ReportPart)


def as_object(part: ReportPart) -> dict[str, Any]:
    """The JSON of it, without what is absent."""
    return cast("dict[str, Any]", msgspec.json.decode(msgspec.json.encode(part)))


def read(fields: Fields, shape: FieldReader) -> MPSNode:
    """What can be read of any JSON object; `shape` notes what cannot."""
    try:
        return msgspec.convert(fields, MPSNode)
    except (msgspec.ValidationError, RecursionError):
        return _read(fields, MPSNode, "", shape)


def _read(fields: Fields, kind: type[Kind], path: str, shape: FieldReader) -> Kind:
    """Field by field: one of a wrong type is absent, and nothing else is."""
    found = {}
    for one in _fields(kind):
        if fields.get(one.encode_name) is not None:
            value = _value(_plain(one.type), fields, one.encode_name, path, shape)
            if value is not None:
                found[one.name] = value
    return kind(**found)


@cache
def _fields(kind: type[ReportPart]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind)


@cache
def _plain(kind: Any) -> Any:
    """The type without its bounds, and without None."""
    while get_origin(kind) in {Annotated, Union, UnionType}:
        kind = get_args(kind)[0]
    return kind


def _value(kind: Any, fields: Fields, key: str, path: str, shape: FieldReader) -> object:
    """kind: text, a flag, an amount, a time, another part, or a tuple of parts or of texts; None
    where it is wrong."""
    if kind is str:
        return shape.text(fields, key, path) or None
    if kind is bool:
        return shape.flag(fields, key, path)
    if kind is int:
        amount = shape.number(fields, key, path, absent=None)
        if amount is None or 0 <= amount <= LARGEST:
            return amount
        _note(amount, at(path, key), "is no amount", f"write a number from 0 to {LARGEST}", shape)
        return None
    if kind is Instant:
        text = shape.text(fields, key, path)
        time = _time(text)
        if text and time is None:
            remedy = "write it with its time zone, such as 2026-01-31T12:00:00Z"
            _note(text, at(path, key), "is no time", remedy, shape)
        return time
    if get_origin(kind) is tuple:
        entry = _plain(get_args(kind)[0])
        if entry is str:
            return shape.texts(fields, key, path)
        if not _is_part(entry):
            return None
        return tuple(
            [_read(one, entry, where, shape) for where, one in shape.entries(fields, key, path)]
        )
    return (
        _read(shape.mapping(fields, key, path), kind, at(path, key), shape)
        if _is_part(kind)
        else None
    )


def _time(text: str) -> Instant | None:
    """None for what is no time, or has no time zone."""
    try:
        time = msgspec.convert(text, Instant)
    except msgspec.ValidationError:
        return None
    return time if time.tzinfo else None


def _is_part(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, ReportPart)


def _note(value: object, where: str, message: str, remedy: str, shape: FieldReader) -> None:
    shape.problems.append(Problem("wrong-value", where, shown(value), message, remedy))


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
    return _node(found, unreadable, now)


def _node(found: MPSNode, unreadable: Sequence[str], now: float) -> ClusterNode:
    status = found.status
    name = found.metadata.name or "(no name)"
    cordoned = frozenset(found.spec.cordoned)
    reported_at = epoch(status.reported_at)
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
    grants = status.grants
    seen = status.violations
    if grants is None or not status.grants_known:
        return None
    listed = sum([grant.violations is not None for grant in grants])
    if seen is None or seen.pods != listed:
        return grants
    return tuple(
        [
            grant if grant.violations else replace(grant, violations=NO_VIOLATIONS)
            for grant in grants
        ]
    )
