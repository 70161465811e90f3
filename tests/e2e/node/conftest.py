"""Everything as pods, on a node with simulated GPUs."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.installation import Installation, installed
from tests.e2e.machine import Machine, this_machine
from tests.e2e.shares import Pods
from tests.e2e.waiting import eventually


@pytest.fixture(scope="package")
def mpsd(
    cluster: Cluster, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    with installed(cluster, pytestconfig.getoption("--image"), tmp_path_factory.mktemp("overlay")) as running:
        yield running


@pytest.fixture(scope="module")
def pods(cluster: Cluster, mpsd: Installation) -> Iterator[Pods]:
    """A namespace for the tests of a file, whose pods all fit at once: kubelet takes ten seconds to let go of one.

    At its end everything that they held has been given back.
    """
    name = f"e2e-{uuid4().hex[:8]}"
    cluster.do("create", "namespace", name)
    cluster.wait_until_it_takes_pods(name)
    try:
        yield Pods(cluster, name, mpsd.image)
    finally:
        cluster.do("delete", "namespace", name, "--wait=false")
    eventually(mpsd.are_books_at_zero, "books at zero", within_s=60.0)


@pytest.fixture
def machine() -> Machine:
    return this_machine()
