"""Alerts and the Grafana board ask for metrics and labels that exist; every alert says what to
do."""

import re
from collections.abc import Iterator
from enum import StrEnum

import pytest

from mpsd.model.domain import State
from mpsd.model.metrics import METRICS, CallOutcome, Exporter, HolderKind, Metric, Type
from tests.docs.pages import ROOT, page
from tests.prometheus.shipped import ALERTS, INSTANCE, JOB, PANELS, RECORDED, Json, job_of

SERIES = {name: metric for metric in METRICS for name in metric.series}
SELECTOR = re.compile(r"(\w+\()?\b((?:mpsd[_:][\w:]+)|up)\b(?:\{([^}]*)\})?(\[[^\]]+\])?")
MATCHER = re.compile(r'(\w+)(?:=~|!~|!=|=)"([^"]*)"')
GROUPED = re.compile(r"\b(by|without|on|ignoring) \(([^)]*)\)")
OF_COUNTERS = {"rate(", "increase("}
OF_GAUGES = {"changes(", "max_over_time("}
UNITS_S = {"s": 1, "m": 60, "h": 3600}

BY_NAME = [pytest.param(alert, id=alert["alert"]) for alert in ALERTS]
SHOWN = [pytest.param(panel, id=panel["title"]) for panel in PANELS if panel["type"] != "row"]


def closed_values(name: str, label: str) -> type[StrEnum] | list[str] | None:
    """None where they are open."""
    if label == JOB:
        return [job_of(exporter) for exporter in Exporter]
    if (name, label) == ("mpsd_plugin_calls_total", "outcome"):
        return CallOutcome
    return {"state": State, "holder": HolderKind}.get(label)


def faults_of_selector(function: str, name: str, matchers: str, window: str) -> Iterator[str]:
    metric = SERIES.get(name)
    if metric is None and name not in {"up", *RECORDED}:
        yield f"no metric {name}"
        return
    labels = labels_of(name)
    for label, wanted in MATCHER.findall(matchers):
        if label not in labels:
            yield f"{name} has no label {label}"
        values = closed_values(name, label)
        if values is not None and not wanted.startswith("$"):
            yield from (
                f"{label} is never {value}"
                for value in wanted.split("|")
                if value not in list(values)
            )
    if metric is not None:
        yield from faults_of_use(metric, function, window)


def faults_of_use(metric: Metric, function: str, window: str) -> Iterator[str]:
    """A counter or histogram is asked for its rate, a gauge for its value."""
    if metric.type in {Type.COUNTER, Type.HISTOGRAM}:
        if function not in OF_COUNTERS or not window:
            yield f"{metric.name} is a {metric.type}: ask for its rate or increase"
    elif window and function not in OF_GAUGES:
        yield f"{metric.name} is a {metric.type}: it has no {function.rstrip('(')}"


def labels_of(name: str) -> set[str]:
    if name in RECORDED:
        return labels_in(RECORDED[name])
    metric = SERIES.get(name)
    return {
        JOB,
        INSTANCE,
        *(metric.labels if metric else ()),
        *(("le",) if name.endswith("_bucket") else ()),
    }


def labels_in(query: str) -> set[str]:
    return set().union(*(labels_of(name) for _function, name, *_rest in SELECTOR.findall(query)))


def faults_of(query: str) -> list[str]:
    found = [fault for one in SELECTOR.findall(query) for fault in faults_of_selector(*one)]
    grouped = {
        label.strip() for _word, labels in GROUPED.findall(query) for label in labels.split(",")
    }
    return found + [f"no label {label} in {query}" for label in sorted(grouped - labels_in(query))]


def labels_left(query: str) -> set[str]:
    """The labels of the result: those that it is grouped by, else all that are not summed away."""
    grouped: dict[str, set[str]] = {"by": set(), "without": set()}
    for word, labels in GROUPED.findall(query):
        grouped.setdefault(word, set()).update(label.strip() for label in labels.split(","))
    return (grouped["by"] or labels_in(query) - grouped["without"]) - {"le"}


def seconds(text: str) -> int:
    return int(text[:-1]) * UNITS_S[text[-1]]


@pytest.mark.parametrize("alert", BY_NAME)
def test_an_alert_asks_for_metrics_that_exist(alert: Json) -> None:
    assert SELECTOR.search(alert["expr"])
    assert faults_of(alert["expr"]) == []


@pytest.mark.parametrize("name", RECORDED)
def test_what_is_recorded_is_of_metrics_that_exist(name: str) -> None:
    assert re.fullmatch(r"mpsd:\w+:\w+", name)
    assert faults_of(RECORDED[name]) == []


@pytest.mark.parametrize("alert", BY_NAME)
def test_an_alert_has_a_severity_and_names_only_labels_that_its_query_leaves(alert: Json) -> None:
    assert alert["labels"]["severity"] in {"critical", "warning", "info"}
    assert alert["annotations"].keys() == {"summary", "description", "runbook_url"}
    for text in alert["annotations"].values():
        assert text
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels_left(alert["expr"])


@pytest.mark.parametrize("alert", BY_NAME)
def test_the_runbook_of_an_alert_says_what_to_see_and_what_to_do(alert: Json) -> None:
    path, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert anchor == alert["alert"].lower()
    assert (ROOT / path).exists()
    _before, section = page(path).text.split(f"\n### {alert['alert']}\n", 1)
    section = section.split("\n#", 1)[0]
    assert "\n- **See:** " in section
    assert "\n- **Do:** " in section


def test_whoever_is_woken_is_woken_for_what_does_not_mend_itself() -> None:
    """A critical alert waits longer than what mpsd itself does about it, or is of what has happened
    already."""
    critical = [alert for alert in ALERTS if alert["labels"]["severity"] == "critical"]
    waits = {
        alert["alert"]: seconds(alert["for"]) or window_of(alert["expr"]) for alert in critical
    }
    at_once = {name for name, waited in waits.items() if not waited}
    assert at_once == {"MPSDCanaryFailed"}
    assert all(waited >= 120 for name, waited in waits.items() if waited)


def window_of(query: str) -> int:
    """The longest range, in seconds; 0 where it asks for this moment."""
    return max((seconds(window) for window in re.findall(r"\[(\w+)\]", query)), default=0)


@pytest.mark.parametrize("panel", SHOWN)
def test_a_panel_asks_for_metrics_that_exist_and_names_only_labels_that_its_queries_leave(
    panel: Json,
) -> None:
    assert panel["targets"]
    for target in panel["targets"]:
        query = target["expr"]
        assert SELECTOR.search(query)
        assert faults_of(query) == []
        assert set(re.findall(r"\$(\w+)", query)) <= {"node", "gpu", "__rate_interval"}
        assert set(re.findall(r"\[([^\]]+)\]", query)) <= {"$__rate_interval"}
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels_left(query)


def test_the_board_has_a_number_and_a_name_for_each_state_of_a_domain() -> None:
    (panel,) = [panel for panel in PANELS if panel["type"] == "state-timeline"]
    numbered = re.findall(r'state="(\w+)"\} \* (\d+)', panel["targets"][0]["expr"])
    assert {state: int(number) for state, number in numbered} == {
        state.value: at for at, state in enumerate(State)
    }
    (mapping,) = panel["fieldConfig"]["defaults"]["mappings"]
    assert {shown["text"]: int(number) for number, shown in mapping["options"].items()} == {
        state.value: at for at, state in enumerate(State)
    }


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        ("mpsd_made_up", "no metric mpsd_made_up"),
        ('mpsd_requests_waiting{gpu="gpu0"}', "mpsd_requests_waiting has no label gpu"),
        ('mpsd_plugin_calls_total{outcome="lost"}', "outcome is never lost"),
        ('up{job="mpsd-cook"}', "job is never mpsd-cook"),
        (
            "mpsd_domain_restarts_total > 3",
            "mpsd_domain_restarts_total is a counter: ask for its rate or increase",
        ),
        ("rate(mpsd_requests_waiting[5m])", "mpsd_requests_waiting is a gauge: it has no rate"),
        (
            "sum by (pod) (mpsd_requests_waiting)",
            "no label pod in sum by (pod) (mpsd_requests_waiting)",
        ),
    ],
)
def test_a_query_that_the_table_of_metrics_cannot_answer_is_found(query: str, fault: str) -> None:
    assert fault in faults_of(query)
