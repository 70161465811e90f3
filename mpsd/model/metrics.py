"""Every metric of mpsd, and which of its processes export it. Names and labels are an interface,
and docs/metrics.md is printed from them; a label's values come from closed sets, or are the names
of GPUs, domains, and pods and containers that live."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate, product

# Source of types and names: https://prometheus.io/docs/specs/om/open_metrics_spec/


class Type(StrEnum):
    """As OpenMetrics calls them."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


class MetricUnit(StrEnum):
    """Names end in it. NONE: things."""

    BYTES = "bytes"
    SECONDS = "seconds"
    RATIO = "ratio"
    NONE = ""


class HolderKind(StrEnum):
    """Values of the label `holder`: who was given a share."""

    POD = "pod"
    CONTAINER = "container"
    PROGRAM = "program"


class Exporter(StrEnum):
    """AGENT: `mpsd up` too."""

    AGENT = "agent"
    WEBHOOK = "webhook"
    SCHEDULER = "scheduler"


@dataclass(frozen=True, slots=True)
class Metric:
    """name: as it is asked for; a histogram by the names in `series`."""

    name: str
    help: str
    labels: tuple[str, ...]
    type: Type
    unit: MetricUnit
    exporters: tuple[Exporter, ...]

    @property
    def family(self) -> str:
        """The name without what its type puts behind it."""
        return self.name.removesuffix("_total").removesuffix("_info")

    @property
    def series(self) -> tuple[str, ...]:
        if self.type is not Type.HISTOGRAM:
            return (self.name,)
        return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")


_TYPES = {"total": Type.COUNTER, "info": Type.INFO}
_EXPORTERS = {"admission": Exporter.WEBHOOK, "scheduler": Exporter.SCHEDULER}


def _metric(
    name: str, about: str, labels: tuple[str, ...] = (), *by: Exporter, histogram: bool = False
) -> Metric:
    """Type and unit follow from the end of the name, and who exports it from its second word."""
    kind = _TYPES.get(name.rpartition("_")[2], Type.GAUGE)
    if histogram:
        kind = Type.HISTOGRAM
    word = name.removesuffix("_total").rpartition("_")[2]
    unit = {str(one): one for one in MetricUnit}.get(word, MetricUnit.NONE)
    by = by or (_EXPORTERS.get(name.split("_")[1], Exporter.AGENT),)
    return Metric(name, about, labels, kind, unit, by)


_DOMAIN = ("domain",)
_GPU = ("gpu", "uuid")
_SHARE = ("gpu", "uuid", "holder", "namespace", "pod", "container")

DRIVER = _metric("mpsd_driver_info", "NVIDIA's driver of this node.", ("version",))
LOOKED_AT = _metric("mpsd_look_timestamp_seconds", "When the node was last looked at.")
UNKNOWN = _metric(
    "mpsd_unknown_things", "What the last look could not see; `mpsd status` shows what and why."
)
LIMITS_WRONG = _metric(
    "mpsd_limits_wrong",
    "1 while the limits files cannot be used and older ones are in force.",
    (),
    *Exporter,
)
DRIVER_UPGRADE = _metric(
    "mpsd_driver_upgrade",
    "1 while NVIDIA's GPU operator upgrades this node's driver, with how far it is; else 0, without"
    " a state.",
    ("state",),
)
WAITING = _metric("mpsd_requests_waiting", "Programs and containers that wait for a share.")

DOMAIN_STATE = _metric(
    "mpsd_domain_state", "1 for the state that the domain is in, else 0.", ("domain", "state")
)
DOMAIN_SINCE = _metric(
    "mpsd_domain_state_timestamp_seconds", "When the domain came into its state.", _DOMAIN
)
DOMAIN_RESTARTS = _metric(
    "mpsd_domain_restarts_total",
    "Restarts of the domain's daemon since mpsd first ran in this boot.",
    _DOMAIN,
)
DOMAIN_SERVERS = _metric("mpsd_domain_servers", "MPS servers of the domain's daemon.", _DOMAIN)
DOMAIN_UNWATCHED = _metric(
    "mpsd_domain_unwatched",
    "1 while no container may start there because nobody watches its processes.",
    _DOMAIN,
)
DOMAIN_FAULTS = _metric(
    "mpsd_domain_faults_total", "Faults of the domain's GPUs in this boot.", _DOMAIN
)
DOMAIN_FAULT_AT = _metric(
    "mpsd_domain_last_fault_timestamp_seconds",
    "When the last fault was; no series where there was none.",
    _DOMAIN,
)
DOMAIN_CANARY = _metric(
    "mpsd_domain_canary_passed",
    "1 where the driver was seen to hold limits, 0 where not; no series where it was not tested.",
    _DOMAIN,
)
DOMAIN_COMMAND_SECONDS = _metric(
    "mpsd_domain_command_seconds",
    "How long the domain's daemon took to answer mpsd control, which asks every 20 s while it"
    " serves.",
    _DOMAIN,
    histogram=True,
)
DOMAIN_UNANSWERED = _metric(
    "mpsd_domain_commands_unanswered_total", "Such questions without an answer in time.", _DOMAIN
)

GPU = _metric(
    "mpsd_gpu_info",
    "The GPU's model, its domain, empty while it has none, and of a MIG instance its profile.",
    (*_GPU, "domain", "model", "mig_profile"),
)
GPU_MEMORY = _metric("mpsd_gpu_memory_bytes", "Memory that CUDA can use.", _GPU)
GPU_PROMISED = _metric("mpsd_gpu_promised_bytes", "Memory that may be granted in all.", _GPU)
GPU_GRANTED = _metric("mpsd_gpu_granted_bytes", "Memory that is granted.", _GPU)
GPU_USED = _metric("mpsd_gpu_used_bytes", "Memory that processes use, granted or not.", _GPU)
GPU_UNEXPLAINED = _metric(
    "mpsd_gpu_unexplained_bytes",
    "Memory in use of no process that is known; 0 where it is less than 1 GiB.",
    _GPU,
)
GPU_SICK = _metric(
    "mpsd_gpu_sick",
    "1 while the GPU takes no new program because of its health, with the kind of cause; else 0,"
    " without one.",
    (*_GPU, "cause"),
)
XIDS = _metric(
    "mpsd_xid_errors_total",
    "Errors of the driver by their number, a program's too, in this boot.",
    (*_GPU, "xid"),
)
GPU_PROMISED_THREADS = _metric(
    "mpsd_gpu_promised_threads_ratio", "Share of the threads that may be reserved in all.", _GPU
)
GPU_GRANTED_THREADS = _metric(
    "mpsd_gpu_granted_threads_ratio", "Share of the threads that is reserved.", _GPU
)
GPU_PROMISED_CLIENTS = _metric("mpsd_gpu_promised_clients", "Clients that MPS accepts.", _GPU)
GPU_CLIENTS = _metric("mpsd_gpu_clients", "Processes on the GPU.", _GPU)
GPU_OUTSIDE = _metric("mpsd_gpu_clients_outside_mps", "Those of them that run beside MPS.", _GPU)
GPU_FOREIGN = _metric(
    "mpsd_gpu_clients_without_grant", "Those of them that belong to no grant.", _GPU
)

GRANTS = _metric("mpsd_grants", "Grants that have a share of the GPU.", (*_GPU, "holder"))
SHARE_LIMIT = _metric("mpsd_grant_limit_bytes", "Memory that the holder may use.", _SHARE)
SHARE_USED = _metric("mpsd_grant_used_bytes", "Memory that the holder's processes use.", _SHARE)
SHARE_OVER = _metric(
    "mpsd_grant_over_limit",
    "1 where that is more than it may, the policy's tolerance included, else 0.",
    _SHARE,
)
SHARE_CLIENTS = _metric("mpsd_grant_clients", "The holder's processes on the GPU.", _SHARE)
SHARE_RESERVED = _metric(
    "mpsd_grant_reserved_threads_ratio", "Share of the threads that is kept for the holder.", _SHARE
)
SHARE_THREADS = _metric(
    "mpsd_grant_threads_ratio",
    "Share of the threads that MPS holds each of its processes to, 1 for no limit; no series for"
    " programs.",
    _SHARE,
)
SHARE_BELOW_NORMAL = _metric(
    "mpsd_grant_below_normal",
    "1 where its work gets what others leave of the GPU, else 0; no series for programs.",
    _SHARE,
)
SHARE_CAPPED = _metric(
    "mpsd_grant_memory_capped",
    "1 where memory limits of cgroups hold the holder's processes, 0 where MPS's limit and the"
    " watchdog do.",
    _SHARE,
)
GRANT_CLAIM = _metric(
    "mpsd_grant_claim_info",
    "The resource claim of each pod that has one; the other series of its grant name the first of"
    " its pods.",
    ("namespace", "pod", "claim"),
)

VIOLATIONS = _metric(
    "mpsd_violations_total",
    "Processes that took more than they were given, since the agent began.",
    ("kind", "action"),
)
VIOLATIONS_ENDED = _metric(
    "mpsd_violations_ended_total",
    "Those of them that are known to have been ended.",
    ("kind", "action"),
)
JUDGING = _metric(
    "mpsd_watchdog_judging", "0 while no process is judged, because the grants are not all known."
)
LOOKS = _metric("mpsd_watchdog_looks_total", "Looks at the processes on the GPUs.")
LATE_LOOKS = _metric(
    "mpsd_watchdog_late_looks_total", "Those that came more than 0.25 s after the one before."
)
LONGEST_PAUSE = _metric(
    "mpsd_watchdog_longest_pause_seconds", "The longest time between two looks so far."
)
NVML_SECONDS = _metric("mpsd_nvml_cpu_seconds_total", "Processor time that was spent in NVML.")

PLUGIN_CALLS = _metric(
    "mpsd_plugin_calls_total",
    "Calls of kubelet to the device plugin; no series without a kubelet.",
    ("call", "outcome"),
)
PLUGIN_SECONDS = _metric(
    "mpsd_plugin_call_seconds",
    "How long these calls took, whatever came of them.",
    ("call",),
    histogram=True,
)
PLUGIN_HELD_BACK = _metric(
    "mpsd_plugin_containers_held_back", "Containers that PreStartContainer does not let start."
)

LOG_LINES_DROPPED = _metric(
    "mpsd_log_lines_dropped_total",
    "Lines of the log of this process, or of mpsd control, that nobody read in time or that could"
    " not be written.",
    ("process",),
    *Exporter,
)

CERTIFICATE_EXPIRY = _metric(
    "mpsd_certificate_expiry_timestamp_seconds",
    "When each certificate in use ends.",
    ("certificate",),
    Exporter.WEBHOOK,
    Exporter.SCHEDULER,
)

ADMISSION_REVIEWS = _metric(
    "mpsd_admission_reviews_total", "Reviews answered.", ("webhook", "verdict")
)
ADMISSION_FINDINGS = _metric(
    "mpsd_admission_findings_total", "Broken rules found, by what was done.", ("rule", "mode")
)
ADMISSION_REFUSED = _metric(
    "mpsd_admission_requests_refused_total", "Requests that were no review.", ("webhook", "status")
)
ADMISSION_SECONDS = _metric(
    "mpsd_admission_review_seconds",
    "From the first line of a request to its answer.",
    ("webhook",),
    histogram=True,
)
ADMISSION_LOOKUPS = _metric(
    "mpsd_admission_lookups_total", "Questions to the Kubernetes API.", ("what", "outcome")
)
ADMISSION_REGISTERED = _metric(
    "mpsd_admission_registered",
    "1 while API servers are known to ask this webhook; nothing without an API server.",
)

SCHEDULER_REQUESTS = _metric(
    "mpsd_scheduler_requests_total",
    "Requests of kube-scheduler, by what came of them.",
    ("verb", "verdict"),
)
SCHEDULER_SECONDS = _metric(
    "mpsd_scheduler_request_seconds",
    "From the first line of a request to its answer.",
    ("verb",),
    histogram=True,
)
SCHEDULER_NODES = _metric("mpsd_scheduler_nodes", "Nodes with a ledger.")
SCHEDULER_GPUS = _metric("mpsd_scheduler_gpus", "GPUs of these nodes.")
SCHEDULER_OPEN = _metric("mpsd_scheduler_gpus_open", "GPUs that accept pods now.")
SCHEDULER_RESERVATIONS = _metric(
    "mpsd_scheduler_reservations", "Pods with reserved GPUs that are not known to be bound."
)
SCHEDULER_USABLE = _metric(
    "mpsd_scheduler_ledger_usable_seconds",
    "How long the ledgers have been usable without a break; 0 while they are not.",
)

# all of the above, in this order
METRICS = tuple(one for one in globals().values() if isinstance(one, Metric))


def exported_by(exporter: Exporter) -> tuple[Metric, ...]:
    return tuple(one for one in METRICS if exporter in one.exporters)


# One command's process takes some milliseconds, and a daemon that does not answer is given up after
# graces.command_s.
COMMAND_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
# kubelet gives PreStartContainer 30 s, and mpsd answers within 25.
CALL_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0)


@dataclass(frozen=True, slots=True)
class Durations:
    """How long something took, many times. counts: of those that took at most so long as the bound
    of the same place, and longer than the one before; the last: longer than any bound."""

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
        """Each bound, infinity last, with how many took no longer; none where they were counted by
        other bounds."""
        if len(self.counts) == len(bounds_s) + 1:
            yield from zip((*bounds_s, float("inf")), accumulate(self.counts), strict=True)


def no_durations(bounds_s: Sequence[float]) -> Durations:
    return Durations((0,) * (len(bounds_s) + 1))


_NO_COMMANDS = no_durations(COMMAND_BOUNDS_S)


@dataclass(frozen=True, slots=True)
class CommandTimes:
    """What `mpsd control` keeps in commands.json about one domain: its questions to the daemon,
    since it began. unanswered: those without a proper answer in time."""

    boot_id: str
    answered: Durations = _NO_COMMANDS
    unanswered: int = 0


@dataclass(frozen=True, slots=True)
class LogLoss:
    """What `mpsd control` keeps in the run directory of its own log, since it began."""

    boot_id: str
    dropped: int  # lines


# -- kubelet's calls to the device plugin, by their names in its API

HELD_BACK_S = 360.0  # kubelet tries a start that was refused again after 5 minutes at most


class Call(StrEnum):
    PREFER = "GetPreferredAllocation"
    ALLOCATE = "Allocate"
    PRE_START = "PreStartContainer"


class CallOutcome(StrEnum):
    """REFUSED: for good, for what was asked. HELD_BACK: for now; kubelet retries. LATE: no answer
    in time. FAILED: by a fault of mpsd's own; its log says which."""

    ANSWERED = "answered"
    REFUSED = "refused"
    HELD_BACK = "held-back"
    LATE = "late"
    FAILED = "failed"


class PluginCalls:
    """Since the agent started. now: a monotonic clock, in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.counts = dict.fromkeys(product(Call, CallOutcome), 0)
        self.times = dict.fromkeys(Call, no_durations(CALL_BOUNDS_S))
        # by the devices of the container, when it was refused
        self._held_back: dict[tuple[str, ...], float] = {}

    def note(self, call: Call, ids: Sequence[str], outcome: CallOutcome, took_s: float) -> None:
        self.counts[call, outcome] += 1
        self.times[call] = self.times[call].with_one(took_s, CALL_BOUNDS_S)
        if call is Call.PRE_START:
            container = tuple(sorted(ids))
            if outcome is CallOutcome.ANSWERED:
                self._held_back.pop(container, None)
            else:
                self._held_back[container] = self._now()

    @property
    def held_back(self) -> int:
        """Containers whose last start was refused and that kubelet still retries."""
        for container, at in tuple(self._held_back.items()):
            if at < self._now() - HELD_BACK_S:
                del self._held_back[container]
        return len(self._held_back)
