"""One webhook for the tests that only ask it something."""

from collections.abc import Iterator

import pytest

from tests.whole.machine.machine import eventually
from tests.whole.webhook.api_server import ApiServer, api_server
from tests.whole.webhook.world import Webhook, bundles, is_registered, put_shipped_objects, webhook


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """An API server as the manifests leave it, for one test."""
    with api_server() as running:
        put_shipped_objects(running)
        yield running


@pytest.fixture(scope="session")
def shared_api() -> Iterator[ApiServer]:
    with api_server() as running:
        put_shipped_objects(running)
        yield running


@pytest.fixture(scope="session")
def served(shared_api: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    """A registered webhook that lives as long as the tests do."""
    folder = tmp_path_factory.mktemp("webhook")
    with webhook(folder, kubeconfig=str(shared_api.kubeconfig(folder))) as running:
        eventually(lambda: is_registered(shared_api), "registered")
        yield running


@pytest.fixture(scope="session")
def bundle(served: Webhook, shared_api: ApiServer) -> str:
    """What verifies it."""
    return bundles(shared_api)[0]
