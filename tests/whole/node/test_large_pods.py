"""The agent of a node for which tenants have made every pod as large as the API server keeps it."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.whole.machine.machine import eventually
from tests.whole.node.cluster import NODE, Cluster
from tests.world.large_pods import LargePods, serving

_PODS = 110
_MOST_MIB = 90  # resident; 76 were measured, and 83 at its peak


class NodeOfLargePods(Cluster):
    """Without a kubelet: none of the pods runs."""

    def __init__(self, api: LargePods) -> None:
        super().__init__()
        self._large = api

    @property
    def kubeconfig(self) -> Path:
        return self._large.kubeconfig

    def begin(self) -> None:
        self.kubelet_folder.mkdir(exist_ok=True)
        self.control = self.service("control")
        self.agent = self.launch_agent()

    def agent_mib(self) -> float:
        return psutil.Process(self.agent.pid).memory_info().rss / 1024**2


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeOfLargePods]:
    with serving(tmp_path, _PODS, NODE) as api:
        made = NodeOfLargePods(api)
        try:
            made.begin()
            yield made
        finally:
            made.destroy()


def test_pods_of_1_4_mib_cost_an_agent_little_memory(node: NodeOfLargePods) -> None:
    (listed,) = eventually(
        lambda: node.agent.logged("in sync", watched="pods"), "the pods are listed"
    )
    assert listed["objects"] == _PODS
    assert node.agent_mib() < _MOST_MIB
