"""The pods of this node as its device plugin needs them, and which of them kubelet is asking for.

Kubelet names no pod when it allocates, so what is said here of "the" pod is the best guess there is, and is
checked when the container starts, where kubelet does name it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mpsd.model.fields import FieldReader, Fields, at
from mpsd.model.identity import PodName
from mpsd.model.pod import Container, Pod, Role, read_pod
from mpsd.model.policy import Policy
from mpsd.model.problem import Problem
from mpsd.model.quantity import QuantityUnit, is_zero, memory_unit, whole_units
from mpsd.model.request import PERCENT, ContainerRequest, GpuRequest, each_mib, each_percent, gpu_count

PodKey = tuple[str, str]  # namespace and name: all that kubelet says of a pod
_FINISHED = frozenset({"Succeeded", "Failed"})
CLAIM = "a resource claim"
_OF_CONTAINER = ("name", "restartPolicy", "resources")  # what is read of one here
_NO_BOUND = 2**63  # of what is read the API server holds 1.5 MiB at most
BOUND_AT = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"  # nanoseconds since 1970: when a scheduler that chose a GPU bound the pod
_NANOSECONDS = 19  # digits, until the year 2286
MIRROR = "kubernetes.io/config.mirror"  # on the API's copy of a static pod: the hash that kubelet knows it by


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
class NodePod:
    """A pod of this node that asks for a GPU. created: RFC 3339. phase: empty where nobody has written one.

    requests: as kubelet allocates, init containers and sidecars first, each in the order of the pod. main_containers:
    the names of all of `spec.containers`, also of those that ask for nothing. terminating: its deletion was asked for.
    asked: the names of everything that device plugins may have given it (`asked_of_plugins`).
    """

    namespace: str
    name: str
    uid: str
    created: str
    requests: tuple[ContainerRequest, ...]
    main_containers: tuple[str, ...]
    annotations: Mapping[str, str]
    labels: Mapping[str, str]
    phase: str
    terminating: bool
    asked: tuple[str, ...] = ()

    @property
    def identity(self) -> PodName:
        return PodName(self.namespace, self.name, self.uid)

    @property
    def key(self) -> PodKey:
        return self.namespace, self.name

    @property
    def is_finished(self) -> bool:
        return self.phase in _FINISHED

    @property
    def came(self) -> tuple[str, str, str]:
        """By what pods are in the order in which kubelet hears of them: when they were bound, where that is written on
        them, since many are made in one second and bound in any order; else when they were made.
        """
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
    """The pod in a decoded object of the API; None for what asks for no GPU or cannot be read.

    Whatever kubelet would allocate is read, also where admission would refuse it: kubelet has taken the pod already.
    So nobody is lost sight of who writes thousands of annotations on a pod, or of variables before its last container.
    """
    if not isinstance(thing, dict) or thing.get("kind", "Pod") != "Pod":
        return None
    shape = FieldReader(_NO_BOUND)
    pod = _read(shape, thing)
    metadata = shape.mapping(thing, "metadata", "")
    requests = tuple(_requests(pod, policy))
    names = [shape.text(metadata, key, "metadata") for key in ("namespace", "name", "uid", "creationTimestamp")]
    if not requests or not all(names):
        return None
    namespace, name, uid, created = names
    return NodePod(
        namespace=namespace,
        name=name,
        uid=uid,
        created=created,
        requests=requests,
        main_containers=tuple(container.name for container in pod.containers if container.role is Role.MAIN),
        annotations=_texts(pod.annotations),
        labels=_texts(pod.labels),
        phase=shape.text(shape.mapping(thing, "status", ""), "phase", "status"),
        terminating=metadata.get("deletionTimestamp") is not None,
        asked=asked_of_plugins(pod),
    )


def request_problems(thing: object, policy: Policy) -> tuple[Problem, ...]:
    """What no number can be read of in a pod's request, so that nobody knows what it needs."""
    pod = _read(FieldReader(_NO_BOUND), thing if isinstance(thing, dict) else {})
    units = {policy.resources.memory: memory_unit(policy.resources.memory_unit_mib), policy.resources.percent: PERCENT}
    found = (
        whole_units(container.limits[name], at(container.path, "resources", "limits", name), unit)
        for container in pod.containers
        for name, unit in units.items()
        if name in container.limits and not is_zero(container.limits[name])
    )
    return tuple(one for one in found if isinstance(one, Problem))


def _read(shape: FieldReader, thing: Fields) -> Pod:
    return read_pod(shape, {**thing, "spec": _lean(thing.get("spec"))}, "")


def _lean(spec: object) -> object:
    """A spec with the containers that ask for something, without what costs time to read."""
    if not isinstance(spec, dict):
        return spec
    lists = {key: spec.get(key) for key in ("containers", "initContainers")}
    return {
        key: [_lean_container(one) for one in each] if isinstance(each, list) else each for key, each in lists.items()
    }


def _lean_container(container: object) -> object:
    if not isinstance(container, dict):
        return container
    return {key: container[key] for key in _OF_CONTAINER if key in container}


def asked_of_plugins(pod: Pod) -> tuple[str, ...]:
    """The names of what its containers ask, well or badly, of device plugins; CLAIM where they have a resource claim.

    Kubernetes' own resources have no slash in their names.
    """
    amounts = [amounts for container in pod.containers for amounts in (container.limits, container.requests)]
    named = {name for each in amounts for name, amount in each.items() if "/" in name and not is_zero(amount)}
    return tuple(sorted(named | ({CLAIM} if any(container.has_claims for container in pod.containers) else set())))


def _texts(fields: Fields) -> dict[str, str]:
    return {key: value for key, value in fields.items() if isinstance(value, str)}


def _requests(pod: Pod, policy: Policy) -> Iterator[ContainerRequest]:
    """Every request that kubelet could allocate for. A number of GPUs that is none counts as one GPU."""
    count = gpu_count(pod, policy.resources)
    gpus = 1 if isinstance(count, Problem) else count
    for container in pod.containers:
        request = None if container.role is Role.EPHEMERAL else _request(container, gpus, policy)
        if request:
            yield request


def _request(container: Container, gpus: int, policy: Policy) -> ContainerRequest | None:
    names = policy.resources
    units = _devices(container, names.memory, memory_unit(names.memory_unit_mib))
    percent = _devices(container, names.percent, PERCENT)
    if not units and not percent:
        return None
    asked = GpuRequest(units, percent or None, gpus, "", "")
    return ContainerRequest(container.name, container.role, units, each_mib(asked, policy), each_percent(asked), gpus)


def _devices(container: Container, resource: str, unit: QuantityUnit) -> int:
    """How many devices of this resource kubelet allocates for the container."""
    if resource not in container.limits:
        return 0
    units = whole_units(container.limits[resource], container.path, unit)
    return 0 if isinstance(units, Problem) else units


def memory_units(request: ContainerRequest) -> int:
    """Devices of the memory resource that kubelet allocates for this."""
    return request.memory_units


def percents(request: ContainerRequest) -> int:
    """Devices of the percent resource that kubelet allocates for this; 0 where no share is asked for."""
    return (request.thread_percent or 0) * request.gpus


def expected(
    pods: Iterable[NodePod],
    served: Collection[ContainerName],
    amount: Callable[[ContainerRequest], int],
    count: int,
    *,
    gpus: int | None = None,
    begun: Collection[ContainerName] = (),
) -> RequestingContainer | None:
    """The container that kubelet most likely allocates `count` devices for: the first that waits for exactly so many.

    pods: those bound to this node. served: the containers that have their devices of this resource. gpus: the number
    of GPUs that the devices lie on, where it is known: pods that ask for as many come first then. begun: containers
    that have devices of the other resource; kubelet finishes one before it begins the next, so these come first.
    """
    candidates = [
        (
            pod.container(request) not in begun,
            gpus is not None and request.gpus != gpus,
            not is_next,
            pod.came,
            position,
            pod,
        )
        for pod in pods
        if not pod.is_finished and not pod.terminating
        for position, request, is_next in _waiting(pod, served, amount)
        if amount(request) == count
    ]
    if not candidates:
        return None
    *_order, position, pod = min(candidates, key=lambda candidate: candidate[:-1])
    return RequestingContainer(pod, pod.requests[position])


def _waiting(
    pod: NodePod, served: Collection[ContainerName], amount: Callable[[ContainerRequest], int]
) -> Iterator[tuple[int, ContainerRequest, bool]]:
    """The pod's containers that wait for devices, and whether kubelet comes to this one first.

    kubelet goes through a pod in order, so one before a served one has been served too, whatever is known of it.
    """
    asking = [(position, request) for position, request in enumerate(pod.requests) if amount(request)]
    last = max((n for n, (_, request) in enumerate(asking) if pod.container(request) in served), default=-1)
    for n, (position, request) in enumerate(asking[last + 1 :]):
        yield position, request, n == 0


# The pods of a node that ask for no GPU of ours.
#
# Nothing is read of such a pod but what tells it from every other and what else it may have been given, since
# there may be hundreds of them.


@dataclass(frozen=True, slots=True)
class Bystander:
    """Enough of a pod to know its processes. asked: as `NodePod` has it."""

    identity: PodName
    asked: tuple[str, ...]


def read_bystander(thing: object) -> Bystander | None:
    """The pod in a decoded object of the API, where it is no `NodePod`; None where any doubt is left."""
    if not isinstance(thing, dict) or thing.get("kind", "Pod") != "Pod":
        return None
    shape = FieldReader()
    pod = read_pod(shape, thing, "")
    metadata = shape.mapping(thing, "metadata", "")
    namespace, name, uid = (shape.text(metadata, key, "metadata") for key in ("namespace", "name", "uid"))
    if shape.problems or shape.too_many or not (namespace and name and uid):
        return None
    return Bystander(PodName(namespace, name, uid), asked_of_plugins(pod))
