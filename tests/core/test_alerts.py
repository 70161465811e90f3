"""Alerts and the board are made of the table of metrics, and of nothing that it has not."""

import re
from pathlib import Path

import pytest

from mpsd.core import metrics_names as names
from mpsd.core.alert import Alert, Patience, Severity, groups, rule
from mpsd.core.alerts import ALERTS, GROUPS
from mpsd.core.board_kinds import Panel
from mpsd.core.board_panels import GPU, NODE, PANELS
from mpsd.core.grafana_board import board
from mpsd.core.metrics_names import METRICS
from mpsd.core.promql import WINDOW, duration, quantile, series

OPERATIONS = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
OURS = {name for metric in METRICS for name in metric.series}


def metrics_of(query: str) -> set[str]:
    return set(re.findall(r"\bmpsd_\w+", query))


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_asks_for_what_is_told_and_says_what_to_do(alert: Alert) -> None:
    assert metrics_of(alert.expression()) <= OURS
    assert f"\n### {alert.name}\n" in OPERATIONS
    assert alert.runbook == f"docs/operations.md#{alert.name.lower()}"
    assert WINDOW not in alert.expression()
    assert (WINDOW in alert.measure) == (alert.window_s is not None)


def test_alerts_have_names_of_their_own_that_say_whose_they_are() -> None:
    found = [alert.name for alert in ALERTS]
    assert len(set(found)) == len(found)
    assert all(re.fullmatch(r"MPSD[A-Z]\w+", name) for name in found)


def test_no_heading_is_of_an_alert_that_is_gone() -> None:
    assert set(re.findall(r"^### (MPSD\w+)$", OPERATIONS, re.MULTILINE)) == {alert.name for alert in ALERTS}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_patience_shortens_times_and_nothing_else(alert: Alert) -> None:
    long, short = rule(alert, Patience()), rule(alert, Patience(lasts_s=1, window_s=8))
    assert short["for"] in {"0s", "1s"}
    assert re.sub(r"\[\w+\]", "[]", str(short["expr"])) == re.sub(r"\[\w+\]", "[]", str(long["expr"]))
    assert {name: value for name, value in short.items() if name not in {"for", "expr"}} == {
        name: value for name, value in long.items() if name not in {"for", "expr"}
    }


def test_whoever_is_woken_is_woken_for_what_does_not_mend_itself() -> None:
    """A critical alert waits longer than what mpsd itself does about it, or is of what has happened already."""
    waits = {alert.name: alert.lasts_s or alert.window_s for alert in ALERTS if alert.severity is Severity.CRITICAL}
    at_once = {name for name, seconds in waits.items() if not seconds}
    assert at_once == {"MPSDCanaryFailed"}
    assert all(seconds >= 120 for name, seconds in waits.items() if seconds)


def test_every_alert_is_in_one_group() -> None:
    made = groups(GROUPS)["groups"]
    assert isinstance(made, list)
    assert [one["alert"] for group in made for one in group["rules"]] == [alert.name for alert in ALERTS]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_a_panel_asks_for_what_is_told(panel: Panel) -> None:
    for query in panel.queries:
        assert metrics_of(query.text) <= OURS
        assert set(re.findall(r"\$(\w+)", query.text)) <= {NODE, GPU, WINDOW[1:]}


def test_no_two_panels_are_in_the_same_place_or_have_the_same_number() -> None:
    panels = board()["panels"]
    assert isinstance(panels, list)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert max(x for x, _y in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_a_label_that_a_metric_has_not_is_refused() -> None:
    assert series(names.DOMAIN_STATE, state=("down", "starting")) == 'mpsd_domain_state{state=~"down|starting"}'
    assert series(names.WAITING, instance="$node") == 'mpsd_requests_waiting{instance=~"$node"}'
    with pytest.raises(ValueError, match="mpsd_requests_waiting has no label gpu"):
        series(names.WAITING, gpu="gpu0")
    with pytest.raises(ValueError, match="has no label gpu"):
        quantile(0.5, names.ADMISSION_SECONDS, ("webhook",), gpu="gpu0")


@pytest.mark.parametrize(("seconds", "said"), [(0, "0s"), (8, "8s"), (90, "90s"), (120, "2m"), (3600, "1h")])
def test_durations_are_as_prometheus_writes_them(seconds: int, said: str) -> None:
    assert duration(seconds) == said
