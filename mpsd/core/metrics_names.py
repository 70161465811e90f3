"""Every metric of the agent: its name, type, labels, unit and meaning.

One rule: names and labels here are an interface, and docs/metrics.md is printed from them; a label's values come from
closed sets, or are the names of GPUs, domains, and pods and containers that live.
"""

from dataclasses import dataclass
from enum import StrEnum


class Type(StrEnum):
    """As OpenMetrics calls them. A counter's name ends in `_total`, that of an info in `_info`."""

    COUNTER = "counter"
    GAUGE = "gauge"
    INFO = "info"


class Unit(StrEnum):
    """What a metric counts in; names end in it. NONE: things."""

    BYTES = "bytes"
    SECONDS = "seconds"
    RATIO = "ratio"
    NONE = ""


class Holder(StrEnum):
    """Values of the label `holder`: who was given a share."""

    POD = "pod"
    CONTAINER = "container"
    PROGRAM = "program"


@dataclass(frozen=True, slots=True)
class Metric:
    """name: as it is asked for."""

    name: str
    type: Type
    labels: tuple[str, ...]
    help: str
    unit: Unit = Unit.NONE

    @property
    def family(self) -> str:
        """The name without what its type puts behind it."""
        return self.name.removesuffix("_total").removesuffix("_info")


_G, _C = Type.GAUGE, Type.COUNTER
_DOMAIN = ("domain",)
_GPU = ("gpu", "uuid")
_SHARE = ("gpu", "uuid", "holder", "namespace", "pod", "container")
_WHAT = ("kind", "action")

DRIVER = Metric("mpsd_driver_info", Type.INFO, ("version",), "NVIDIA's driver of this node.")
LOOKED_AT = Metric("mpsd_look_timestamp_seconds", _G, (), "When the node was last looked at.", Unit.SECONDS)
UNKNOWN = Metric("mpsd_unknown_things", _G, (), "What the last look could not see; `mpsd status` says what and why.")
LIMITS_WRONG = Metric(
    "mpsd_limits_wrong", _G, (), "1 while the limits files cannot be used and older ones are in force."
)
WAITING = Metric("mpsd_requests_waiting", _G, (), "Programs and containers that wait for a share.")

DOMAIN_STATE = Metric("mpsd_domain_state", _G, ("domain", "state"), "1 for the state that the domain is in, else 0.")
DOMAIN_SINCE = Metric(
    "mpsd_domain_state_timestamp_seconds", _G, _DOMAIN, "When the domain came into its state.", Unit.SECONDS
)
DOMAIN_RESTARTS = Metric(
    "mpsd_domain_restarts_total", _C, _DOMAIN, "Restarts of the domain's daemon since mpsd first ran in this boot."
)
DOMAIN_SERVERS = Metric("mpsd_domain_servers", _G, _DOMAIN, "MPS servers of the domain's daemon.")
DOMAIN_FAULTS = Metric("mpsd_domain_faults_total", _C, _DOMAIN, "Faults of the domain's GPUs in this boot.")
DOMAIN_FAULT_AT = Metric(
    "mpsd_domain_last_fault_timestamp_seconds",
    _G,
    _DOMAIN,
    "When the last fault was; no series where there was none.",
    Unit.SECONDS,
)
DOMAIN_CANARY = Metric(
    "mpsd_domain_canary_passed",
    _G,
    _DOMAIN,
    "1 where the driver was seen to hold limits, 0 where it was seen not to; no series where nobody looked.",
)

GPU = Metric(
    "mpsd_gpu_info", Type.INFO, (*_GPU, "domain", "model"), "The GPU's model, and its domain, empty while it has none."
)
GPU_MEMORY = Metric("mpsd_gpu_memory_bytes", _G, _GPU, "Memory that CUDA can use.", Unit.BYTES)
GPU_PROMISED = Metric("mpsd_gpu_promised_bytes", _G, _GPU, "Memory that may be granted in all.", Unit.BYTES)
GPU_GRANTED = Metric("mpsd_gpu_granted_bytes", _G, _GPU, "Memory that is granted.", Unit.BYTES)
GPU_USED = Metric("mpsd_gpu_used_bytes", _G, _GPU, "Memory that processes use, granted or not.", Unit.BYTES)
GPU_PROMISED_THREADS = Metric(
    "mpsd_gpu_promised_threads_ratio", _G, _GPU, "Share of the threads that may be reserved in all.", Unit.RATIO
)
GPU_GRANTED_THREADS = Metric(
    "mpsd_gpu_granted_threads_ratio", _G, _GPU, "Share of the threads that is reserved.", Unit.RATIO
)
GPU_PROMISED_CLIENTS = Metric("mpsd_gpu_promised_clients", _G, _GPU, "Clients that MPS lets in.")
GPU_CLIENTS = Metric("mpsd_gpu_clients", _G, _GPU, "Processes on the GPU.")
GPU_OUTSIDE = Metric("mpsd_gpu_clients_outside_mps", _G, _GPU, "Those of them that run beside MPS.")
GPU_STRANGERS = Metric("mpsd_gpu_clients_without_grant", _G, _GPU, "Those of them that belong to no grant.")

GRANTS = Metric("mpsd_grants", _G, (*_GPU, "holder"), "Grants that have a share of the GPU.")
SHARE_LIMIT = Metric("mpsd_grant_limit_bytes", _G, _SHARE, "Memory that the holder may use.", Unit.BYTES)
SHARE_USED = Metric("mpsd_grant_used_bytes", _G, _SHARE, "Memory that the holder's processes use.", Unit.BYTES)
SHARE_OVER = Metric(
    "mpsd_grant_over_limit", _G, _SHARE, "1 where that is more than it may, the policy's tolerance included, else 0."
)
SHARE_CLIENTS = Metric("mpsd_grant_clients", _G, _SHARE, "The holder's processes on the GPU.")
SHARE_RESERVED = Metric(
    "mpsd_grant_reserved_threads_ratio", _G, _SHARE, "Share of the threads that is kept for the holder.", Unit.RATIO
)
SHARE_THREADS = Metric(
    "mpsd_grant_threads_ratio",
    _G,
    _SHARE,
    "Share of the threads that MPS holds each of its processes to, 1 for no limit; no series for programs.",
    Unit.RATIO,
)

VIOLATIONS = Metric(
    "mpsd_violations_total", _C, _WHAT, "Processes that took more than they were given, since the agent began."
)
VIOLATIONS_ENDED = Metric("mpsd_violations_ended_total", _C, _WHAT, "Those of them that are known to have been ended.")
JUDGING = Metric("mpsd_watchdog_judging", _G, (), "0 while nobody is judged, for it is not known who holds what.")
LOOKS = Metric("mpsd_watchdog_looks_total", _C, (), "Looks at the processes on the GPUs.")
LATE_LOOKS = Metric("mpsd_watchdog_late_looks_total", _C, (), "Those that came more than 0.25 s after the one before.")
LONGEST_PAUSE = Metric(
    "mpsd_watchdog_longest_pause_seconds", _G, (), "The longest time between two looks so far.", Unit.SECONDS
)
NVML_SECONDS = Metric("mpsd_nvml_cpu_seconds_total", _C, (), "Processor time that was spent in NVML.", Unit.SECONDS)

METRICS = (
    DRIVER,
    LOOKED_AT,
    UNKNOWN,
    LIMITS_WRONG,
    WAITING,
    DOMAIN_STATE,
    DOMAIN_SINCE,
    DOMAIN_RESTARTS,
    DOMAIN_SERVERS,
    DOMAIN_FAULTS,
    DOMAIN_FAULT_AT,
    DOMAIN_CANARY,
    GPU,
    GPU_MEMORY,
    GPU_PROMISED,
    GPU_GRANTED,
    GPU_USED,
    GPU_PROMISED_THREADS,
    GPU_GRANTED_THREADS,
    GPU_PROMISED_CLIENTS,
    GPU_CLIENTS,
    GPU_OUTSIDE,
    GPU_STRANGERS,
    GRANTS,
    SHARE_LIMIT,
    SHARE_USED,
    SHARE_OVER,
    SHARE_CLIENTS,
    SHARE_RESERVED,
    SHARE_THREADS,
    VIOLATIONS,
    VIOLATIONS_ENDED,
    JUDGING,
    LOOKS,
    LATE_LOOKS,
    LONGEST_PAUSE,
    NVML_SECONDS,
)


def as_table() -> str:
    """The metrics as a Markdown table, for the documentation."""
    rows = [f"| `{one.name}` | {one.type} | {', '.join(one.labels)} | {one.help} |" for one in METRICS]
    return "\n".join(["| metric | type | labels | meaning |", "| --- | --- | --- | --- |", *rows])
