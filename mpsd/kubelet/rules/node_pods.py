"""The pods of this node, and which of them kubelet is asking for: it names no pod when it
allocates, so that is guessed, and checked when the container starts.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Literal, NamedTuple

from mpsd.model.fields import FieldReader
from mpsd.model.identity import PodName
from mpsd.model.names import MIRROR
from mpsd.model.node_view import ContainerEnd
from mpsd.model.pod import CLAIM, FINISHED, NO_BOUND, Pod, PodDeletion, PodPriority, pod_in
from mpsd.model.policy import Policy
from mpsd.model.problem import LONGEST_NAME
from mpsd.model.request import ContainerRequest, read_allocated
from mpsd.model.times import seconds

Kind = Literal["memory", "percent"]
KINDS: tuple[Kind, Kind] = ("memory", "percent")
PodKey = tuple[str, str]  # namespace and name: all that kubelet says of a pod
# before a class: the resource by which pods request it
DEVICE_CLASS = "deviceclass.resource.kubernetes.io/"
# Annotations: mpsd's own, UUIDs with commas between; gpushare's first format (IDX: ordinal; POD,
# DEV: units; ASSIGNED; ASSUME_TIME, ASSIGN_TIME: nanoseconds since 1970), and its second
# (allocation: {"<container>": {"<ordinal>": units}}; assigned; assume-time; the last one as
# allocation, in percent).
GPU = "mpsd.io/gpu"
IDX, POD, DEV, ASSIGNED, BOUND_AT, ASSIGN_TIME = (
    f"ALIYUN_COM_GPU_MEM_{name}"
    for name in ("IDX", "POD", "DEV", "ASSIGNED", "ASSUME_TIME", "ASSIGN_TIME")
)
ALLOCATION, ALLOCATED, ASSUME_TIME = (
    f"scheduler.framework.gpushare.{name}" for name in ("allocation", "assigned", "assume-time")
)
PERCENT_ALLOCATION = "gpushare.alibabacloud.com/core-percentage"
LONGEST_ANNOTATION = 4096  # characters; far more than 32 GPUs or a pod's containers take
_KEPT = (
    *(GPU, IDX, POD, DEV, ASSIGNED, BOUND_AT, ASSIGN_TIME),
    *(ALLOCATION, ALLOCATED, ASSUME_TIME, PERCENT_ALLOCATION, MIRROR),
)
_NANOSECONDS = 19  # digits, until the year 2286
# What is kept of a pod has a bound: thousands that tenants wrote are held in memory at once. No pod
# that anybody wants has more.
_MOST_ENDS = 8  # of its containers
_MOST_CONTAINERS = 256
_MOST_NAMES = 64  # of resources, and of claims
_SIGNALLED = 128  # exit codes above it are signals'


@dataclass(frozen=True, slots=True)
class ContainerName:
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
    """A pod of this node. One that asks for no GPU of ours has the fields up to `phase` alone,
    which tell whose its processes are: there may be hundreds."""

    identity: PodName
    #: the names of everything that device plugins may have given it, as `Pod.asked` has them
    asked: tuple[str, ...] = ()
    #: the names of its resource claims, and of those made for it from templates
    claims: tuple[str, ...] = ()
    priority: PodPriority = field(default_factory=PodPriority)
    #: None where it was not requested
    deletion: PodDeletion | None = None
    #: of its containers, the last ones; none of a pod that was given nothing
    ends: tuple[ContainerEnd, ...] = ()
    #: empty where it has none, and of a pod that was given nothing
    phase: str = ""
    #: RFC 3339
    created: str = ""
    #: as kubelet allocates: init containers and sidecars first, each in the order of the pod
    requests: tuple[ContainerRequest, ...] = ()
    #: the names of `spec.containers`, also of those that ask for nothing
    main_containers: tuple[str, ...] = ()
    #: those about its GPUs
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def namespace(self) -> str:
        return self.identity.namespace

    @property
    def name(self) -> str:
        return self.identity.name

    @property
    def uid(self) -> str:
        return self.identity.uid

    @property
    def key(self) -> PodKey:
        return self.namespace, self.name

    @property
    def is_finished(self) -> bool:
        return self.phase in FINISHED

    @property
    def terminating(self) -> bool:
        return self.deletion is not None

    @property
    def came(self) -> tuple[str, str, str]:
        """The order in which kubelet hears of pods: when they were bound, where that is written on
        them (many are made in one second), else when they were made."""
        at = self.annotations.get(BOUND_AT, "")[:_NANOSECONDS]
        if not (at.isascii() and at.isdecimal()):
            return "", self.created, self.uid
        return at.zfill(_NANOSECONDS), self.created, self.uid

    @property
    def static_uid(self) -> str:
        """By which kubelet names a static pod's cgroups; empty for any other pod."""
        return self.annotations.get(MIRROR, "")

    def request(self, container: str) -> ContainerRequest | None:
        """None where it asks for nothing."""
        return next((request for request in self.requests if request.container == container), None)

    def container(self, request: ContainerRequest) -> ContainerName:
        return ContainerName(self.namespace, self.name, request.container)


class RequestingContainer(NamedTuple):
    """A container of a pod that asks for a GPU, with its request."""

    pod: NodePod
    request: ContainerRequest

    @property
    def name(self) -> ContainerName:
        return self.pod.container(self.request)


def read_node_pod(thing: object, policy: Policy) -> NodePod | None:
    """The pod in a decoded object of the API; None for what is no pod, or asks for no GPU and
    leaves any doubt. What kubelet would allocate is read, even where admission would refuse it."""
    shape = FieldReader(NO_BOUND)
    pod = pod_in(thing, shape)
    if pod is None or not pod.is_named:
        return None
    requests = read_allocated(pod, policy.resources).requests
    if not requests and shape.problems:
        return None
    claims = sorted({one.name for one in pod.claims_made.values() if one.kind == CLAIM})
    of_processes = NodePod(
        pod.name,
        pod.asked[:_MOST_NAMES],
        tuple(claims[:_MOST_NAMES]),
        _priority(pod),
        pod.deletion,
        _ends(pod),
        pod.status.phase if pod.asked else "",
    )
    if not requests:
        return of_processes
    return replace(
        of_processes,
        created=pod.metadata.created or "",
        requests=requests[:_MOST_CONTAINERS],
        main_containers=tuple(one.name for one in pod.spec.containers[:_MOST_CONTAINERS]),
        annotations=annotations_of(pod, _KEPT),
    )


def annotations_of(pod: Pod, keys: Iterable[str]) -> dict[str, str]:
    """Those it has of these that are texts of a usual length; others mean nothing."""
    found = {}
    for key in keys:
        text = pod.annotations.get(key)
        if isinstance(text, str) and len(text) <= LONGEST_ANNOTATION:
            found[key] = text
    return found


def _priority(pod: Pod) -> PodPriority:
    found = pod.priority
    if found.written is None:
        return found
    return found._replace(written=found.written[:LONGEST_NAME])


def _ends(pod: Pod) -> tuple[ContainerEnd, ...]:
    if not pod.asked:
        return ()
    status = pod.status
    found = []
    for one in (*status.init_container_statuses, *status.container_statuses):
        for state in (one.last_state, one.state):
            end = state.terminated
            if end is None or (at := seconds(end.finished_at)) is None:
                continue
            is_killed = end.reason == "Error" and end.exit_code > _SIGNALLED
            with_pod = is_killed and state is one.state and status.phase == "Failed"
            reason = (with_pod and status.reason) or end.reason
            found.append(ContainerEnd(reason[:LONGEST_NAME], at))
    found.sort(key=lambda end: end.at)
    return tuple(found[-_MOST_ENDS:])


def devices_of(request: ContainerRequest, kind: Kind) -> int:
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
    """The container that kubelet most likely allocates `count` devices for: the first that waits
    for exactly so many. served: those that have their devices of this resource. gpus: the number
    that the devices lie on, where known: who asks for as many comes first. begun: those with
    devices of the other resource; kubelet finishes one before it begins the next, so these come
    first."""
    found: list[tuple[tuple[object, ...], RequestingContainer]] = []
    for pod in pods:
        if pod.is_finished or pod.terminating:
            continue
        for place, request in enumerate(_waiting(pod, served, kind)):
            if devices_of(request, kind) == count:
                is_begun = pod.container(request) in begun
                fits = gpus in (None, request.gpus)
                order = (not is_begun, not fits, place > 0, pod.came, place)
                found.append((order, RequestingContainer(pod, request)))
    return min(found, key=itemgetter(0), default=(None, None))[1]


def _waiting(
    pod: NodePod, served: Collection[ContainerName], kind: Kind
) -> Sequence[ContainerRequest]:
    """What the pod's containers that wait for devices ask for. kubelet goes through a pod in order,
    so one before a served one has been served too, whatever is known of it."""
    waiting: list[ContainerRequest] = []
    for request in pod.requests:
        if pod.container(request) in served:
            waiting.clear()
        elif devices_of(request, kind):
            waiting.append(request)
    return waiting
