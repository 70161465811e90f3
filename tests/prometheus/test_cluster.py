"""A real Prometheus scrapes a simulated cluster under churn: what it reads, what the board shows,
which alerts fire.

One cluster for all of them.
"""

from collections.abc import Iterator

import pytest

from tests.platform.pod_cgroup import needs_cgroups
from tests.prometheus.cluster_trials import TRIALS
from tests.prometheus.scraped_cluster import World, world
from tests.prometheus.server import READERS, WINDOW, prometheus, promtool
from tests.prometheus.shipped import ALERTS, INSTANCE, PANELS, RECORDED, in_window, measured

pytestmark = needs_cgroups

# What the variables of the board stand for while everything is chosen.
_OF_PROBES = "60s"  # a daemon that serves is asked every 20 s
_CHOSEN = {"$node": ".*", "$gpu": ".*", "$__rate_interval": WINDOW}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    with prometheus(folder / "prometheus") as server, world(folder, server) as made:
        yield made


@pytest.fixture
def cluster(running: World) -> Iterator[World]:
    """As at its beginning, and at its end too."""
    yield running
    running.put_back()


def test_each_role_tells_its_metrics_as_prometheus_wants_them(cluster: World) -> None:
    with cluster.churn():
        cluster.prometheus.until_data("sum(increase(mpsd_admission_reviews_total[8s])) > 0")
        for text in cluster.scrapes():
            assert promtool("check", "metrics", said=text) == ""


def test_every_panel_of_the_board_has_data(cluster: World) -> None:
    with cluster.churn():
        for panel in PANELS:
            for target in panel.get("targets", ()):
                text = target["expr"]
                if text.startswith(tuple(RECORDED)):  # with what others measure: test_rules
                    continue
                for variable, chosen in _CHOSEN.items():
                    text = text.replace(variable, chosen)
                cluster.prometheus.until_data(text)


def test_what_every_alert_measures_has_data_while_all_is_well(cluster: World) -> None:
    with cluster.churn():
        for alert in ALERTS:
            window = _OF_PROBES if "mpsd_domain_command_seconds" in alert["expr"] else WINDOW
            found = cluster.prometheus.until_data(in_window(measured(alert["expr"]), window))
            assert all(one.labels.get(INSTANCE) or one.labels.get("job") for one in found), alert[
                "alert"
            ]


def test_the_account_of_the_component_is_let_in_by_the_port_for_readers_and_nobody_else_is(
    cluster: World,
) -> None:
    server, port = cluster.prometheus, cluster.cluster.tls_port
    server.scrape_readers(port, cluster.cluster.token_of_the_chart())
    try:
        server.until_data(f'mpsd_gpu_info{{job="{READERS}"}}')
        server.scrape_readers(port, "made-up")
        server.until_data(f'up{{job="{READERS}"}} == 0')
    finally:
        server.scrape_readers(None)


@pytest.mark.parametrize("name", TRIALS)
def test_an_alert_fires_while_the_fault_lasts_and_clears_when_it_is_mended(
    cluster: World, name: str
) -> None:
    cluster.prometheus.until_quiet(name)
    with TRIALS[name](cluster):
        cluster.prometheus.until_firing(name)
        told = cluster.prometheus.told(name)
        assert not [text for text in told.values() if "<no value>" in text or "{{" in text], told
    cluster.prometheus.until_quiet(name)
