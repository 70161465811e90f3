"""The pods of this node as its device plugin needs them, and which of them kubelet is asking for.

Kubelet names no pod when it allocates, so that is guessed, and checked when the container starts, where kubelet does
name it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple

import msgspec

from mpsd.model.fields import FieldReader, Fields
from mpsd.model.identity import PodName
from mpsd.model.names import MIRROR
from mpsd.model.pod import Container, Pod, PodPriority, Role, read_pod
from mpsd.model.policy import Policy, Resources
from mpsd.model.quantity import is_zero
from mpsd.model.request import ContainerRequest, PodRequest, read_allocated

Kind = Literal["memory", "percent"]
KINDS: tuple[Kind, Kind] = ("memory", "percent")
PodKey = tuple[str, str]  # namespace and name: all that kubelet says of a pod
CLAIM = "a resource claim"
DEVICE_CLASS = "deviceclass.resource.kubernetes.io/"  # before a class: the resource by which pods request it
_OF_CONTAINER = ("name", "restartPolicy", "resources")  # what is read of one here
_LISTS = ("containers", "initContainers")
_OF_SPEC = ("priority", "priorityClassName")
NO_BOUND = 2**63  # of what is read the API server holds 1.5 MiB at most
BOUND_AT = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"  # nanoseconds since 1970: when a scheduler that chose a GPU bound the pod
FINISHED = frozenset({"Succeeded", "Failed"})  # phases of a pod that holds nothing any more
_NANOSECONDS = 19  # digits, until the year 2286


@dataclass(frozen=True, slots=True)
class ContainerName:
    """One container of a pod of this node."""

    namespace: str
    pod: str
    container: str

    @property
    def pod_key(self) -> PodKey:
        return self.namespace, self.pod

    def __str__(self) -> str:
        return f"pod {self.namespace}/{self.pod}, container {self.container}"


@dataclass(frozen=True, slots=True)
class PodDeletion:
    """What a pod whose deletion was requested says of its end. Of its containers those that ask for devices count, or
    all where none does: a sidecar's hook does not hold back the others' signals."""

    #: seconds until kubelet kills what is left; 0 where it does not say, since that may be at any time
    grace_s: int
    #: whether a container has a hook that runs before it gets a signal
    has_pre_stop: bool = False
    #: the names of the signals that containers get in place of SIGTERM, as far as the pod says
    stop_signals: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodePod:
    """A pod of this node that asks for a GPU. created: RFC 3339. phase: empty where it has none. requests: as kubelet
    allocates, init containers and sidecars first, each in the order of the pod. main_containers: the names of all of
    `spec.containers`, also of those that ask for nothing. deletion: None where it was not requested. asked: the names
    of everything that device plugins may have given it (`asked_of_plugins`). claims: the names of its resource claims.
    """

    namespace: str
    name: str
    uid: str
    created: str
    requests: tuple[ContainerRequest, ...]
    main_containers: tuple[str, ...]
    annotations: Mapping[str, str]
    phase: str
    deletion: PodDeletion | None = None
    asked: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    priority: PodPriority = field(default_factory=PodPriority)

    @property
    def identity(self) -> PodName:
        return PodName(self.namespace, self.name, self.uid)

    @property
    def key(self) -> PodKey:
        return self.namespace, self.name

    @property
    def is_finished(self) -> bool:
        return self.phase in FINISHED

    @property
    def terminating(self) -> bool:
        """Whether its deletion was requested."""
        return self.deletion is not None

    @property
    def came(self) -> tuple[str, str, str]:
        """The order in which kubelet hears of pods: when they were bound, where that is written on them, since many are
        made in one second and bound in any order; else when they were made."""
        at = self.annotations.get(BOUND_AT, "")[:_NANOSECONDS]
        return at.zfill(_NANOSECONDS) if at.isascii() and at.isdecimal() else "", self.created, self.uid

    @property
    def static_uid(self) -> str:
        """The uid that kubelet names a static pod's cgroups by, which is not the API's; empty for any other pod."""
        return self.annotations.get(MIRROR, "")

    def request(self, container: str) -> ContainerRequest | None:
        """What the container of this name asks for; None where it asks for nothing."""
        return next((request for request in self.requests if request.container == container), None)

    def container(self, request: ContainerRequest) -> ContainerName:
        """The name of the container that has this request."""
        return ContainerName(self.namespace, self.name, request.container)


class RequestingContainer(NamedTuple):
    """A container of a pod that asks for a GPU, with its request."""

    pod: NodePod
    request: ContainerRequest

    @property
    def name(self) -> ContainerName:
        return self.pod.container(self.request)


def read_node_pod(thing: object, policy: Policy) -> NodePod | None:
    """The pod in a decoded object of the API; None for what asks for no GPU or cannot be read. Whatever kubelet would
    allocate is read, also where admission would refuse it, and however many annotations or variables a pod has: kubelet
    has taken it already."""
    if not isinstance(thing, dict) or thing.get("kind", "Pod") != "Pod":
        return None
    shape = FieldReader(NO_BOUND)
    pod = _read(shape, thing)
    metadata = shape.mapping(thing, "metadata", "")
    requests = read_allocated(pod, policy.resources).requests
    names = [shape.text(metadata, key, "metadata") for key in ("namespace", "name", "uid", "creationTimestamp")]
    if not requests or not all(names):
        return None
    namespace, name, uid, created = names
    main = tuple(container.name for container in pod.containers if container.role is Role.MAIN)
    annotations = {key: value for key, value in pod.annotations.items() if isinstance(value, str)}
    phase = shape.text(shape.mapping(thing, "status", ""), "phase", "status")
    deletion, asked = _deletion_of(shape, thing, pod), asked_of_plugins(pod)
    came, claims = (namespace, name, uid, created), claims_of(shape, thing)
    return NodePod(*came, requests, main, annotations, phase, deletion, asked, claims, pod.priority)


def requested(thing: object, policy: Policy) -> PodRequest:
    """What kubelet allocates for. problems: numbers that cannot be read, so that what the pod needs is not known. It is
    read once of pods that ask alike, as those of a Job do."""
    metadata, spec = ((thing.get(part) if isinstance(thing, dict) else None) for part in ("metadata", "spec"))
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    count = labels.get(policy.resources.count) if isinstance(labels, dict) else None
    lean: Fields = {"metadata": {"labels": {policy.resources.count: count}}, "spec": _lean_spec(spec)}
    try:
        written = msgspec.json.encode(lean)
    except (ValueError, OverflowError, RecursionError, TypeError):  # a number of hundreds of digits
        return read_allocated(_read(FieldReader(NO_BOUND), lean), policy.resources)
    return _requested(written, policy.resources)


@lru_cache(maxsize=1024)
def _requested(lean: bytes, resources: Resources) -> PodRequest:
    return read_allocated(_read(FieldReader(NO_BOUND), msgspec.json.decode(lean)), resources)


def _read(shape: FieldReader, thing: Fields) -> Pod:
    """The pod with the containers that may ask for something, without what costs time to read."""
    return read_pod(shape, {**thing, "spec": _lean_spec(thing.get("spec"))}, "")


def _lean_spec(spec: object) -> object:
    if not isinstance(spec, dict):
        return spec
    lists = {key: spec.get(key) for key in _LISTS}
    lean = {key: [*map(_lean, each)] if isinstance(each, list) else each for key, each in lists.items()}
    return {key: spec.get(key) for key in _OF_SPEC} | lean


def _lean(container: object) -> object:
    return (
        {key: container[key] for key in _OF_CONTAINER if key in container} if isinstance(container, dict) else container
    )


def asked_of_plugins(pod: Pod) -> tuple[str, ...]:
    """The names of what its containers ask, well or badly, of device plugins; CLAIM where they have a resource claim.
    Kubernetes' own resources have no slash in their names."""
    amounts = [pair for one in pod.containers for each in (one.limits, one.requests) for pair in each.items()]
    named = {name for name, amount in amounts if "/" in name and not is_zero(amount)}
    return tuple(sorted(named | ({CLAIM} if any(one.claims for one in pod.containers) else set())))


def _deletion_of(shape: FieldReader, thing: Fields, pod: Pod) -> PodDeletion | None:
    """None where its deletion was not requested, and then nothing more of it is read."""
    metadata = shape.mapping(thing, "metadata", "")
    if metadata.get("deletionTimestamp") is None:
        return None
    asking = {one.name for one in pod.containers if _asks_for_devices(one)}
    lifecycles = []
    spec = shape.mapping(thing, "spec", "")
    for key in _LISTS:
        for path, entry in shape.entries(spec, key, "spec"):
            if not asking or shape.text(entry, "name", path) in asking:
                lifecycles.append(shape.mapping(entry, "lifecycle", path))
    grace_s = shape.number(metadata, "deletionGracePeriodSeconds", "metadata", absent=None)
    has_pre_stop = any(one.get("preStop") is not None for one in lifecycles)
    signals = {shape.text(one, "stopSignal", "lifecycle") for one in lifecycles}
    return PodDeletion(grace_s or 0, has_pre_stop, tuple(sorted(signals - {""})))


def _asks_for_devices(container: Container) -> bool:
    return bool(container.claims) or any("/" in name for name in (*container.limits, *container.requests))


def claims_of(fields: FieldReader, thing: Fields) -> tuple[str, ...]:
    """The names of the resource claims of a pod: those that it names, and those made for it from templates."""
    spec, status = fields.mapping(thing, "spec", ""), fields.mapping(thing, "status", "")
    named = fields.entries(spec, "resourceClaims", "spec") if "resourceClaims" in spec else []
    made = fields.entries(status, "resourceClaimStatuses", "status") if named else []
    names = (fields.text(each, "resourceClaimName", path) for path, each in (*named, *made))
    return tuple(sorted({name for name in names if name}))


def devices_of(request: ContainerRequest, kind: Kind) -> int:
    """How many devices of this resource kubelet allocates for the container."""
    return request.memory_units if kind == "memory" else request.percents


def expected(
    pods: Iterable[NodePod],
    served: Collection[ContainerName],
    kind: Kind,
    count: int,
    *,
    gpus: int | None = None,
    begun: Collection[ContainerName] = (),
) -> RequestingContainer | None:
    """The container that kubelet most likely allocates `count` devices for: the first that waits for exactly so many.
    pods: those bound to this node. served: the containers that have their devices of this resource. gpus: the number of
    GPUs that the devices lie on, where it is known: pods that ask for as many come first then. begun: containers that
    have devices of the other resource; kubelet finishes one before it begins the next, so these come first."""
    candidates = {
        (pod.container(request) not in begun, gpus not in (None, request.gpus), not is_next, pod.came, position): (
            RequestingContainer(pod, request)
        )
        for pod in pods
        if not pod.is_finished and not pod.terminating
        for position, request, is_next in _waiting(pod, served, kind)
        if devices_of(request, kind) == count
    }
    return candidates[min(candidates)] if candidates else None


def _waiting(
    pod: NodePod, served: Collection[ContainerName], kind: Kind
) -> Iterator[tuple[int, ContainerRequest, bool]]:
    """The pod's containers that wait for devices, and whether kubelet comes to this one first. kubelet goes through a
    pod in order, so one before a served one has been served too, whatever is known of it."""
    asking = [(position, request) for position, request in enumerate(pod.requests) if devices_of(request, kind)]
    last = max((n for n, (_, request) in enumerate(asking) if pod.container(request) in served), default=-1)
    for n, (position, request) in enumerate(asking[last + 1 :]):
        yield position, request, n == 0


@dataclass(frozen=True, slots=True)
class Bystander:
    """A pod of this node that asks for no GPU of ours, of which there may be hundreds: enough to know its processes.
    asked, claims, deletion: as `NodePod` has them."""

    identity: PodName
    asked: tuple[str, ...]
    claims: tuple[str, ...] = ()
    priority: PodPriority = field(default_factory=PodPriority)
    deletion: PodDeletion | None = None


def read_bystander(thing: object) -> Bystander | None:
    """The pod in a decoded object of the API, where it is no `NodePod`; None where any doubt is left. One that has very
    many annotations or variables is read too: it may share a claim, and its processes count for that."""
    if not isinstance(thing, dict) or thing.get("kind", "Pod") != "Pod":
        return None
    shape = FieldReader(NO_BOUND)
    pod, claims = _read(shape, thing), claims_of(shape, thing)
    metadata = shape.mapping(thing, "metadata", "")
    namespace, name, uid = (shape.text(metadata, key, "metadata") for key in ("namespace", "name", "uid"))
    deletion = _deletion_of(shape, thing, pod)
    if shape.problems or not (namespace and name and uid):
        return None
    return Bystander(PodName(namespace, name, uid), asked_of_plugins(pod), claims, pod.priority, deletion)
