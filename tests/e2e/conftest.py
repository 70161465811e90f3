"""End-to-end tests: `make e2e` on a machine of one's own, `pytest tests/e2e --kubeconfig FILE` on any cluster.

On a cluster that is not on this machine the API server must reach this machine: `--webhook-host ADDRESS`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.webhook import Webhook, running_webhook

_HERE = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kubeconfig", type=Path, metavar="FILE", help="run tests/e2e on this cluster, as its admin")
    parser.addoption(
        "--webhook-host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="where the API server reaches the webhooks that tests/e2e start",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(300))
            if not config.getoption("--kubeconfig", default=None):
                item.add_marker(pytest.mark.skip(reason="needs a cluster: make e2e, or --kubeconfig FILE"))


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Cluster:
    return Cluster(pytestconfig.getoption("--kubeconfig").absolute())


@pytest.fixture(scope="session")
def webhook(
    cluster: Cluster, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Webhook]:
    """Two replicas that serve, with the manifests applied as shipped."""
    host = pytestconfig.getoption("--webhook-host")
    with running_webhook(cluster, tmp_path_factory.mktemp("webhook"), host) as running:
        yield running


@pytest.fixture
def namespace(cluster: Cluster, webhook: Webhook) -> Iterator[str]:
    """A namespace that the webhook looks after."""
    with cluster.namespace() as name:
        yield name
