"""What Prometheus and Grafana are given names what the other manifests have."""

from typing import Any

import pytest
import yaml

from mpsd.model.metrics import Exporter
from tests.manifests.rendering import named, of_kind, only, workload
from tests.prometheus.shipped import BOARD, DOCS, GROUPS, INSTANCE, JOB, job_of

WITH = "prometheus+scheduler"


def test_the_operator_gets_the_rules_of_the_plain_file() -> None:
    assert only(WITH, "PrometheusRule")["spec"] == {"groups": GROUPS}


def test_the_sidecar_of_grafana_finds_the_board() -> None:
    board = named(WITH, "ConfigMap", "mpsd-board")
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert board["data"]["board.json"] == BOARD.read_text()


@pytest.mark.parametrize("exporter", Exporter)
def test_every_role_is_scraped_on_a_port_that_its_pods_have(exporter: Exporter) -> None:
    monitor = named(WITH, "PodMonitor", job_of(exporter))["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    relabelled = {one["targetLabel"]: one for one in endpoint["relabelings"]}
    assert relabelled[JOB]["replacement"] == job_of(exporter)
    assert relabelled[INSTANCE]["sourceLabels"]
    template = workload(WITH, job_of(exporter))["template"]
    assert monitor["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    ports = {port["name"] for one in template["spec"]["containers"] for port in one["ports"]}
    assert endpoint["port"] in ports


def test_labels_of_a_share_are_not_overwritten_by_those_of_the_agent() -> None:
    (endpoint,) = named(WITH, "PodMonitor", job_of(Exporter.AGENT))["spec"]["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is True


def test_the_token_that_is_shown_is_good_for_metrics_alone() -> None:
    assert named(WITH, "ClusterRole", "mpsd-prometheus")["rules"] == [
        {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}
    ]
    secret = named(WITH, "Secret", "mpsd-prometheus")
    account = secret["metadata"]["annotations"]["kubernetes.io/service-account.name"]
    assert _subjects("mpsd-prometheus") == [account]
    for monitor in of_kind(WITH, "PodMonitor"):
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        if endpoint["port"] == "readers":
            assert endpoint["scheme"] == "https"
            assert endpoint["authorization"]["credentials"] == {
                "name": secret["metadata"]["name"],
                "key": "token",
            }


def _subjects(role: str) -> list[str]:
    bindings = [
        one for one in of_kind(WITH, "ClusterRoleBinding") if one["roleRef"]["name"] == role
    ]
    return [subject["name"] for binding in bindings for subject in binding["subjects"]]


def test_the_plain_scrape_configuration_calls_an_agent_as_alerts_do() -> None:
    plain: Any = yaml.safe_load((DOCS / "scrape.yaml").read_text())
    (agent,) = plain["scrape_configs"]
    assert agent["job_name"] == job_of(Exporter.AGENT)
    assert agent["honor_labels"] is True
    assert INSTANCE in agent["static_configs"][0]["labels"]
