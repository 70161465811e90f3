"""The pods of this node as its device plugin needs them, and which of them kubelet is asking for.

One rule: kubelet names no pod when it allocates, so what is said here of "the" pod is the best guess there is, and is
checked when the container starts, where kubelet does name it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from mpsd.core.policy import Policy
from mpsd.core.share_request import ContainerRequest


@dataclass(frozen=True, slots=True)
class ContainerName:
    """One container of a pod of this node."""

    namespace: str
    pod: str
    container: str

    def __str__(self) -> str:
        return f"pod {self.namespace}/{self.pod}, container {self.container}"


@dataclass(frozen=True, slots=True)
class NodePod:
    """A pod of this node that asks for a GPU. created: RFC 3339. phase: empty where nobody has written one.

    requests: as kubelet allocates, init containers and sidecars first, each in the order of the pod. main_containers:
    the names of all of `spec.containers`, also of those that ask for nothing. terminating: its deletion was asked for.
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

    @property
    def is_finished(self) -> bool:
        raise NotImplementedError

    @property
    def cgroup_uid(self) -> str:
        """The uid that kubelet names the pod's cgroups by; for a static pod it is not the API's."""
        raise NotImplementedError

    def request(self, container: str) -> ContainerRequest | None:
        """What the container of this name asks for; None where it asks for nothing."""
        raise NotImplementedError

    def container(self, request: ContainerRequest) -> ContainerName:
        """The name of the container that has this request."""
        raise NotImplementedError


def read_node_pod(thing: object, policy: Policy) -> NodePod | None:
    """The pod in a decoded object of the API; None for what asks for no GPU or cannot be read.

    Whatever kubelet would allocate is read, also where admission would refuse it: kubelet has taken the pod already.
    """
    raise NotImplementedError


def memory_units(request: ContainerRequest) -> int:
    """Devices of the memory resource that kubelet allocates for this."""
    raise NotImplementedError


def percents(request: ContainerRequest) -> int:
    """Devices of the percent resource that kubelet allocates for this; 0 where no share is asked for."""
    raise NotImplementedError


def expected(
    pods: Iterable[NodePod],
    served: Collection[ContainerName],
    amount: Callable[[ContainerRequest], int],
    count: int,
    gpus: int | None = None,
) -> tuple[NodePod, ContainerRequest] | None:
    """The container that kubelet most likely allocates `count` devices for: the oldest that waits for exactly so many.

    pods: those bound to this node. served: the containers that have their devices of this resource. gpus: the number
    of GPUs that the devices lie on, where it is known: pods that ask for as many come first then.
    """
    raise NotImplementedError
