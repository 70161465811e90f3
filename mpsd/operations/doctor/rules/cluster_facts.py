"""What `kubectl mps doctor` saw of a cluster: a frozen picture, without a judgement.

One rule: what could not be read is Unknown, with why; what there is none of here is Elsewhere. Neither is ever a value.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mpsd.model.cluster_status import ClusterNode
from mpsd.operations.doctor.rules.facts import Fact
from mpsd.platform.rules.certificates import Validity


@dataclass(frozen=True, slots=True)
class OwnPod:
    """A pod of mpsd's. component: its app.kubernetes.io/name. trouble: why it does not run, as kubelet or the scheduler
    says; empty where it does or nothing is said. restarts: of all its containers. ended: how the last one ended; empty
    where none has. image: of the container of mpsd itself.
    """

    name: str
    component: str
    node: str
    ready: bool
    ending: bool
    trouble: str
    restarts: int
    ended: str
    image: str


@dataclass(frozen=True, slots=True)
class Workload:
    """A DaemonSet or Deployment of mpsd's. kind: as kubectl writes it, such as `ds`. wanted, ready: pods."""

    kind: str
    name: str
    component: str
    wanted: int
    ready: int

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


@dataclass(frozen=True, slots=True)
class ClusterNodeFacts:
    """A Node. gpus: why it is known to have NVIDIA GPUs, such as a label; empty where nothing says so. whole_gpus: the
    resource of another device plugin that gives GPUs there, with its number; empty where there is none.
    """

    name: str
    is_shared: bool
    gpus: str
    whole_gpus: str


@dataclass(frozen=True, slots=True)
class Definition:
    """MPSNode's. served: whether version v1alpha1 is. lacks: fields of a status that it drops and this mpsd tells."""

    established: bool
    served: bool
    lacks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RightSeen:
    """Whether a component may do what it must. what: verb and resource."""

    component: str
    what: str
    allowed: bool


@dataclass(frozen=True, slots=True)
class Hook:
    """A webhook in a configuration. policy: failurePolicy. bundle: caBundle as it stands there; empty for none.

    serving: of the certificate that the webhook itself has, as the configuration tells it.
    """

    kind: str
    name: str
    policy: str
    bundle: str
    serving: Fact[Validity]


@dataclass(frozen=True, slots=True)
class CaBundleCertificate:
    """A certificate in a caBundle. ends_at: seconds since 1970."""

    subject: str
    ends_at: float


@dataclass(frozen=True, slots=True)
class Clock:
    """behind_s: how far a clock is behind the API server's; negative: ahead of it. of: whose."""

    of: str
    behind_s: float


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod of anybody's that is on a node of mpsd's, or waits for its GPUs.

    asks: for GPU memory. outside: how it gets at a GPU past the ledger, in admission's words; empty where it does not.
    whole_gpus: another resource of GPUs that it has. placed: a scheduler of mpsd's has written which GPU it has.
    unscheduled: what its scheduler says of it while it waits for a node.
    """

    name: str
    node: str
    asks: bool
    outside: tuple[str, ...]
    whole_gpus: str
    scheduler: str
    placed: bool
    pending: bool
    unscheduled: str


@dataclass(frozen=True, slots=True)
class KubeScheduler:
    """A pod of the cluster's own kube-scheduler. configured: its command names a file of configuration."""

    name: str
    configured: bool


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """now: seconds since 1970 by the clock of whoever asks. ours: the version of this command line.

    kubernetes: major and minor. namespace: whether mpsd's is there. definition: None where there is none. hooks: of
    mpsd's configurations. authorities: by caBundle. endpoints: addresses behind the webhook's Service that are ready.
    refusals: what API servers said of late of a webhook that they could not ask. mpsnodes: by name. kube_schedulers:
    those that run as pods of kube-system.
    """

    now: float
    ours: str
    kubernetes: Fact[tuple[int, int]]
    namespace: Fact[bool]
    definition: Fact[Definition | None]
    rights: Fact[tuple[RightSeen, ...]]
    pods: Fact[tuple[OwnPod, ...]]
    workloads: Fact[tuple[Workload, ...]]
    machines: Fact[tuple[ClusterNodeFacts, ...]]
    mpsnodes: Fact[Mapping[str, ClusterNode]]
    hooks: Fact[tuple[Hook, ...]]
    authorities: Fact[Mapping[str, tuple[CaBundleCertificate, ...]]]
    endpoints: Fact[int]
    refusals: Fact[tuple[str, ...]]
    own_clock: Fact[Clock]
    node_clocks: Fact[tuple[Clock, ...]]
    said: Fact[tuple[PodFacts, ...]]
    kube_schedulers: Fact[tuple[KubeScheduler, ...]]
