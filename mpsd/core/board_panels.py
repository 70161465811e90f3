"""What the Grafana board shows, row by row.

One rule: a panel answers one question, which its title is; every query is made of the table of metrics.
"""

from collections.abc import Mapping, Sequence

from mpsd.core import metrics_names as names
from mpsd.core.board_kinds import Form, Panel, Query, Row, Show, bars, lines, number
from mpsd.core.domain_states import State
from mpsd.core.metric import Holder, Metric
from mpsd.core.promql import INSTANCE, over_window, quantile, series

NODE, GPU = "node", "gpu"  # the board's variables
_ON_NODE = {INSTANCE: f"${NODE}"}
_ON_GPU = {**_ON_NODE, "gpu": f"${GPU}"}
_OF_PODS = {**_ON_GPU, "holder": Holder.POD}
_A_GPU = "{{instance}} {{gpu}}"
_A_POD = "{{namespace}}/{{pod}} {{gpu}}"
_A_DOMAIN = "{{instance}} {{domain}}"


def _of_gpus(metric: Metric) -> str:
    return series(metric, **_ON_GPU)


def _of_pods(metric: Metric) -> str:
    return series(metric, **_OF_PODS)


def _increase(metric: Metric, *by: str, **wanted: str) -> str:
    return f"sum by ({', '.join(by)}) ({over_window('increase', metric, **wanted)})"


def _rate(metric: Metric, *by: str, **wanted: str) -> str:
    return f"sum by ({', '.join(by)}) ({over_window('rate', metric, **wanted)})"


def _latencies(metric: Metric, *by: str, **wanted: str) -> Mapping[str, str]:
    """The median and the slowest of a hundred, by their legends."""
    legend = " ".join(f"{{{{{label}}}}}" for label in by)
    return {f"{share:.0%} within, {legend}": quantile(share, metric, by, **wanted) for share in (0.5, 0.99)}


def _state_numbers() -> str:
    """A number for the state of each domain: its place in the table of states."""
    each = (
        f"{series(names.DOMAIN_STATE, **_ON_NODE, state=state.value)} * {place}" for place, state in enumerate(State)
    )
    return f"sum by ({INSTANCE}, domain) ({' or '.join(each)})"


_AT_A_GLANCE = Row(
    "At a glance",
    (
        number("Domains that serve", Show.COUNT, f"sum({series(names.DOMAIN_STATE, **_ON_NODE, state=State.READY)})"),
        number(
            "Domains that do not",
            Show.COUNT,
            f"sum({series(names.DOMAIN_STATE, **_ON_NODE)}) - sum("
            f"{series(names.DOMAIN_STATE, **_ON_NODE, state=State.READY)})",
        ),
        number(
            "Memory granted",
            Show.SHARE,
            f"sum({_of_gpus(names.GPU_GRANTED)}) / sum({_of_gpus(names.GPU_PROMISED)})",
            "Of what may be granted.",
        ),
        number(
            "Memory used",
            Show.SHARE,
            f"sum({_of_gpus(names.GPU_USED)}) / sum({_of_gpus(names.GPU_MEMORY)})",
            "Of what there is, granted or not.",
        ),
        number("Processes", Show.COUNT, f"sum({_of_gpus(names.GPU_CLIENTS)})"),
        number("Things unknown", Show.COUNT, f"sum({series(names.UNKNOWN, **_ON_NODE)})", "`mpsd status` says what."),
    ),
)

_GPUS = Row(
    "GPUs",
    (
        lines(
            "Memory: promised, granted, used",
            Show.BYTES,
            {
                f"{_A_GPU} may be granted": _of_gpus(names.GPU_PROMISED),
                f"{_A_GPU} granted": _of_gpus(names.GPU_GRANTED),
                f"{_A_GPU} used": _of_gpus(names.GPU_USED),
            },
        ),
        lines(
            "Threads reserved",
            Show.SHARE,
            {_A_GPU: f"{_of_gpus(names.GPU_GRANTED_THREADS)} / {_of_gpus(names.GPU_PROMISED_THREADS)}"},
            "Of what may be reserved in all.",
        ),
        lines(
            "Processes of the clients that MPS lets in",
            Show.SHARE,
            {_A_GPU: f"{_of_gpus(names.GPU_CLIENTS)} / {_of_gpus(names.GPU_PROMISED_CLIENTS)}"},
            "At 100 % the next one gets CUDA error 808.",
        ),
        lines("Grants", Show.COUNT, {f"{_A_GPU} {{{{holder}}}}s": _of_gpus(names.GRANTS)}),
    ),
)

_PODS = Row(
    "Pods",
    (
        lines(
            "Memory used of the limit",
            Show.SHARE,
            {_A_POD: f"{_of_pods(names.SHARE_USED)} / {_of_pods(names.SHARE_LIMIT)}"},
        ),
        lines(
            "Memory",
            Show.BYTES,
            {f"{_A_POD} used": _of_pods(names.SHARE_USED), f"{_A_POD} limit": _of_pods(names.SHARE_LIMIT)},
        ),
        lines(
            "Threads",
            Show.SHARE,
            {
                f"{_A_POD} at most": _of_pods(names.SHARE_THREADS),
                f"{_A_POD} reserved": _of_pods(names.SHARE_RESERVED),
            },
            "What MPS holds each of the pod's processes to, and what is kept for it.",
        ),
        lines("Processes", Show.COUNT, {_A_POD: _of_pods(names.SHARE_CLIENTS)}),
        lines("Requests that wait", Show.COUNT, {"{{instance}}": series(names.WAITING, **_ON_NODE)}),
    ),
)

_DOMAINS = Row(
    "Domains",
    (
        Panel(
            "State",
            Show.COUNT,
            (Query(_state_numbers(), _A_DOMAIN),),
            Form.STATES,
            values=tuple(state.value for state in State),
        ),
        bars(
            "Faults",
            {_A_DOMAIN: _increase(names.DOMAIN_FAULTS, INSTANCE, "domain", **_ON_NODE)},
            "Each ends the work of everyone on the GPU.",
        ),
        bars("Restarts of daemons", {_A_DOMAIN: _increase(names.DOMAIN_RESTARTS, INSTANCE, "domain", **_ON_NODE)}),
        lines(
            "How long daemons take to answer",
            Show.SECONDS,
            _latencies(names.DOMAIN_COMMAND_SECONDS, INSTANCE, "domain", **_ON_NODE),
        ),
    ),
)

_VIOLATIONS = Row(
    "Violations",
    (
        bars(
            "Processes that took more than they were given",
            {"{{kind}}: {{action}}": _increase(names.VIOLATIONS, "kind", "action", **_ON_NODE)},
        ),
        bars("Of them ended", {"{{kind}}": _increase(names.VIOLATIONS_ENDED, "kind", **_ON_NODE)}),
        lines(
            "Processes outside",
            Show.COUNT,
            {
                f"{_A_GPU} beside MPS": _of_gpus(names.GPU_OUTSIDE),
                f"{_A_GPU} without a grant": _of_gpus(names.GPU_STRANGERS),
            },
        ),
        lines(
            "Late looks of the watchdog",
            Show.SHARE,
            {
                "{{instance}}": f"{over_window('rate', names.LATE_LOOKS, **_ON_NODE)}"
                f" / {over_window('rate', names.LOOKS, **_ON_NODE)}"
            },
            "More than a quarter of a second after the one before.",
        ),
    ),
)

_ADMISSION = Row(
    "Admission",
    (
        lines("Reviews", Show.RATE, {"{{webhook}}: {{verdict}}": _rate(names.ADMISSION_REVIEWS, "webhook", "verdict")}),
        lines("How long a review takes", Show.SECONDS, _latencies(names.ADMISSION_SECONDS, "webhook")),
        bars("Broken rules", {"{{rule}}: {{mode}}": _increase(names.ADMISSION_FINDINGS, "rule", "mode")}),
        lines(
            "Questions to the API server",
            Show.RATE,
            {"{{what}}: {{outcome}}": _rate(names.ADMISSION_LOOKUPS, "what", "outcome")},
        ),
        lines(
            "Certificates end in",
            Show.SECONDS,
            {"{{job}} {{certificate}}": f"min by (job, certificate) ({series(names.CERTIFICATE_EXPIRY)}) - time()"},
        ),
    ),
)

_SCHEDULER = Row(
    "Scheduler",
    (
        lines("Requests", Show.RATE, {"{{verb}}: {{verdict}}": _rate(names.SCHEDULER_REQUESTS, "verb", "verdict")}),
        lines("How long a request takes", Show.SECONDS, _latencies(names.SCHEDULER_SECONDS, "verb")),
        lines(
            "GPUs in the books",
            Show.COUNT,
            {
                "{{instance}} all": series(names.SCHEDULER_GPUS),
                "{{instance}} take pods": series(names.SCHEDULER_OPEN),
                "{{instance}} promises": series(names.SCHEDULER_PROMISES),
            },
        ),
        lines("Books can be used since", Show.SECONDS, {"{{instance}}": series(names.SCHEDULER_USABLE)}),
    ),
)

_KUBELET = Row(
    "Device plugin",
    (
        lines(
            "Calls of kubelet",
            Show.RATE,
            {"{{call}}: {{outcome}}": _rate(names.PLUGIN_CALLS, "call", "outcome", **_ON_NODE)},
        ),
        lines("How long a call takes", Show.SECONDS, _latencies(names.PLUGIN_SECONDS, "call", **_ON_NODE)),
        lines("Containers held back", Show.COUNT, {"{{instance}}": series(names.PLUGIN_HELD_BACK, **_ON_NODE)}),
    ),
)

ROWS: Sequence[Row] = (
    _AT_A_GLANCE,
    _GPUS,
    _PODS,
    _DOMAINS,
    _VIOLATIONS,
    _ADMISSION,
    _SCHEDULER,
    _KUBELET,
)
PANELS = tuple(panel for row in ROWS for panel in row.panels)
