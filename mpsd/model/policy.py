"""What pods and programs may have: the shape of `limits/policy.yaml`, which `model.strict_reader`
reads. Only a rule of admission and a field with a default may be left out, so that a new one makes
no older policy invalid."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import Annotated, Literal

from msgspec import Meta

from mpsd.model.cgpu_policies import MOST_INSTANCES, POLICIES, ThreadCap
from mpsd.model.gpu_health import XidKind
from mpsd.model.names import CAPABILITIES, CLAIM_CLASS, WHOLE_CLASS, capability
from mpsd.model.strict_reader import Contradiction
from mpsd.model.violations import Response as Response

Percent = Annotated[int, Meta(ge=1, le=100)]
Index = Annotated[int, Meta(ge=0)]
# As text, in a mapping.
Ordinal = Annotated[
    str,
    Meta(
        pattern=r"^(0|[1-9][0-9]{0,2})\Z",
        extra={
            "words": ("no-ordinal", "is no GPU's ordinal", "write it as nvidia-smi does, such as 0")
        },
    ),
]
Version = Annotated[
    Literal["v1"],
    Meta(extra={"words": ("version-unknown", "is not a version this mpsd reads", 'write "v1"')}),
]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
POD_END_MARGIN_S = 0.5  # between mpsd's SIGKILL to the clients of a deleted pod and kubelet's
_LABEL = "[a-z0-9]([a-z0-9-]*[a-z0-9])?"
ResourceName = Annotated[
    str, Meta(pattern=rf"^{_LABEL}([.]{_LABEL})*/[A-Za-z0-9]([A-Za-z0-9._-]{{0,61}}[A-Za-z0-9])?\Z")
]
# what holds a grant's memory as a whole, in the moment of an allocation
MemoryCap = Literal["auto", "cgroup", "mps"]
EvictingState = Literal["fault", "down", "wedged", "refused", "draining", "drained"]
Text = Annotated[str, Meta(min_length=1)]
Pattern = Annotated[str, Meta(pattern=r"^[^*]+\*?\Z")]  # * at the end stands for any ending
VariablePattern = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\*?\Z")]
PathPattern = Annotated[str, Meta(pattern=r"^(/|(/[^/*]+)+\*?)\Z")]
CapabilityName = Annotated[
    str,
    Meta(
        pattern=rf"(?i)^(CAP_)?({'|'.join(CAPABILITIES)})\Z",
        extra={
            "words": (
                "capability-unknown",
                "is no capability of Linux",
                "write one of capabilities(7), such as SYS_ADMIN, or ALL",
            )
        },
    ),
]


def _disjoint(domains: list[list[int]]) -> None:
    named = Counter(chain.from_iterable(domains))
    if twice := sorted(named - Counter(set(named))):
        raise ValueError(f"GPU {', '.join(map(str, twice))} is named more than once")


class HostIPC(StrEnum):
    """What admission does about `hostIPC` on a pod that asks for a GPU."""

    REQUIRE = "require"
    INJECT = "inject"
    OFF = "off"


class RuleMode(StrEnum):
    """What a broken rule does: refuse, warn whoever asks, or note it in the audit log."""

    ENFORCE = "enforce"
    WARN = "warn"
    AUDIT = "audit"


class RuleId(StrEnum):
    """The names of rules of admission, which never change (`admission.rules`)."""

    OBJECT_MALFORMED = "object-malformed"
    REQUEST_IMPOSSIBLE = "request-impossible"
    OTHER_GPU_TOO = "other-gpu-too"
    GPUS_NOT_TOGETHER = "gpus-not-together"
    HOST_IPC_MISSING = "host-ipc-missing"
    HOST_IPC_ADDED = "host-ipc-added"
    HOST_IPC_UNNEEDED = "host-ipc-unneeded"
    ENVIRONMENT_BLOCKED = "environment-blocked"
    ENVIRONMENT_SECRET = "environment-secret"  # noqa: S105 (a rule, not a password)
    ENVIRONMENT_UNSEEN = "environment-unseen"
    PRIVILEGED = "privileged"
    CAPABILITIES = "capabilities"
    HOST_PID = "host-pid"
    HOST_ROOT = "host-root"
    HOST_PATH = "host-path"
    SCHEDULER_NAME = "scheduler-name"
    NODE_NAME = "node-name"
    RUNTIME_CLASS = "runtime-class"
    PLACEMENT_ANNOTATION = "placement-annotation"
    GRACE_ZERO = "grace-zero"
    MOUNT_PATH = "mount-path"
    MPSD_FILES = "mpsd-files"
    UNASKED_VISIBLE_DEVICES = "unasked-visible-devices"
    UNASKED_PRIVILEGED = "unasked-privileged"
    UNASKED_HOST_PATH = "unasked-host-path"


# as in limits/policy.yaml, for a policy that is older than a rule
_WARNED = {
    RuleId.GPUS_NOT_TOGETHER,
    RuleId.HOST_IPC_ADDED,
    RuleId.HOST_IPC_UNNEEDED,
    RuleId.ENVIRONMENT_SECRET,
    RuleId.ENVIRONMENT_UNSEEN,
    RuleId.HOST_PID,
    RuleId.HOST_ROOT,
    RuleId.GRACE_ZERO,
    RuleId.UNASKED_PRIVILEGED,
    RuleId.UNASKED_HOST_PATH,
}
DEFAULT_MODES: Mapping[RuleId, RuleMode] = dict.fromkeys(RuleId, RuleMode.ENFORCE) | dict.fromkeys(
    _WARNED, RuleMode.WARN
)


class RuleModes(dict[RuleId, RuleMode]):
    """A mode for every rule. by_default: those that the policy does not name."""

    def __init__(self, named: Mapping[RuleId, RuleMode]) -> None:
        super().__init__({**DEFAULT_MODES, **named})
        self.by_default = tuple(rule for rule in RuleId if rule not in named)


class Placement(StrEnum):
    BINPACK = "binpack"
    SPREAD = "spread"


class CanaryRule(StrEnum):
    """What a driver that does not enforce limits means: no pods, or a warning; SKIP does not
    look."""

    REQUIRE = "require"
    WARN = "warn"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Resources:
    memory: ResourceName
    memory_unit_mib: Annotated[int, Meta(ge=1, le=1024 * 1024)]
    percent: ResourceName
    count: ResourceName

    def __post_init__(self) -> None:
        if len({self.memory, self.percent, self.count}) < 3:
            raise ValueError("memory, percent and count must be three different names")
        # `IsExtendedResourceName` of Kubernetes
        for key, name in (("memory", self.memory), ("percent", self.percent)):
            if "kubernetes.io/" in name or name.startswith("requests."):
                message = "Kubernetes keeps names with kubernetes.io/ or requests. for itself"
                remedy = "write a domain of yours, such as mpsd.io"
                raise Contradiction(key, message, "resource-reserved", remedy)


@dataclass(frozen=True, slots=True)
class Requests:
    default_thread_percent: Percent
    minimum_thread_percent: Percent
    thread_percent_step: Percent
    clients_per_grant: Annotated[int, Meta(ge=1, le=60)]

    def __post_init__(self) -> None:
        minimum = f"minimum_thread_percent {self.minimum_thread_percent}"
        step = self.thread_percent_step
        default = self.default_thread_percent
        if default < self.minimum_thread_percent:
            raise ValueError(f"default_thread_percent {default} is below {minimum}")
        if self.minimum_thread_percent % step:
            raise ValueError(f"{minimum} is not in steps of thread_percent_step {step}")


@dataclass(frozen=True, slots=True)
class Admission:
    """Tuples, so that what is made of them can be kept."""

    host_ipc: HostIPC
    rules: RuleModes
    exempt_namespaces: tuple[Text, ...]
    blocked_environment: tuple[VariablePattern, ...]
    blocked_capabilities: tuple[CapabilityName, ...]
    blocked_host_paths: tuple[PathPattern, ...]
    blocked_mount_paths: tuple[PathPattern, ...]
    other_gpus: tuple[Pattern, ...]
    schedulers: tuple[Text, ...]
    runtime_classes: tuple[Text, ...]
    placement_accounts: tuple[Text, ...]
    void_visible_devices: bool
    visible_devices_kept_for: tuple[Pattern, ...]
    allowed_host_paths: tuple[PathPattern, ...] | None = None  # None: all that are not blocked
    device_classes: tuple[Text, ...] = (CLAIM_CLASS, WHOLE_CLASS)
    # a created pod gets a claim for the first of them in place of its request
    claims_for_requests: bool = False

    def __post_init__(self) -> None:
        blocked = tuple(map(capability, self.blocked_capabilities))
        object.__setattr__(self, "blocked_capabilities", blocked)
        if self.claims_for_requests and not self.device_classes:
            why = "claims_for_requests is true and device_classes names no class to claim"
            raise ValueError(why)


@dataclass(frozen=True, slots=True)
class Oversubscription:
    memory_percent: Annotated[int, Meta(ge=1, le=1000)]
    thread_percent: Annotated[int, Meta(ge=1, le=10_000)]


@dataclass(frozen=True, slots=True)
class ViolationPolicy:
    action: Response


# where a policy does not name it: one may be older than the kind
_REPORTED = ViolationPolicy(Response.WARN)


@dataclass(frozen=True, slots=True)
class MemoryViolation(ViolationPolicy):
    tolerance_mib: Annotated[int, Meta(ge=0, le=1024 * 1024)]


@dataclass(frozen=True, slots=True)
class ClientsViolation:
    action: Literal["observe", "warn", "kill", "evict", "kill_when_short"]


@dataclass(frozen=True, slots=True)
class Violations:
    memory_over_grant: MemoryViolation
    limit_lifted: ViolationPolicy
    partitioning_enabled: ViolationPolicy
    outside_mps: ViolationPolicy
    without_grant: ViolationPolicy
    in_no_pod: ViolationPolicy
    too_many_clients: ClientsViolation
    threads_lifted: ViolationPolicy = _REPORTED
    priority_raised: ViolationPolicy = _REPORTED


@dataclass(frozen=True, slots=True)
class Graces:
    command_s: Seconds
    start_s: Seconds
    fault_grace_s: Seconds
    wedged_limit_s: Seconds
    drain_s: Seconds
    #: from the stop of a client that is to end to its SIGKILL, for what it had queued
    end_drain_s: Annotated[float, Meta(ge=0, le=10)] = 3.0

    def __post_init__(self) -> None:
        if self.start_s < self.command_s:
            below = f"start_s {self.start_s:g} is below command_s {self.command_s:g}"
            raise ValueError(f"{below}: no command could ever be answered")

    @property
    def pod_end_s(self) -> float:
        """How long before its grace ends a pod's clients are stopped, so that kubelet finds none to
        kill."""
        return self.end_drain_s + POD_END_MARGIN_S


@dataclass(frozen=True, slots=True)
class Restarts:
    first_s: Seconds
    longest_s: Seconds
    stable_after_s: Seconds

    def __post_init__(self) -> None:
        if self.longest_s < self.first_s:
            raise ValueError(f"longest_s {self.longest_s:g} is below first_s {self.first_s:g}")


@dataclass(frozen=True, slots=True)
class CardCompute:
    """What cGPU does with a card's threads. policy: a number of model.cgpu_policies. max_inst: how
    many parts the card has, which its containers' weights do not exceed; None: no such bound."""

    policy: Annotated[int, Meta(ge=min(POLICIES), le=max(POLICIES))]
    max_inst: Annotated[int, Meta(ge=1, le=MOST_INSTANCES)] | None

    def __post_init__(self) -> None:
        if self.max_inst is None and POLICIES[self.policy].share is not ThreadCap.WHOLE:
            gives = "1/max_inst or weight/max_inst of a card"
            message = f"is not set, and the policy beside it gives a container {gives}"
            remedy = f"write 1 to {MOST_INSTANCES}, or policy 1, 2, 4 or 5"
            raise Contradiction("max_inst", message, "max-inst-unset", remedy)


@dataclass(frozen=True, slots=True)
class Compute(CardCompute):
    """The same for every card but those that `cards` names, by ordinal."""

    cards: dict[Ordinal, CardCompute]

    def of(self, ordinal: int) -> CardCompute:
        return self.cards.get(str(ordinal), self)


@dataclass(frozen=True, slots=True)
class GpuPriority:
    """Whose work on a GPU comes after others'. by: what of a pod says so. below_normal_under: the
    smallest `spec.priority` that is not below normal."""

    by: Literal["none", "priority-class", "annotation"] = "none"
    # an int32, as priorities are
    below_normal_under: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] = 0


XidNumber = Annotated[
    str,
    Meta(
        pattern=r"^[1-9][0-9]{0,4}\Z",
        extra={"words": ("no-xid", "is no Xid's number", "write it as the kernel's log does: 79")},
    ),
]


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """When a GPU is sick. xids: exceptions from limits/gpus.yaml, by number."""

    xids: dict[XidNumber, XidKind] = field(default_factory=dict)
    #: how long its hardware must slow a GPU down, without a pause
    brake_s: Seconds = 60.0
    #: of mpsd's own, in a row on one GPU
    failed_contexts: Annotated[int, Meta(ge=1, le=100)] = 3


@dataclass(frozen=True, slots=True)
class Policy:
    version: Version
    resources: Resources
    requests: Requests
    admission: Admission
    placement: Placement
    oversubscription: Oversubscription
    violations: Violations
    graces: Graces
    restarts: Restarts
    exclusive_process: bool
    canary: CanaryRule
    compute: Compute
    domains: Annotated[list[Annotated[list[Index], Meta(min_length=2)]], _disjoint]
    # which of the nodes with --dra serve claims, and no device plugin
    claim_nodes: Literal["all", "labelled"] = "all"
    # states of a GPU: then Kubernetes deletes its pods with claims
    evict_claims_when: tuple[EvictingState, ...] = ()
    # what an upgrade of the driver does with the pods on its GPUs
    driver_upgrade: Literal["wait", "evict"] = "wait"
    gpu_priority: GpuPriority = field(default_factory=GpuPriority)
    memory_cap: MemoryCap = "auto"
    # whether the clients of a deleted pod are stopped before kubelet kills them
    pod_ends: bool = True
    health: HealthPolicy = field(default_factory=HealthPolicy)
