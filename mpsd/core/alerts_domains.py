"""Alerts about control daemons and what they serve.

One rule: what mpsd mends by itself is given the time for it.
"""

from mpsd.core import metrics_names as names
from mpsd.core.alert import DOMAIN, TIME, Alert, Severity
from mpsd.core.domain_states import State
from mpsd.core.durations import HOUR_S, MINUTE_S
from mpsd.core.promql import INSTANCE, over_window, quantile, series

_REFUSED = series(names.DOMAIN_STATE, state=State.REFUSED)

DOMAINS = (
    Alert(
        "MPSDDomainDown",
        Severity.CRITICAL,
        f"sum without (state) ({series(names.DOMAIN_STATE, state=(State.DOWN, State.STARTING))})",
        "== 1",
        2 * MINUTE_S,
        f"No MPS daemon serves {DOMAIN}",
        f"The domain {DOMAIN} has been down or starting for two minutes: no program starts on its GPUs, and those that"
        " ran there have lost them.",
        "A daemon starts within seconds, and one that does not answer is given start_s (30 s); the second and third try"
        " are over in two minutes.",
    ),
    Alert(
        "MPSDDaemonCrashLoops",
        Severity.CRITICAL,
        over_window("increase", names.DOMAIN_RESTARTS),
        "> 3",
        0,
        f"The MPS daemon of {DOMAIN} keeps dying",
        f"The daemon of the domain {DOMAIN} was started anew {{{{ $value | humanize }}}} times in a quarter of an"
        " hour; each time every program on its GPUs ended.",
        "One death may be anybody's SIGKILL, and an upgrade restarts once; four in a quarter of an hour have a cause"
        " that lasts.",
        window_s=15 * MINUTE_S,
    ),
    Alert(
        "MPSDDomainWedged",
        Severity.WARNING,
        over_window("max_over_time", names.DOMAIN_STATE, state=State.WEDGED),
        "> 0",
        0,
        f"The MPS daemon of {DOMAIN} did not answer",
        f"The daemon of the domain {DOMAIN} answered none of three commands within the last ten minutes. Its programs"
        " go on, but are ended with it when it is started anew after wedged_limit_s.",
        "It is started anew after a minute, so an alert that waits would never fire; what is left to do is to find out"
        " why, for which ten minutes are enough to be told.",
        window_s=10 * MINUTE_S,
    ),
    Alert(
        "MPSDFaultLasts",
        Severity.CRITICAL,
        series(names.DOMAIN_STATE, state=State.FAULT),
        "== 1",
        2 * MINUTE_S,
        f"{DOMAIN} does not recover from a fault",
        f"The domain {DOMAIN} has been in fault for two minutes: a program's bad memory access ended everyone on its"
        " GPU, somebody who was hit has not exited, and no program starts there.",
        "Who lingers is ended after fault_grace_s (5 s), and the daemon is replaced wedged_limit_s (60 s) later: what"
        " lasts longer does not mend itself.",
    ),
    Alert(
        "MPSDFaultsRepeat",
        Severity.WARNING,
        over_window("increase", names.DOMAIN_FAULTS),
        "> 2",
        0,
        f"Programs on {DOMAIN} are ended by fault after fault",
        f"The domain {DOMAIN} had {{{{ $value | humanize }}}} faults within an hour; each ended every program on its"
        " GPU. Mostly one pod causes them, and starts again.",
        "A single fault is over in seconds and nobody's to mend; a pod in CrashLoopBackOff is started some twelve times"
        " an hour, so three are soon there.",
        window_s=HOUR_S,
    ),
    Alert(
        "MPSDDomainRefused",
        Severity.WARNING,
        f"({_REFUSED} unless ignoring (state) {series(names.DOMAIN_CANARY)} == 0)",
        "== 1",
        5 * MINUTE_S,
        f"MPS cannot be started for {DOMAIN}",
        f"Something stands in the way of the domain {DOMAIN}, such as MIG or another control daemon: its GPUs take no"
        " programs.",
        "mpsd looks again by itself, so that an obstacle of a moment is gone in five minutes. A failed canary has an"
        " alert of its own.",
    ),
    Alert(
        "MPSDCanaryFailed",
        Severity.CRITICAL,
        series(names.DOMAIN_CANARY),
        "== 0",
        0,
        f"The driver does not hold limits on {DOMAIN}",
        f"A trial client on {DOMAIN} got more than its limit: this driver does not hold MPS limits. Under `canary:"
        " require` the GPUs take no programs; under `warn` they do, and nothing holds there.",
        "What is shared without limits must not wait; a canary is run once, so that a failed one is never noise.",
    ),
    Alert(
        "MPSDDaemonSlow",
        Severity.WARNING,
        quantile(0.9, names.DOMAIN_COMMAND_SECONDS, (INSTANCE, "domain")),
        "> 0.5",
        10 * MINUTE_S,
        f"The MPS daemon of {DOMAIN} answers slowly",
        f"One of ten commands to the daemon of {DOMAIN} takes {TIME} or longer. After command_s, three times, it"
        " counts as wedged.",
        "It answers within milliseconds; half a second is a quarter of command_s (2 s).",
        window_s=10 * MINUTE_S,
    ),
)
