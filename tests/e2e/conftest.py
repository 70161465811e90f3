"""End-to-end tests: `make e2e` on a machine of one's own, `pytest tests/e2e --kubeconfig FILE` on
any cluster.

admission: the webhook runs beside the cluster, whose API server must reach this machine
(`--webhook-host ADDRESS`). node: everything as pods of `--image NAME:TAG`, on a node labelled
ack.node.gpu.schedule=mps; its GPUs are simulated, whatever there is: never point it at a node in
use. scheduler: with the kube-scheduler of `--kube-scheduler NAME:TAG`. `--record tests/e2e/records`
keeps the versions and how the tests ended, for the table in docs/install.md.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.installation import (
    SIMULATED,
    Images,
    Installation,
    installed,
    labelled_node,
    values_of,
)
from tests.e2e.run_record import RunRecord
from tests.e2e.shares import Pods
from tests.e2e.waiting import eventually

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
    parser.addoption(
        "--kube-scheduler",
        default=os.environ.get("MPSD_E2E_KUBE_SCHEDULER", ""),
        metavar="NAME:TAG",
        help="kube-scheduler's image, of the cluster's version (MPSD_E2E_KUBE_SCHEDULER)",
    )


def pytest_configure(config: pytest.Config) -> None:
    folder, kubeconfig = config.getoption("--record"), config.getoption("--kubeconfig")
    if folder and kubeconfig:
        config.pluginmanager.register(RunRecord(folder, Cluster(kubeconfig.absolute())))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents and "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(300))
            if not config.getoption("--kubeconfig", default=None):
                item.add_marker(
                    pytest.mark.skip(reason="needs a cluster: make e2e, or --kubeconfig FILE")
                )
            elif "mpsd" in getattr(item, "fixturenames", ()) and not config.getoption("--image"):
                item.add_marker(
                    pytest.mark.skip(
                        reason="needs an image on the nodes: make e2e, or --image NAME:TAG"
                    )
                )
            elif _HERE / "scheduler" in item.path.parents and not config.getoption(
                "--kube-scheduler"
            ):
                item.add_marker(
                    pytest.mark.skip(reason="needs make e2e, or --kube-scheduler NAME:TAG")
                )


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Cluster:
    return Cluster(pytestconfig.getoption("--kubeconfig").absolute())


@pytest.fixture(scope="session")
def mpsd(cluster: Cluster, pytestconfig: pytest.Config) -> Iterator[Installation]:
    """As every test that needs pods of mpsd finds it: it takes half a minute to install, and to
    take away again."""
    images = Images(pytestconfig.getoption("--image"), pytestconfig.getoption("--kube-scheduler"))
    values = values_of(images, SIMULATED)
    with installed(Installation(cluster, images, labelled_node(cluster), values)) as running:
        yield running


@pytest.fixture(scope="module")
def pods(cluster: Cluster, mpsd: Installation) -> Iterator[Pods]:
    """A namespace for the tests of a file, whose pods all fit at once: kubelet takes ten seconds to
    let go of one.

    At its end everything that they held has been given back.
    """
    with cluster.namespace() as name:
        yield Pods(cluster, name, mpsd.image)
    eventually(mpsd.is_ledger_at_zero, "no grant is left", within_s=60.0)
