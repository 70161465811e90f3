"""The files that are shipped, as promtool reads them, with the times that they are shipped with."""

import shutil
from pathlib import Path

import pytest
import yaml

from tests.prometheus.server import promtool
from tests.prometheus.shipped import DOCS, NAMES, RECORDED, RULES

ON = 'instance="node1", job="mpsd-agent"'
RESTARTS = f'mpsd_domain_restarts_total{{{ON}, domain="gpu0"}}'
FAULTS = f'mpsd_domain_faults_total{{{ON}, domain="gpu0"}}'
SICK = f'mpsd_gpu_sick{{{ON}, gpu="gpu0", cause="xid"}}'
VIOLATIONS = f'mpsd_violations_total{{{ON}, kind="memory_over_grant", action="kill"}}'
DOWN = f'mpsd_domain_state{{{ON}, domain="gpu0", state="down"}}'
STARTING = f'mpsd_domain_state{{{ON}, domain="gpu0", state="starting"}}'
REFUSED = f'mpsd_domain_state{{{ON}, domain="gpu0", state="refused"}}'
UNWATCHED = f'mpsd_domain_unwatched{{{ON}, domain="gpu0"}}'
CANARY = f'mpsd_domain_canary_passed{{{ON}, domain="gpu0"}}'
CERTIFICATE = 'mpsd_certificate_expiry_timestamp_seconds{job="mpsd-webhook", certificate="serving"}'
NO_NODE = (
    'mpsd_scheduler_requests_total{instance="a", job="mpsd-scheduler", verb="filter",'
    ' verdict="no-node"}'
)
LOOKED_AT = f"mpsd_look_timestamp_seconds{{{ON}}}"
UP = f"up{{{ON}}}"
LOST = f'mpsd_log_lines_dropped_total{{{ON}, process="control"}}'
LOOKS, LATE = (f"mpsd_watchdog_{which}looks_total{{{ON}}}" for which in ("", "late_"))
CLIENTS = {
    what: f'mpsd_gpu_clients_{what}{{{ON}, gpu="gpu0"}}'
    for what in ("outside_mps", "without_grant")
}
OVER, USED, LIMIT = (
    f'mpsd_grant_{what}{{{ON}, holder="pod", pod="a"}}'
    for what in ("over_limit", "used_bytes", "limit_bytes")
)
REFUSALS = f'mpsd_plugin_calls_total{{{ON}, call="Allocate", outcome="refused"}}'
LOOKUPS, UNKNOWN_LOOKUPS = (
    f'mpsd_admission_lookups_total{{instance="a", job="mpsd-webhook", outcome="{outcome}"}}'
    for outcome in ("answered", "unknown")
)
WEBHOOK, OTHER = (f'up{{instance="webhook-{name}", job="mpsd-webhook"}}' for name in "ab")
NO_UPGRADE, DRAINING = (
    f"mpsd_driver_upgrade{{{ON}{state}}}" for state in ("", ', state="drain-required"')
)
DAY_S = 86_400
EACH_MINUTE = {LOOKED_AT: " _ ".join(str(at) for at in range(0, 900, 60)), UP: " _ ".join("1" * 15)}


def slow(histogram: str, bound_s: float) -> dict[str, str]:
    """A tenth and more took longer than the bound."""
    counts = {f"{bound_s}": "0+5x40", f"{2 * bound_s}": "0+10x40", "+Inf": "0+10x40"}
    return {f'{histogram}_bucket{{{ON}, le="{le}"}}': counted for le, counted in counts.items()}


# Alert, series by their values every 30 s, the time at which is asked, and whether it fires then.
CASES = (
    ("MPSDDaemonCrashLoops", {RESTARTS: "0x9 1x19"}, "15m", False),
    ("MPSDDaemonCrashLoops", {RESTARTS: "0x4 1x4 2x4 3x4 4x4 5x4"}, "14m", True),
    ("MPSDGPUSick", {SICK: "1x1 0x9"}, "2m", False),
    ("MPSDGPUSick", {SICK: "0x1 1x9"}, "2m", True),
    ("MPSDGPUUnwatched", {UNWATCHED: "1x1 0x9"}, "2m", False),
    ("MPSDGPUUnwatched", {UNWATCHED: "0x1 1x9"}, "2m", True),
    ("MPSDFaultsRepeat", {FAULTS: "0x39 1x39 2x39"}, "58m", False),
    ("MPSDFaultsRepeat", {FAULTS: "0x29 1x29 2x29 3x29 4x9"}, "60m", True),
    ("MPSDViolations", {VIOLATIONS: "0x19 3x19 5x79"}, "59m", False),
    ("MPSDViolations", {VIOLATIONS: "0x9 2x9 4x9 6x9 8x79"}, "59m", True),
    ("MPSDDomainDown", {DOWN: "1x3 0x1 1x3", STARTING: "0x3 1x1 0x3"}, "3m", True),
    ("MPSDDomainDown", {DOWN: "1x1 0x6", STARTING: "0x1 1x1 0x4"}, "3m", False),
    ("MPSDDomainRefused", {REFUSED: "1x20", CANARY: "1x20"}, "6m", True),
    ("MPSDDomainRefused", {REFUSED: "1x20", CANARY: "0x20"}, "6m", False),
    ("MPSDCanaryFailed", {REFUSED: "1x20", CANARY: "0x20"}, "6m", True),
    ("MPSDCertificateEnds", {CERTIFICATE: f"{8 * DAY_S}x300"}, "2h", False),
    ("MPSDCertificateEnds", {CERTIFICATE: f"{7 * DAY_S}x300"}, "2h", True),
    ("MPSDAgentSilent", {LOOKED_AT: "0+30x20", UP: "1x20"}, "8m", False),
    ("MPSDAgentSilent", {LOOKED_AT: "0+30x5 150x15", UP: "1x20"}, "8m", True),
    ("MPSDAgentSilent", {LOOKED_AT: "0+30x5 stale", UP: "1x5 0x15"}, "8m", True),
    ("MPSDDomainWedged", {DOWN.replace("down", "wedged"): "0x3 1 0x19"}, "9m", True),
    ("MPSDFaultLasts", {DOWN.replace("down", "fault"): "1x5"}, "2m30s", True),
    ("MPSDDaemonSlow", slow("mpsd_domain_command_seconds", 0.5), "15m", True),
    ("MPSDThingsUnknown", {f"mpsd_unknown_things{{{ON}}}": "1x21"}, "10m30s", True),
    ("MPSDWatchdogIdle", {f"mpsd_watchdog_judging{{{ON}}}": "0x11"}, "5m30s", True),
    ("MPSDWatchdogLate", {LOOKS: "0+100x40", LATE: "0+11x40"}, "15m", True),
    ("MPSDWatchdogLate", {LOOKS: "0+100x40", LATE: "0+9x40"}, "15m", False),
    ("MPSDLimitsWrong", {f"mpsd_limits_wrong{{{ON}}}": "1x11"}, "5m30s", True),
    ("MPSDLogLinesDropped", {LOST: "0x4 0+1x60"}, "25m", True),
    ("MPSDLogLinesDropped", {LOST: "0x4 5x60"}, "25m", False),
    ("MPSDOutsideMPS", {CLIENTS["outside_mps"]: "1x5"}, "2m30s", True),
    (
        "MPSDWithoutGrant",
        {CLIENTS["outside_mps"]: "0x5", CLIENTS["without_grant"]: "1x5"},
        "3m",
        True,
    ),
    (
        "MPSDWithoutGrant",
        {CLIENTS["outside_mps"]: "1x5", CLIENTS["without_grant"]: "1x5"},
        "3m",
        False,
    ),
    ("MPSDPodOverLimit", {OVER: "1x3"}, "1m30s", True),
    ("MPSDPodNearLimit", {USED: "96x61", LIMIT: "100x61"}, "30m30s", True),
    ("MPSDPodNearLimit", {USED: "95x61", LIMIT: "100x61"}, "30m30s", False),
    ("MPSDRequestsWait", {f"mpsd_requests_waiting{{{ON}}}": "1x121"}, "60m30s", True),
    ("MPSDContainersHeldBack", {f"mpsd_plugin_containers_held_back{{{ON}}}": "1x21"}, "11m", True),
    ("MPSDPluginRefuses", {REFUSALS: "0x9 11x10"}, "9m", True),
    ("MPSDPluginRefuses", {REFUSALS: "0x9 9x10"}, "9m", False),
    ("MPSDWebhookNotRegistered", {f"mpsd_admission_registered{{{ON}}}": "0x11"}, "5m30s", True),
    ("MPSDWebhookSlow", slow("mpsd_admission_review_seconds", 1.0), "15m", True),
    ("MPSDWebhookBlind", {LOOKUPS: "0+8x40", UNKNOWN_LOOKUPS: "0+1x40"}, "15m", True),
    ("MPSDWebhookBlind", {LOOKUPS: "0+10x40", UNKNOWN_LOOKUPS: "0+1x40"}, "15m", False),
    ("MPSDSchedulerBlind", {f"mpsd_scheduler_ledger_usable_seconds{{{ON}}}": "0x5"}, "3m", True),
    ("MPSDSchedulerSlow", slow("mpsd_scheduler_request_seconds", 1.0), "15m", True),
    *(("MPSDAgentSilent", EACH_MINUTE, at, False) for at in ("6m30s", "8m", "9m", "10m")),
    ("MPSDPodFitsNoGPU", {NO_NODE: "0x9 1x79"}, "20m", False),  # one pod that soon had room
    ("MPSDPodFitsNoGPU", {NO_NODE: "0x9 1x9 2x9 3x9 4x9 5x9 6x9"}, "24m", True),
    ("MPSDDriverUpgradeWaits", {NO_UPGRADE: "0x9 stale", DRAINING: "_x10 1x200"}, "63m", False),
    ("MPSDDriverUpgradeWaits", {NO_UPGRADE: "0x9 stale", DRAINING: "_x10 1x200"}, "67m", True),
    ("MPSDDriverUpgradeWaits", {NO_UPGRADE: "0x200"}, "90m", False),
    ("MPSDServerAbsent", {WEBHOOK: "1x5 0x15"}, "8m", True),
    ("MPSDServerAbsent", {WEBHOOK: "1x5 stale"}, "8m", True),  # no pod of it is left
    ("MPSDServerAbsent", {WEBHOOK: "1x5 stale"}, "70m", False),
    # a rollout: another name
    ("MPSDServerAbsent", {WEBHOOK: "1x5 stale", OTHER: "_x5 1x15"}, "8m", False),
)


def test_each_alert_is_made_to_fire() -> None:
    assert {name for name, _series, _at, fires in CASES if fires} == set(NAMES)


def test_promtool_finds_nothing_wrong_in_what_is_shipped(tmp_path: Path) -> None:
    assert f"SUCCESS: {len(NAMES) + len(RECORDED)} rules found" in promtool("check", "rules", RULES)
    for shipped in (RULES, DOCS / "scrape.yaml"):  # side by side, as they are installed
        shutil.copy(shipped, tmp_path)
    assert "SUCCESS" in promtool("check", "config", tmp_path / "scrape.yaml")


@pytest.mark.parametrize(("name", "series", "at", "fires"), CASES)
def test_thresholds_are_where_they_are_said_to_be(
    tmp_path: Path, name: str, series: dict[str, str], at: str, fires: bool
) -> None:
    query = f'count(ALERTS{{alertname="{name}", alertstate="firing"}}) or vector(0)'
    _try(tmp_path, series, query, at, {"{}": int(fires)})


def test_what_dcgm_says_of_a_gpu_is_recorded_for_each_pod_with_a_share_of_it(
    tmp_path: Path,
) -> None:
    def share(pod: str, gpu: int, holder: str = "pod") -> str:
        labels = (
            f'{ON}, gpu="gpu{gpu}", uuid="GPU-{gpu}", holder="{holder}", namespace="a",'
            f' pod="{pod}", container="c"'
        )
        return f"mpsd_grant_limit_bytes{{{labels}}}"

    def dcgm(gpu: int, **more: str) -> str:
        labels = {"gpu": f"{gpu}", "UUID": f"GPU-{gpu}", "Hostname": "node1", "job": "dcgm", **more}
        matchers = ", ".join(f'{name}="{value}"' for name, value in labels.items())
        return f"DCGM_FI_DEV_GPU_UTIL{{{matchers}}}"

    shares = dict.fromkeys(
        (share("one", 0), share("two", 0), share("three", 1), share("", 0, "program")), "7e9x4"
    )
    # as dcgm-exporter has it, once for each pod that it believes is on the GPU; nothing of gpu1
    series = {**shares, dcgm(0): "80x4", dcgm(0, exported_pod="one"): "80x4", dcgm(2): "50x4"}
    (record,) = RECORDED
    labels = 'gpu="gpu0", uuid="GPU-0", holder="pod", namespace="a", container="c"'
    expected = {f'{record}{{{ON}, {labels}, pod="{pod}"}}': 80 for pod in ("one", "two")}
    _try(tmp_path, series, record, "1m", expected)
    _try(tmp_path, shares, record, "1m", {})


def _try(
    folder: Path, series: dict[str, str], query: str, at: str, expected: dict[str, int]
) -> None:
    """series: their values, one each 30 s. expected: of the query at that time."""
    samples = [{"labels": labels, "value": value} for labels, value in expected.items()]
    case = {
        "interval": "30s",
        "input_series": [{"series": one, "values": values} for one, values in series.items()],
        "promql_expr_test": [{"expr": query, "eval_time": at, "exp_samples": samples}],
    }
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": [case]}))
    assert "SUCCESS" in promtool("test", "rules", file)
