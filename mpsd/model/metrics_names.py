"""Every metric of mpsd: its name, type, labels, unit and meaning, and which of its processes tell it.

One rule: names and labels here are an interface, and docs/metrics.md is printed from them; a label's values come from
closed sets, or are the names of GPUs, domains, and pods and containers that live.
"""

from mpsd.model.metric import Holder as Holder  # whoever needs the table needs its words
from mpsd.model.metric import Metric as Metric
from mpsd.model.metric import Teller as Teller
from mpsd.model.metric import Type as Type
from mpsd.model.metric import Unit as Unit

_G, _C, _H = Type.GAUGE, Type.COUNTER, Type.HISTOGRAM
_WEBHOOK, _SCHEDULER = (Teller.WEBHOOK,), (Teller.SCHEDULER,)
_DOMAIN = ("domain",)
_GPU = ("gpu", "uuid")
_SHARE = ("gpu", "uuid", "holder", "namespace", "pod", "container")
_WHAT = ("kind", "action")

DRIVER = Metric("mpsd_driver_info", Type.INFO, ("version",), "NVIDIA's driver of this node.")
LOOKED_AT = Metric("mpsd_look_timestamp_seconds", _G, (), "When the node was last looked at.", Unit.SECONDS)
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
DOMAIN_COMMAND_SECONDS = Metric(
    "mpsd_domain_command_seconds",
    _H,
    _DOMAIN,
    "How long the domain's daemon took to answer when mpsd control asked how it is, every 5 s while it serves: from the"
    " start of nvidia-cuda-mps-control to its end; since mpsd control began.",
    Unit.SECONDS,
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

PLUGIN_CALLS = Metric(
    "mpsd_plugin_calls_total",
    _C,
    ("call", "outcome"),
    "Calls of kubelet to the device plugin, by what came of them, since the agent began; no series without a kubelet.",
)
PLUGIN_SECONDS = Metric(
    "mpsd_plugin_call_seconds", _H, ("call",), "How long these calls took, whatever came of them.", Unit.SECONDS
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
    Unit.SECONDS,
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
    Unit.SECONDS,
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
    Unit.SECONDS,
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
    Unit.SECONDS,
    _SCHEDULER,
)

METRICS = tuple(one for one in globals().values() if isinstance(one, Metric))  # all of the above, in this order


def told_by(teller: Teller) -> tuple[Metric, ...]:
    return tuple(one for one in METRICS if teller in one.tellers)
