"""A cluster of one node for each file, empty before each test, stopped as an operator would stop
it."""

from collections.abc import Iterator
from typing import TypeVar

import pytest

from tests.whole.node.cluster import Cluster

AnyCluster = TypeVar("AnyCluster", bound=Cluster)


@pytest.fixture(scope="module")
def running_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The CLUSTER of the file, or a usual one, with its GPUS, by its POLICY beside the machine's
    own, whose programs have its WAITS."""
    file = request.module
    made = getattr(file, "CLUSTER", Cluster)(getattr(file, "GPUS", "A30"))
    made.set_policy(**getattr(file, "POLICY", {}))
    made.waits = getattr(file, "WAITS", {})
    yield from begun(made)


def begun(cluster: AnyCluster) -> Iterator[AnyCluster]:
    """Running; at its end nothing may be left."""
    try:
        cluster.begin()
        yield cluster
        cluster.stop()
    finally:
        cluster.destroy()


@pytest.fixture
def cluster(running_cluster: Cluster) -> Iterator[Cluster]:
    yield running_cluster
    running_cluster.empty()
