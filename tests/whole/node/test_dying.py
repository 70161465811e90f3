"""An error in a task of a node's agent ends it, and the next one has the grants of its pods."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.whole.node.cluster import Cluster
from tests.whole.node.conftest import begun
from tests.whole.node.test_claims import ClaimCluster
from tests.world.dying import Raised

LONGEST_S = 30.0  # far above the 5 s, however busy the machine
_NODE = "mpsd.cli.kubelet_node:KubeletNode"
TASKS = (
    Raised(f"{_NODE}.run"),
    Raised(f"{_NODE}._serve"),
    Raised(f"{_NODE}._end_unallocated"),
    Raised(f"{_NODE}._empty_for_upgrade"),
    Raised("mpsd.platform.kube_mirror:Mirror.run"),
    Raised("mpsd.status.report:NodeReporter.run"),
    Raised("mpsd.status.report:keep"),
    Raised("mpsd.kubelet.plugin_server:SocketServer.run"),
    Raised("mpsd.kubelet.dra.node:NodeClaims.run"),
)
CLAIM_TASKS = (
    Raised("mpsd.kubelet.dra.node:NodeClaims.serve"),
    Raised("mpsd.kubelet.dra.node:SlicePublisher.run"),
    Raised("mpsd.kubelet.plugin_server:SocketServer.run"),
)


def dies(cluster: Cluster, raised: Raised, file: Path) -> None:
    daemon = cluster.daemon()
    cluster.agent.kill()
    environment = cluster.environment | raised.environment(file)
    cluster.agent = agent = cluster.launch_agent(environment)
    cluster.until_ready()
    file.touch()
    assert agent.exit_code(LONGEST_S) == 1, agent
    raised.is_told("mpsd agent", agent.errors)
    assert cluster.control.running
    cluster.agent = cluster.start_agent()
    cluster.until_ready()
    assert cluster.daemon() == daemon


@pytest.mark.parametrize("raised", TASKS, ids=str)
def test_an_error_in_a_task_of_an_agent_ends_it_and_no_program(
    cluster: Cluster, tmp_path: Path, raised: Raised
) -> None:
    program = cluster.running("sample", 3)
    dies(cluster, raised, tmp_path / "raise")
    assert cluster.grant("sample").memory_mib == 3 * 1024
    assert len(program.runs) == 1
    cluster.until_offered()


@pytest.fixture(scope="module")
def claim_cluster() -> Iterator[Cluster]:
    yield from begun(ClaimCluster("A30"))


@pytest.mark.parametrize("raised", CLAIM_TASKS, ids=str)
def test_an_error_in_a_task_of_resource_claims_ends_the_agent(
    claim_cluster: Cluster, tmp_path: Path, raised: Raised
) -> None:
    dies(claim_cluster, raised, tmp_path / "raise")
