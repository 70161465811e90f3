"""Small nodes for tests of core: two GPUs of 23 GiB and whatever a test puts on them."""

from dataclasses import replace

from mpsd.model.domain import State
from mpsd.model.gpu_facts import Capability
from mpsd.model.grants import Gpu, Grant, Request, evenly
from mpsd.model.identity import ProcessIdentity
from mpsd.model.node_view import (
    RECORD_VERSION,
    Client,
    DomainRecord,
    DomainView,
    HeldGrant,
    NodeView,
    ServerLimit,
    WaitingRequest,
)
from mpsd.model.policy import Placement, RuleId
from mpsd.platform.limits_files import read_policy

_PLAIN_VIOLATIONS = (
    "limit_lifted",
    "partitioning_enabled",
    "outside_mps",
    "without_grant",
    "in_no_pod",
    "too_many_clients",
)
POLICY_DATA = {
    "version": "v1",
    "resources": {
        "memory": "aliyun.com/gpu-mem",
        "memory_unit_mib": 1024,
        "percent": "aliyun.com/gpu-core.percentage",
        "count": "aliyun.com/gpu-count",
    },
    "requests": {
        "default_thread_percent": 100,
        "minimum_thread_percent": 5,
        "thread_percent_step": 5,
        "clients_per_grant": 8,
    },
    "admission": {
        "host_ipc": "require",
        "rules": {rule.value: "enforce" for rule in RuleId},
        "exempt_namespaces": ["kube-system"],
        "blocked_environment": ["CUDA_MPS_*"],
        "blocked_capabilities": ["SYS_ADMIN"],
        "blocked_host_paths": ["/dev/nvidia*"],
        "blocked_mount_paths": ["/run/mpsd"],
        "other_gpus": ["nvidia.com/gpu*"],
        "schedulers": ["default-scheduler"],
        "runtime_classes": [],
        "placement_accounts": ["system:kube-scheduler"],
        "void_visible_devices": True,
        "visible_devices_kept_for": ["nvidia.com/*"],
    },
    "placement": "binpack",
    "oversubscription": {"memory_percent": 100, "thread_percent": 100},
    "violations": {
        "memory_over_grant": {"action": "kill", "tolerance_mib": 32},
        **{kind: {"action": "warn"} for kind in _PLAIN_VIOLATIONS},
    },
    "graces": {
        "command_s": 2,
        "start_s": 30,
        "fault_grace_s": 5,
        "wedged_limit_s": 60,
        "drain_s": 300,
    },
    "restarts": {"first_s": 1, "longest_s": 60, "stable_after_s": 120},
    "exclusive_process": False,
    "canary": "require",
    "compute": {"policy": 5, "max_inst": None, "cards": {}},
    "domains": [],
}
POLICY = read_policy(POLICY_DATA, "the tests' policy")
SPREAD = replace(POLICY, placement=Placement.SPREAD)

CAPABILITY = Capability(
    compute_capability="8.0",
    clients=48,
    cores_per_sm=64,
    context_base_mib=28,
    context_per_sm_kib=3772,
    server_mib=76,
    sm_granularity=2,
    sm_minimum=8,
    measured=False,
    source="the tests",
)
UUIDS = ("GPU-00000000-0000-0000-0000-000000000000", "GPU-11111111-1111-1111-1111-111111111111")
GPUS = tuple(
    Gpu(uuid, ordinal, "NVIDIA A30", 23 * 1024 + 76, 56, CAPABILITY)
    for ordinal, uuid in enumerate(UUIDS)
)
NOW = 1_000_000.0
NOW_S = 86_400.0  # the same by CLOCK_BOOTTIME


def identity(pid: int) -> ProcessIdentity:
    return ProcessIdentity(pid, pid * 100, "a-boot")


def grant(name: str, gib: int, gpu: int = 0, reserved_percent: int = 0) -> Grant:
    return Grant(
        id=name,
        domain=f"gpu{gpu}",
        parts=evenly((UUIDS[gpu],), gib * 1024, reserved_percent),
        thread_percent=reserved_percent or 100,
        clients=8,
        holder=identity(abs(hash(name)) % 1000 + 100),
        command="train",
    )


def waiting(
    name: str, gib: int, percent: int | None = None, gpus: int = 1, deadline_s: float | None = None
) -> WaitingRequest:
    return WaitingRequest(
        name, Request(gib * 1024, percent, gpus), identity(7), True, "train", deadline_s
    )


def record(
    gpu: int = 0, state: State = State.READY, servers: tuple[int, ...] = (500,), reason: str = ""
) -> DomainRecord:
    return DomainRecord(
        version=RECORD_VERSION,
        domain=f"gpu{gpu}",
        gpus=(UUIDS[gpu],),
        state=state,
        since=NOW,
        reason=reason,
        daemon=identity(400 + gpu),
        servers=servers,
        restarts=0,
        restarts_total=0,
        started_s=NOW_S,
        compute_modes={},
    )


LOST = "NVML: nvmlDeviceGetComputeRunningProcesses failed: GPU is lost"


def blind(view: NodeView, *gpus: str) -> NodeView:
    """Where the processes on these GPUs, or on all, are not known."""
    unseen = dict.fromkeys(gpus or [gpu.uuid for gpu in view.gpus], LOST)
    seen = tuple([client for client in view.clients if client.gpu not in unseen])
    return replace(view, clients=seen, unseen=unseen)


def view(
    *,
    grants: tuple[HeldGrant, ...] = (),
    waits: tuple[WaitingRequest, ...] = (),
    clients: tuple[Client, ...] = (),
    records: tuple[DomainRecord, ...] = (record(0), record(1)),
    limits: frozenset[ServerLimit] = frozenset(),
    now: float = NOW,
) -> NodeView:
    domains = tuple(DomainView(one, limits) for one in records)
    return NodeView(now, now - NOW + NOW_S, "580.159.04", GPUS, domains, grants, clients, waits, ())
