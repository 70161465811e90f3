"""The webhook as processes beside the cluster, whose lives the tests shorten."""

from collections.abc import Iterator

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.webhook import Webhook, running_webhook


@pytest.fixture(scope="package")
def webhook(
    cluster: Cluster, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Webhook]:
    host = pytestconfig.getoption("--webhook-host")
    with running_webhook(cluster, tmp_path_factory.mktemp("webhook"), host) as running:
        yield running
        cluster.until_namespaces_are_gone()  # while there is a webhook


@pytest.fixture
def namespace(cluster: Cluster, webhook: Webhook) -> Iterator[str]:
    with cluster.namespace() as name:
        yield name
