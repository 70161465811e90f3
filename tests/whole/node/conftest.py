"""A cluster of one node for each file, empty before each test, stopped as an operator would stop
it."""

from collections.abc import Iterator
from typing import TypeVar

import pytest

from tests.whole.node.cluster import Cluster

AnyCluster = TypeVar("AnyCluster", bound=Cluster)


@pytest.fixture(scope="module")
def gpus() -> str:
    return "A30"


@pytest.fixture(scope="module")
def running_cluster(gpus: str) -> Iterator[Cluster]:
    yield from begun(Cluster(gpus))


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
