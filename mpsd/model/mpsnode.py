"""The fields of an MPSNode, for the agent that writes one and for everybody who reads it.

They are those of manifests/base/crd/mpsnode.yaml. Every field may be absent, which is None: agents of other versions
report more or less. Times are RFC 3339, amounts whole numbers from 0 to what an int64 holds. `read` accepts any JSON.
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec

from mpsd.model.fields import MOST_FIELDS, FieldReader, Fields
from mpsd.model.names import HEARTBEAT_S as HEARTBEAT_S

API = "mpsd.io/v1alpha1"


KIND = "MPSNode"


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
    """A condition, as Kubernetes has them."""

    type: Text = None
    status: Text = None
    last_transition_time: Text = None
    reason: Text = None
    message: Text = None


class ReportedCount(Reported, frozen=True):
    """How often a kind of violation was seen. kind: as in the policy, or one of a newer agent."""

    kind: Text = None
    count: Amount = None


class ReportedPodViolation(Reported, frozen=True):
    """A violation of a pod. action: what the policy has done about it."""

    at: Text = None
    kind: Text = None
    action: Text = None


class ReportedViolation(ReportedPodViolation, frozen=True):
    """A violation. pod: absent where none is known."""

    pod: Text = None


class ReportedPodViolations(Reported, frozen=True):
    """The violations of the pod that has a grant."""

    counts: list[ReportedCount] | None = None
    last: ReportedPodViolation | None = None


class ReportedViolations(Reported, frozen=True):
    """The violations on the node since then. pods: how many that have a grant. last: the newest last."""

    since: Text = None
    counts: list[ReportedCount] | None = None
    last: list[ReportedViolation] | None = None
    pods: Amount = None


class ReportedGpu(Reported, frozen=True):
    """A GPU, its grants and its use."""

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


class ReportedSuspect(Reported, frozen=True):
    """A pod that the last faults hit each time."""

    pod: Text = None
    uid: Text = None
    faults: Amount = None


class ReportedFaults(Reported, frozen=True):
    """The GPU faults of a domain."""

    count: Amount = None
    last: Text = None
    suspects: list[ReportedSuspect] | None = None


class ReportedCanary(Reported, frozen=True):
    """What the canary found in a domain."""

    at: Text = None
    driver: Text = None
    context_mib: Amount = None
    sms: Amount = None
    problem: Text = None
    warning: Text = None


class ReportedDomain(Reported, frozen=True):
    """A control daemon and its GPUs. version: of the mpsd that holds it."""

    name: Text = None
    gpus: Texts = None
    state: Text = None
    since: Text = None
    restarts: Amount = None
    reason: Text = None
    faults: ReportedFaults | None = None
    canary: ReportedCanary | None = None
    version: Text = None


class ReportedGrant(Reported, frozen=True):
    """What a pod got. pod: namespace and name. memory_mib: on each of its GPUs."""

    pod: Text = None
    uid: Text = None
    gpus: Texts = None
    memory_mib: Amount = None
    thread_percent: Amount = None
    reserved_percent: Amount = None
    used_mib: Amount = None
    clients: Amount = None
    violations: ReportedPodViolations | None = None


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
    """What is read of an MPSNode's metadata."""

    name: Text = None


class MPSNodeSpec(Reported, frozen=True):
    """What an operator asks for. cordoned: UUIDs, or `all`."""

    cordoned: Texts = None


class MPSNode(Reported, frozen=True):
    """The whole object."""

    metadata: MPSNodeMetadata | None = None
    spec: MPSNodeSpec | None = None
    status: MPSNodeStatus | None = None


Kind = TypeVar("Kind", bound=Reported)
_MOST_ENTRIES = MOST_FIELDS // 20  # of no more there are never too many fields, which then need no counting


def as_object(part: Reported) -> dict[str, Any]:
    """The JSON of it, without what is absent."""
    found: dict[str, Any] = msgspec.to_builtins(part)
    return found


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
    return len(status.gpus or ()) + len(status.conditions or ()) + sum([1 + len(gpus or ()) for gpus in held])


def _read(fields: Fields, kind: type[Kind], path: str, shape: FieldReader) -> Kind:
    """Field by field: one of a wrong type is absent, and nothing else is."""
    present = [(name, key, reader) for name, key, reader in _readers(kind) if fields.get(key) is not None]
    return kind(**{name: reader(fields, key, path, shape) for name, key, reader in present})


_Reader = Callable[[Fields, str, str, FieldReader], object]


@cache
def _readers(kind: type[Reported]) -> tuple[tuple[str, str, _Reader], ...]:
    """Name, JSON name and reader of each field."""
    return tuple((one.name, one.encode_name, _reader(get_args(one.type)[0])) for one in msgspec.structs.fields(kind))


def _reader(kind: Any) -> _Reader:
    """kind: text, an amount, another part, or a list of parts or of texts."""
    if kind is str:
        return lambda fields, key, path, shape: shape.text(fields, key, path)
    if get_origin(kind) is Annotated:
        return _amount
    if get_origin(kind) is not list:
        return lambda fields, key, path, shape: _read(shape.mapping(fields, key, path), kind, _at(path, key), shape)
    entry = get_args(kind)[0]
    if entry is str:
        return lambda fields, key, path, shape: list(shape.texts(fields, key, path))
    return lambda fields, key, path, shape: [
        _read(one, entry, where, shape) for where, one in shape.entries(fields, key, path)
    ]


def _at(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _amount(fields: Fields, key: str, path: str, shape: FieldReader) -> int | None:
    """None for what is none, such as -1."""
    found = shape.number(fields, key, path, absent=None)
    return found if found is not None and 0 <= found <= _LARGEST else None
