"""What pods and programs may have: the shape of `limits/policy.yaml`.

A policy that loads is complete and free of contradictions; unknown, missing and wrong fields are refused by name, all
at once (`platform.limits_files` turns pydantic's list into problems). Only a rule of admission and a field with a
default may be left out, so that a new one makes no older policy invalid.
"""

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, GetCoreSchemaHandler, ValidationInfo, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from mpsd.model.cgpu_policies import MOST_INSTANCES, NATIVE, POLICIES, ThreadCap
from mpsd.model.violations import Response as Response

STRICT = ConfigDict(extra="forbid", strict=True)

Percent = Annotated[int, Field(ge=1, le=100)]
Ordinal = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
ResourceName = Annotated[
    str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
]
EvictingState = Literal["fault", "down", "wedged", "refused", "draining", "drained"]
Text = Annotated[str, Field(min_length=1)]
Pattern = Annotated[str, Field(pattern=r"^[^*]+\*?$")]  # * at the end stands for any ending
VariablePattern = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\*?$")]
PathPattern = Annotated[str, Field(pattern=r"^(/|(/[^/*]+)+\*?)$")]
CapabilityName = Annotated[str, Field(pattern=r"^[A-Z][A-Z_]*$")]


def _disjoint(domains: list[list[int]]) -> list[list[int]]:
    named = Counter(ordinal for domain in domains for ordinal in domain)
    if twice := sorted(ordinal for ordinal, times in named.items() if times > 1):
        raise ValueError(f"GPU {', '.join(map(str, twice))} is named more than once")
    return domains


def _enough(max_inst: int | None, info: ValidationInfo) -> int | None:
    """A policy that divides a card must be told into how many parts."""
    policy = POLICIES.get(info.data.get("policy", NATIVE))
    if max_inst is None and policy and policy.share is not ThreadCap.WHOLE:
        raise PydanticCustomError("max_inst_unset", "is not set")
    return max_inst


def _ordinal(text: str) -> str:
    if not text.isascii() or not text.isdigit() or text != str(int(text)):
        raise PydanticCustomError("no_ordinal", "is no ordinal")
    return text


class HostIPC(StrEnum):
    """What admission does about `hostIPC` on a pod that asks for a GPU."""

    REQUIRE = "require"
    INJECT = "inject"
    OFF = "off"


class RuleMode(StrEnum):
    """What a broken rule does: it refuses, it warns whoever asks, or it is noted in the audit log."""

    ENFORCE = "enforce"
    WARN = "warn"
    AUDIT = "audit"


class RuleId(StrEnum):
    """The name of each rule of admission, which never changes. `admission.rules` says what each is for."""

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
    MOUNT_PATH = "mount-path"
    MPSD_FILES = "mpsd-files"
    UNASKED_VISIBLE_DEVICES = "unasked-visible-devices"
    UNASKED_PRIVILEGED = "unasked-privileged"
    UNASKED_HOST_PATH = "unasked-host-path"


# The modes of limits/policy.yaml, which a rule has where a policy does not name it: one may be older than the rule.
_WARNED = {
    RuleId.GPUS_NOT_TOGETHER,
    RuleId.HOST_IPC_ADDED,
    RuleId.HOST_IPC_UNNEEDED,
    RuleId.ENVIRONMENT_SECRET,
    RuleId.ENVIRONMENT_UNSEEN,
    RuleId.HOST_PID,
    RuleId.HOST_ROOT,
    RuleId.UNASKED_PRIVILEGED,
    RuleId.UNASKED_HOST_PATH,
}
DEFAULT_MODES: Mapping[RuleId, RuleMode] = {
    rule: RuleMode.WARN if rule in _WARNED else RuleMode.ENFORCE for rule in RuleId
}


class RuleModes(dict[RuleId, RuleMode]):
    """A mode for every rule. by_default: the rules that the policy does not name, which have their shipped mode."""

    def __init__(self, named: Mapping[RuleId, RuleMode]) -> None:
        super().__init__({rule: named.get(rule, default) for rule, default in DEFAULT_MODES.items()})
        self.by_default = tuple(rule for rule in RuleId if rule not in named)

    @staticmethod
    def __get_pydantic_core_schema__(_source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """A field for each rule, so that one that is misspelt or has no such mode is refused by its own name."""
        mode = core_schema.typed_dict_field(handler.generate_schema(RuleMode), required=False)
        named = core_schema.typed_dict_schema(dict.fromkeys(RuleId, mode), extra_behavior="forbid")
        return core_schema.no_info_after_validator_function(RuleModes, named)


class Placement(StrEnum):
    """Which GPU is taken of those that have room."""

    BINPACK = "binpack"
    SPREAD = "spread"


class CanaryRule(StrEnum):
    """What a driver that does not obey means for its GPUs: no pods, a warning; SKIP does not look."""

    REQUIRE = "require"
    WARN = "warn"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, config=STRICT)
class Resources:
    memory: ResourceName
    memory_unit_mib: Annotated[int, Field(ge=1, le=1024 * 1024)]
    percent: ResourceName
    count: ResourceName

    @model_validator(mode="after")
    def names_differ(self) -> Self:
        if len({self.memory, self.percent, self.count}) < 3:
            raise ValueError("memory, percent and count must be three different names")
        return self


@dataclass(frozen=True, slots=True, config=STRICT)
class Requests:
    default_thread_percent: Percent
    minimum_thread_percent: Percent
    thread_percent_step: Percent
    clients_per_grant: Annotated[int, Field(ge=1, le=60)]

    @model_validator(mode="after")
    def percents_agree(self) -> Self:
        minimum, step = f"minimum_thread_percent {self.minimum_thread_percent}", self.thread_percent_step
        if self.default_thread_percent < self.minimum_thread_percent:
            raise ValueError(f"default_thread_percent {self.default_thread_percent} is below {minimum}")
        if self.minimum_thread_percent % step:
            raise ValueError(f"{minimum} is not in steps of thread_percent_step {step}")
        return self


@dataclass(frozen=True, slots=True, config=STRICT)
class Admission:
    """What the rules of admission go by. Tuples, so that what is made of them can be kept."""

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
    device_classes: tuple[Text, ...] = ("mps.mpsd.io",)
    claims_for_requests: bool = False  # a created pod gets a claim for the first of them in place of its request

    @model_validator(mode="after")
    def class_is_named(self) -> Self:
        if self.claims_for_requests and not self.device_classes:
            raise ValueError("claims_for_requests is true and device_classes names no class to claim")
        return self


@dataclass(frozen=True, slots=True, config=STRICT)
class Oversubscription:
    memory_percent: Annotated[int, Field(ge=1, le=1000)]
    thread_percent: Annotated[int, Field(ge=1, le=10_000)]


@dataclass(frozen=True, slots=True, config=STRICT)
class ViolationPolicy:
    action: Response


@dataclass(frozen=True, slots=True, config=STRICT)
class MemoryViolation(ViolationPolicy):
    tolerance_mib: Annotated[int, Field(ge=0, le=1024 * 1024)]


@dataclass(frozen=True, slots=True, config=STRICT)
class ClientsViolation:
    action: Response | Literal["kill_when_short"]


@dataclass(frozen=True, slots=True, config=STRICT)
class Violations:
    memory_over_grant: MemoryViolation
    limit_lifted: ViolationPolicy
    partitioning_enabled: ViolationPolicy
    outside_mps: ViolationPolicy
    without_grant: ViolationPolicy
    in_no_pod: ViolationPolicy
    too_many_clients: ClientsViolation


@dataclass(frozen=True, slots=True, config=STRICT)
class Graces:
    command_s: Seconds
    start_s: Seconds
    fault_grace_s: Seconds
    wedged_limit_s: Seconds
    drain_s: Seconds

    @model_validator(mode="after")
    def deadlines_nest(self) -> Self:
        start_s, command_s = self.start_s, self.command_s
        if start_s < command_s:
            raise ValueError(f"start_s {start_s} is below command_s {command_s}: no command could ever be answered")
        return self


@dataclass(frozen=True, slots=True, config=STRICT)
class Restarts:
    first_s: Seconds
    longest_s: Seconds
    stable_after_s: Seconds

    @model_validator(mode="after")
    def delays_grow(self) -> Self:
        if self.longest_s < self.first_s:
            raise ValueError(f"longest_s {self.longest_s} is below first_s {self.first_s}")
        return self


@dataclass(frozen=True, slots=True, config=STRICT)
class CardCompute:
    """What cGPU does with a card's threads. policy: a number of model.cgpu_policies. max_inst: into how many parts
    the card is divided, which is the most that the weights of its containers come to; None: no such bound.
    """

    policy: Annotated[int, Field(ge=min(POLICIES), le=max(POLICIES))]
    max_inst: Annotated[Annotated[int, Field(ge=1, le=MOST_INSTANCES)] | None, AfterValidator(_enough)]


@dataclass(frozen=True, slots=True, config=STRICT)
class Compute(CardCompute):
    """The same for every card but those that `cards` names, by ordinal."""

    cards: dict[Annotated[str, Field(max_length=3), AfterValidator(_ordinal)], CardCompute]

    def of(self, ordinal: int) -> CardCompute:
        return self.cards.get(str(ordinal), self)


@dataclass(frozen=True, slots=True, config=STRICT)
class Policy:
    """The whole of `limits/policy.yaml`."""

    version: Literal["v1"]
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
    domains: Annotated[list[Annotated[list[Ordinal], Field(min_length=2)]], AfterValidator(_disjoint)]
    evict_claims_when: tuple[EvictingState, ...] = ()  # states of a GPU: then Kubernetes deletes its pods with claims
    driver_upgrade: Literal["wait", "evict"] = "wait"  # what an upgrade of the driver does with the pods on its GPUs
