"""Every metric of mpsd: its name, type, labels, unit and meaning, and which of its processes tell it.

Names and labels here are an interface, and docs/metrics.md is printed from them; a label's values come from
closed sets, or are the names of GPUs, domains, and pods and containers that live.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

# Source of types and names: https://prometheus.io/docs/specs/om/open_metrics_spec/


class Type(StrEnum):
    """As OpenMetrics calls them. A counter's name ends in `_total`, that of an info in `_info`."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


class MetricUnit(StrEnum):
    """What a metric counts in; names end in it. NONE: things."""

    BYTES = "bytes"
    SECONDS = "seconds"
    RATIO = "ratio"
    NONE = ""


class HolderKind(StrEnum):
    """Values of the label `holder`: who was given a share."""

    POD = "pod"
    CONTAINER = "container"
    PROGRAM = "program"


class Teller(StrEnum):
    """A process of mpsd that has metrics. AGENT: `mpsd up` too."""

    AGENT = "agent"
    WEBHOOK = "webhook"
    SCHEDULER = "scheduler"


@dataclass(frozen=True, slots=True)
class Metric:
    """name: as it is asked for, but for a histogram, which is asked for by `_bucket`, `_sum` and `_count` behind it."""

    name: str
    type: Type
    labels: tuple[str, ...]
    help: str
    unit: MetricUnit = MetricUnit.NONE
    tellers: tuple[Teller, ...] = (Teller.AGENT,)

    @property
    def family(self) -> str:
        """The name without what its type puts behind it."""
        return self.name.removesuffix("_total").removesuffix("_info")

    @property
    def series(self) -> tuple[str, ...]:
        """The names of its samples."""
        if self.type is Type.HISTOGRAM:
            return f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count"
        return (self.name,)


_G, _C, _H = Type.GAUGE, Type.COUNTER, Type.HISTOGRAM
_WEBHOOK, _SCHEDULER = (Teller.WEBHOOK,), (Teller.SCHEDULER,)
_DOMAIN = ("domain",)
_GPU = ("gpu", "uuid")
_SHARE = ("gpu", "uuid", "holder", "namespace", "pod", "container")
_WHAT = ("kind", "action")

DRIVER = Metric("mpsd_driver_info", Type.INFO, ("version",), "NVIDIA's driver of this node.")
LOOKED_AT = Metric("mpsd_look_timestamp_seconds", _G, (), "When the node was last looked at.", MetricUnit.SECONDS)
UNKNOWN = Metric("mpsd_unknown_things", _G, (), "What the last look could not see; `mpsd status` says what and why.")
LIMITS_WRONG = Metric(
    "mpsd_limits_wrong",
    _G,
    (),
    "1 while the limits files cannot be used and older ones are in force.",
    tellers=tuple(Teller),
)
WAITING = Metric("mpsd_requests_waiting", _G, (), "Programs and containers that wait for a share.")

DOMAIN_STATE = Metric("mpsd_domain_state", _G, ("domain", "state"), "1 for the state that the domain is in, else 0.")
DOMAIN_SINCE = Metric(
    "mpsd_domain_state_timestamp_seconds", _G, _DOMAIN, "When the domain came into its state.", MetricUnit.SECONDS
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
    MetricUnit.SECONDS,
)
DOMAIN_CANARY = Metric(
    "mpsd_domain_canary_passed",
    _G,
    _DOMAIN,
    "1 where the driver was seen to hold limits, 0 where it was seen not to; no series where nobody looked.",
)
DOMAIN_COMMAND_SECONDS = Metric(
    "mpsd_domain_command_seconds",
    _H,
    _DOMAIN,
    "How long the domain's daemon took to answer when mpsd control asked how it is, every 5 s while it serves: from the"
    " start of nvidia-cuda-mps-control to its end; since mpsd control began.",
    MetricUnit.SECONDS,
)
DOMAIN_UNANSWERED = Metric(
    "mpsd_domain_commands_unanswered_total",
    _C,
    _DOMAIN,
    "Such questions that had no proper answer in time; since mpsd control began.",
)

GPU = Metric(
    "mpsd_gpu_info", Type.INFO, (*_GPU, "domain", "model"), "The GPU's model, and its domain, empty while it has none."
)
GPU_MEMORY = Metric("mpsd_gpu_memory_bytes", _G, _GPU, "Memory that CUDA can use.", MetricUnit.BYTES)
GPU_PROMISED = Metric("mpsd_gpu_promised_bytes", _G, _GPU, "Memory that may be granted in all.", MetricUnit.BYTES)
GPU_GRANTED = Metric("mpsd_gpu_granted_bytes", _G, _GPU, "Memory that is granted.", MetricUnit.BYTES)
GPU_USED = Metric("mpsd_gpu_used_bytes", _G, _GPU, "Memory that processes use, granted or not.", MetricUnit.BYTES)
GPU_PROMISED_THREADS = Metric(
    "mpsd_gpu_promised_threads_ratio", _G, _GPU, "Share of the threads that may be reserved in all.", MetricUnit.RATIO
)
GPU_GRANTED_THREADS = Metric(
    "mpsd_gpu_granted_threads_ratio", _G, _GPU, "Share of the threads that is reserved.", MetricUnit.RATIO
)
GPU_PROMISED_CLIENTS = Metric("mpsd_gpu_promised_clients", _G, _GPU, "Clients that MPS lets in.")
GPU_CLIENTS = Metric("mpsd_gpu_clients", _G, _GPU, "Processes on the GPU.")
GPU_OUTSIDE = Metric("mpsd_gpu_clients_outside_mps", _G, _GPU, "Those of them that run beside MPS.")
GPU_STRANGERS = Metric("mpsd_gpu_clients_without_grant", _G, _GPU, "Those of them that belong to no grant.")

GRANTS = Metric("mpsd_grants", _G, (*_GPU, "holder"), "Grants that have a share of the GPU.")
SHARE_LIMIT = Metric("mpsd_grant_limit_bytes", _G, _SHARE, "Memory that the holder may use.", MetricUnit.BYTES)
SHARE_USED = Metric("mpsd_grant_used_bytes", _G, _SHARE, "Memory that the holder's processes use.", MetricUnit.BYTES)
SHARE_OVER = Metric(
    "mpsd_grant_over_limit", _G, _SHARE, "1 where that is more than it may, the policy's tolerance included, else 0."
)
SHARE_CLIENTS = Metric("mpsd_grant_clients", _G, _SHARE, "The holder's processes on the GPU.")
SHARE_RESERVED = Metric(
    "mpsd_grant_reserved_threads_ratio",
    _G,
    _SHARE,
    "Share of the threads that is kept for the holder.",
    MetricUnit.RATIO,
)
SHARE_THREADS = Metric(
    "mpsd_grant_threads_ratio",
    _G,
    _SHARE,
    "Share of the threads that MPS holds each of its processes to, 1 for no limit; no series for programs.",
    MetricUnit.RATIO,
)

VIOLATIONS = Metric(
    "mpsd_violations_total", _C, _WHAT, "Processes that took more than they were given, since the agent began."
)
VIOLATIONS_ENDED = Metric("mpsd_violations_ended_total", _C, _WHAT, "Those of them that are known to have been ended.")
JUDGING = Metric("mpsd_watchdog_judging", _G, (), "0 while nobody is judged, for it is not known who holds what.")
LOOKS = Metric("mpsd_watchdog_looks_total", _C, (), "Looks at the processes on the GPUs.")
LATE_LOOKS = Metric("mpsd_watchdog_late_looks_total", _C, (), "Those that came more than 0.25 s after the one before.")
LONGEST_PAUSE = Metric(
    "mpsd_watchdog_longest_pause_seconds", _G, (), "The longest time between two looks so far.", MetricUnit.SECONDS
)
NVML_SECONDS = Metric(
    "mpsd_nvml_cpu_seconds_total", _C, (), "Processor time that was spent in NVML.", MetricUnit.SECONDS
)

PLUGIN_CALLS = Metric(
    "mpsd_plugin_calls_total",
    _C,
    ("call", "outcome"),
    "Calls of kubelet to the device plugin, by what came of them, since the agent began; no series without a kubelet.",
)
PLUGIN_SECONDS = Metric(
    "mpsd_plugin_call_seconds", _H, ("call",), "How long these calls took, whatever came of them.", MetricUnit.SECONDS
)
PLUGIN_HELD_BACK = Metric(
    "mpsd_plugin_containers_held_back",
    _G,
    (),
    "Containers that PreStartContainer did not let start when kubelet last asked, at most 6 minutes ago.",
)

CERTIFICATE_EXPIRY = Metric(
    "mpsd_certificate_expiry_timestamp_seconds",
    _G,
    ("certificate",),
    "When each certificate in use ends.",
    MetricUnit.SECONDS,
    (Teller.WEBHOOK, Teller.SCHEDULER),
)

ADMISSION_REVIEWS = Metric(
    "mpsd_admission_reviews_total", _C, ("webhook", "verdict"), "Reviews answered.", tellers=_WEBHOOK
)
ADMISSION_FINDINGS = Metric(
    "mpsd_admission_findings_total",
    _C,
    ("rule", "mode"),
    "Broken rules found, by what was done.",
    tellers=_WEBHOOK,
)
ADMISSION_REFUSED = Metric(
    "mpsd_admission_requests_refused_total",
    _C,
    ("webhook", "status"),
    "Requests that were no review.",
    tellers=_WEBHOOK,
)
ADMISSION_SECONDS = Metric(
    "mpsd_admission_review_seconds",
    _H,
    ("webhook",),
    "From the first line of a request to its answer.",
    MetricUnit.SECONDS,
    _WEBHOOK,
)
ADMISSION_LOOKUPS = Metric(
    "mpsd_admission_lookups_total", _C, ("what", "outcome"), "Questions to the Kubernetes API.", tellers=_WEBHOOK
)
ADMISSION_REGISTERED = Metric(
    "mpsd_admission_registered",
    _G,
    (),
    "1 while API servers are known to ask this webhook; nothing without an API server.",
    tellers=_WEBHOOK,
)

SCHEDULER_REQUESTS = Metric(
    "mpsd_scheduler_requests_total",
    _C,
    ("verb", "verdict"),
    "Requests of kube-scheduler, by what came of them.",
    tellers=_SCHEDULER,
)
SCHEDULER_SECONDS = Metric(
    "mpsd_scheduler_request_seconds",
    _H,
    ("verb",),
    "From the first line of a request to its answer.",
    MetricUnit.SECONDS,
    _SCHEDULER,
)
SCHEDULER_NODES = Metric("mpsd_scheduler_nodes", _G, (), "Nodes that have books.", tellers=_SCHEDULER)
SCHEDULER_GPUS = Metric("mpsd_scheduler_gpus", _G, (), "GPUs of these nodes.", tellers=_SCHEDULER)
SCHEDULER_OPEN = Metric("mpsd_scheduler_gpus_open", _G, (), "GPUs that take pods now.", tellers=_SCHEDULER)
SCHEDULER_PROMISES = Metric(
    "mpsd_scheduler_promises",
    _G,
    (),
    "Pods with a promise of GPUs that are not known to be bound.",
    tellers=_SCHEDULER,
)
SCHEDULER_USABLE = Metric(
    "mpsd_scheduler_books_usable_seconds",
    _G,
    (),
    "How long the books may have been asked without a break; 0 while they may not.",
    MetricUnit.SECONDS,
    _SCHEDULER,
)

METRICS = tuple(one for one in globals().values() if isinstance(one, Metric))  # all of the above, in this order


def told_by(teller: Teller) -> tuple[Metric, ...]:
    return tuple(one for one in METRICS if teller in one.tellers)


# How long something took, many times: a histogram as Prometheus reads it, in plain values.
#
# Each time is in one slot alone; whoever tells them adds the slots up.

# One command's process takes some milliseconds, and a daemon that does not answer is given up after graces.command_s.
COMMAND_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
# kubelet gives PreStartContainer 30 s, and mpsd answers within 25.
CALL_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0)


@dataclass(frozen=True, slots=True)
class Durations:
    """counts: of those that took at most so long as the bound of the same place, and longer than the one before; the
    last: of those that took longer than any bound.
    """

    counts: tuple[int, ...]
    sum_s: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def with_one(self, seconds: float, bounds_s: Sequence[float]) -> "Durations":
        slot = bisect_left(bounds_s, seconds)
        counts = (*self.counts[:slot], self.counts[slot] + 1, *self.counts[slot + 1 :])
        return replace(self, counts=counts, sum_s=self.sum_s + seconds)

    def up_to(self, bounds_s: Sequence[float]) -> Iterator[tuple[float, int]]:
        """Each bound, infinity last, with how many took no longer; none where they were counted by other bounds."""
        if len(self.counts) != len(bounds_s) + 1:
            return
        so_far = 0
        for bound, count in zip((*bounds_s, float("inf")), self.counts, strict=True):
            so_far += count
            yield bound, so_far


def no_durations(bounds_s: Sequence[float]) -> Durations:
    return Durations((0,) * (len(bounds_s) + 1))


@dataclass(frozen=True, slots=True)
class CommandTimes:
    """What `mpsd control` keeps in commands.json about one domain: its questions to the daemon, since it began.

    boot_id: of the boot that it is about. unanswered: those without a proper answer in time.
    """

    boot_id: str
    answered: Durations = field(default_factory=lambda: no_durations(COMMAND_BOUNDS_S))
    unanswered: int = 0
