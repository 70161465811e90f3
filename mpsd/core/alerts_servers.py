"""Alerts about the webhook and the scheduler.

One rule: one replica that is gone is no alert, for that is what the other is for.
"""

from mpsd.core import metrics_names as names
from mpsd.core.alert import SHARE, TIME, Alert, Severity
from mpsd.core.durations import DAY_S, HOUR_S, MINUTE_S
from mpsd.core.metric import Teller
from mpsd.core.promql import INSTANCE, JOB, WINDOW, is_up, over_window, quantile, series

_UP = is_up(Teller.WEBHOOK, Teller.SCHEDULER)

SERVERS = (
    Alert(
        "MPSDServerAbsent",
        Severity.CRITICAL,
        f"max by ({JOB}) ({_UP} or 0 * max_over_time({_UP}[{WINDOW}]))",
        "== 0",
        2 * MINUTE_S,
        "No {{ $labels.job }} can be scraped",
        "Not one replica of {{ $labels.job }} answers. Without the webhook no pod is admitted where its failurePolicy"
        " is Fail; without the scheduler no GPU pod is placed.",
        "Two replicas are never restarted at once; two minutes let a node's loss pass. One whose pods are gone is not"
        " scraped at all, so who was there within the last hour counts; so does one that was taken away on purpose.",
        window_s=HOUR_S,
    ),
    Alert(
        "MPSDWebhookNotRegistered",
        Severity.CRITICAL,
        series(names.ADMISSION_REGISTERED),
        "== 0",
        5 * MINUTE_S,
        "API servers do not ask {{ $labels.instance }}",
        "The webhook could not write itself into its configurations: pods are admitted unseen, or not at all.",
        "It tries every few seconds, and is done within a minute of its start.",
    ),
    Alert(
        "MPSDWebhookSlow",
        Severity.WARNING,
        quantile(0.99, names.ADMISSION_SECONDS, (INSTANCE, "webhook")),
        "> 1",
        10 * MINUTE_S,
        "The webhook {{ $labels.instance }} answers slowly",
        f"One of a hundred reviews takes {TIME} or longer. API servers wait five seconds, then refuse the pod.",
        "It answers within milliseconds, and in a second where the API server is slow to be asked. One second leaves"
        " four of the timeout's five.",
        window_s=10 * MINUTE_S,
    ),
    Alert(
        "MPSDWebhookBlind",
        Severity.WARNING,
        f"sum by ({INSTANCE}) ({over_window('rate', names.ADMISSION_LOOKUPS, outcome='unknown')})"
        f" / sum by ({INSTANCE}) ({over_window('rate', names.ADMISSION_LOOKUPS)})",
        "> 0.1",
        10 * MINUTE_S,
        "The webhook {{ $labels.instance }} is not answered by the API server",
        f"{SHARE} of its questions about namespaces and ConfigMaps came to nothing: exempt namespaces are not known to"
        " be exempt, and variables from ConfigMaps are not seen.",
        "A rollout of the API server loses some; one of ten for ten minutes is not that.",
        window_s=10 * MINUTE_S,
    ),
    Alert(
        "MPSDCertificateEnds",
        Severity.CRITICAL,
        f"min by ({JOB}, certificate) ({series(names.CERTIFICATE_EXPIRY)}) - time()",
        f"< 7 * {DAY_S}",
        HOUR_S,
        "A certificate of {{ $labels.job }} is about to end",
        f"The certificate `{{{{ $labels.certificate }}}}` of {{{{ $labels.job }}}} ends in {TIME}, and should have"
        " been renewed by now. When it ends no pod is admitted, or none is placed.",
        "mpsd renews its own ten days before, cert-manager thirty; a week is left to find out why it was not done.",
    ),
    Alert(
        "MPSDSchedulerBlind",
        Severity.CRITICAL,
        series(names.SCHEDULER_USABLE),
        "== 0",
        2 * MINUTE_S,
        "The scheduler {{ $labels.instance }} does not know what is free",
        "Its books must not be asked: it has not heard of the cluster's pods, nodes or MPSNodes. No GPU pod is placed"
        " by the kube-scheduler that asks it.",
        "A new process has them within seconds, also of a thousand nodes; a broken watch may last 20 s before.",
    ),
    Alert(
        "MPSDSchedulerSlow",
        Severity.WARNING,
        quantile(0.99, names.SCHEDULER_SECONDS, (INSTANCE, "verb")),
        "> 1",
        10 * MINUTE_S,
        "The scheduler {{ $labels.instance }} answers slowly",
        f"One of a hundred requests ({{{{ $labels.verb }}}}) takes {TIME} or longer; kube-scheduler places one pod"
        " after the other and waits for each, ten seconds at most.",
        "It answers within milliseconds; at one second a Job of a hundred pods takes minutes to be placed.",
        window_s=10 * MINUTE_S,
    ),
)
