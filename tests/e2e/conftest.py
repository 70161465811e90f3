"""End-to-end tests: `make e2e` on a machine of one's own, `pytest tests/e2e --kubeconfig FILE` on any cluster.

tests/e2e/admission runs the webhook beside the cluster: on a cluster that is not on this machine the API server must
reach this machine (`--webhook-host ADDRESS`). tests/e2e/node installs everything as pods of the image that `--image
NAME:TAG` names, on a node labelled ack.node.gpu.schedule=mps. Its GPUs are simulated, whatever there is: never point it
at a node in use.
"""

import os
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster

_HERE = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--webhook-host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="where the API server reaches the webhooks that tests/e2e start",
    )
    parser.addoption(
        "--image",
        default=os.environ.get("MPSD_E2E_IMAGE", ""),
        metavar="NAME:TAG",
        help="mpsd's image, as nodes of the cluster find it (MPSD_E2E_IMAGE)",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(300))
            if not config.getoption("--kubeconfig", default=None):
                item.add_marker(pytest.mark.skip(reason="needs a cluster: make e2e, or --kubeconfig FILE"))
            elif _HERE / "node" in item.path.parents and not config.getoption("--image"):
                item.add_marker(pytest.mark.skip(reason="needs an image on the nodes: make e2e, or --image NAME:TAG"))


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Cluster:
    return Cluster(pytestconfig.getoption("--kubeconfig").absolute())
