"""Alerts about agents, and what they see on their nodes.

One rule: nothing is said of what the watchdog ends in time, for that is its work.
"""

from mpsd.core import metrics_names as names
from mpsd.core.alert import GPU, NODE, POD, SHARE, Alert, Severity
from mpsd.core.durations import HOUR_S, MINUTE_S
from mpsd.core.metric import Holder, Teller
from mpsd.core.plugin_calls import Outcome
from mpsd.core.promql import INSTANCE, JOB, is_up, over_window, series

_BESIDE_MPS = series(names.GPU_OUTSIDE)
_OF_PODS = {"holder": Holder.POD}
_IN_VAIN = (Outcome.REFUSED, Outcome.LATE, Outcome.FAILED)

NODES = (
    Alert(
        "MPSDAgentSilent",
        Severity.CRITICAL,
        f"({over_window('changes', names.LOOKED_AT)} or on ({JOB}, {INSTANCE}) {is_up(Teller.AGENT)} * 0)",
        "== 0",
        2 * MINUTE_S,
        f"The agent of {NODE} does not look",
        f"The agent of {NODE} cannot be scraped, or has not looked at its GPUs for two minutes. Programs that run go"
        " on; nobody starts, and nobody who takes too much is ended.",
        "It looks every two seconds; a rollout takes it away for less than a minute. Two minutes have two scrapes in"
        " them also where one comes each minute, which is what Prometheus does unless it is told.",
        window_s=2 * MINUTE_S,
    ),
    Alert(
        "MPSDThingsUnknown",
        Severity.WARNING,
        series(names.UNKNOWN),
        "> 0",
        10 * MINUTE_S,
        f"The agent of {NODE} cannot see everything",
        f"{{{{ $value }}}} things on {NODE} could not be seen for ten minutes, such as a GPU that does not answer or"
        " what kubelet has given. What is not known is not granted, and not judged.",
        "A restart of kubelet or of the driver is over in ten minutes.",
    ),
    Alert(
        "MPSDWatchdogIdle",
        Severity.WARNING,
        series(names.JUDGING),
        "== 0",
        5 * MINUTE_S,
        f"Nobody is judged on {NODE}",
        f"The watchdog of {NODE} ends nobody, for it is not known who was given what: only MPS's own limits hold"
        " there.",
        "After a start it is so until kubelet has answered once, which takes seconds.",
    ),
    Alert(
        "MPSDWatchdogLate",
        Severity.WARNING,
        f"{over_window('rate', names.LATE_LOOKS)} / {over_window('rate', names.LOOKS)}",
        "> 0.1",
        10 * MINUTE_S,
        f"The watchdog of {NODE} looks too late",
        f"{SHARE} of the watchdog's looks on {NODE} come more than a quarter of a second after the one before: who"
        " takes too much has it for longer than promised.",
        "One of ten is where the half second that is promised for an escape no longer holds most of the time; a busy"
        " minute is not meant.",
        window_s=10 * MINUTE_S,
    ),
    Alert(
        "MPSDLimitsWrong",
        Severity.WARNING,
        series(names.LIMITS_WRONG),
        "== 1",
        5 * MINUTE_S,
        f"{NODE} cannot use its limits files",
        "policy.yaml or gpus.yaml is wrong as {{ $labels.job }} on {{ $labels.instance }} reads it. The last good ones"
        " are in force, and a restart will fail.",
        "Kubelet needs up to two minutes to bring a changed ConfigMap, both files in one step.",
    ),
)

PODS = (
    Alert(
        "MPSDOutsideMPS",
        Severity.WARNING,
        _BESIDE_MPS,
        "> 0",
        2 * MINUTE_S,
        f"Somebody runs beside MPS on {GPU}",
        f"{{{{ $value }}}} processes on {GPU} are no clients of MPS: no limit holds for them, and the books do not"
        " have them.",
        "A pod's process is ended within a second as shipped; who is there after two minutes is the host's, or the"
        " policy lets him.",
    ),
    Alert(
        "MPSDWithoutGrant",
        Severity.WARNING,
        f"({series(names.GPU_STRANGERS)} unless {_BESIDE_MPS} > 0)",
        "> 0",
        2 * MINUTE_S,
        f"Somebody without a grant is on {GPU}",
        f"{{{{ $value }}}} clients of MPS on {GPU} were given nothing there: what they use is missing to those who"
        " were.",
        "As with those outside MPS, whose alert this one leaves to speak where there are some.",
    ),
    Alert(
        "MPSDViolations",
        Severity.WARNING,
        f"sum without (action) ({over_window('increase', names.VIOLATIONS)})",
        "> 5",
        0,
        f"Programs on {NODE} keep taking more than they were given",
        f"{{{{ $value | humanize }}}} times within an hour a process on {NODE} took more than it was given"
        " ({{ $labels.kind }}).",
        "A pod that is ended for it starts again, at most every five minutes: twelve an hour. Less than six is somebody"
        " who learns how much he needs.",
        window_s=HOUR_S,
    ),
    Alert(
        "MPSDPodOverLimit",
        Severity.WARNING,
        series(names.SHARE_OVER, **_OF_PODS),
        "== 1",
        MINUTE_S,
        f"Pod {POD} uses more than its limit",
        f"Pod {POD} has used more of {GPU} than it may for a minute, and nobody ends it.",
        "The watchdog needs half a second. What lasts is a policy that only warns, or a process that cannot be ended.",
    ),
    Alert(
        "MPSDPodNearLimit",
        Severity.INFO,
        f"{series(names.SHARE_USED, **_OF_PODS)} / {series(names.SHARE_LIMIT, **_OF_PODS)}",
        "> 0.95",
        30 * MINUTE_S,
        f"Pod {POD} is near its limit",
        f"Pod {POD} has used {SHARE} of what it may on {GPU} for half an hour: it may be out of memory at its next"
        " step.",
        "Frameworks that take all they can get are always there, which is why nobody is sent a message.",
    ),
    Alert(
        "MPSDRequestsWait",
        Severity.INFO,
        series(names.WAITING),
        "> 0",
        HOUR_S,
        f"Programs wait for a GPU on {NODE}",
        f"{{{{ $value }}}} programs or containers have been waiting for a share of {NODE}, one or another of them for"
        " an hour.",
        "A queue is what `mpsd run --wait` is for; one that is never empty for an hour says that the machine is full.",
    ),
    Alert(
        "MPSDContainersHeldBack",
        Severity.WARNING,
        series(names.PLUGIN_HELD_BACK),
        "> 0",
        10 * MINUTE_S,
        f"Containers on {NODE} are not let start",
        f"{{{{ $value }}}} containers on {NODE} have waited for ten minutes in CreateContainerConfigError: their domain"
        " does not serve, or has no room for their percentage.",
        "A daemon's restart or a fault is over in two minutes, and kubelet asks again after five at most.",
    ),
    Alert(
        "MPSDPluginRefuses",
        Severity.WARNING,
        f"sum by ({INSTANCE}, call) ({over_window('increase', names.PLUGIN_CALLS, outcome=_IN_VAIN)})",
        "> 10",
        0,
        f"Pods fail at their start on {NODE}",
        f"{{{{ $value | humanize }}}} of kubelet's calls of {{{{ $labels.call }}}} on {NODE} came to nothing within ten"
        " minutes. At Allocate each is a pod that fails with UnexpectedAdmissionError.",
        "One is a pod that nobody could serve; ten in ten minutes are a Job that burns its retries, or a fault of"
        " mpsd's own.",
        window_s=10 * MINUTE_S,
    ),
)
