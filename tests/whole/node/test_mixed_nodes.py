"""A cluster in which a label of each Node says whether its GPUs are served by claims or by the
device plugins."""

import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest

from mpsd.model.names import CLAIMS_LABEL
from mpsd.platform import local_api
from tests.platform.pod_cgroup import needs_cgroups
from tests.whole.machine.machine import eventually
from tests.whole.node.cluster import MEMORY, Cluster
from tests.whole.node.test_random_claims import ScheduledCluster

pytestmark = needs_cgroups


class MixedCluster(ScheduledCluster):
    def until_offered(self) -> None:
        """The Node has no label at first."""
        self.until_by_plugins()

    def until_by_plugins(self) -> None:
        Cluster.until_offered(self)
        eventually(lambda: not self.devices(), "no GPU is offered to claims")
        assert self.node().claim_driver == ""

    def until_by_claims(self) -> None:
        eventually(
            lambda: len(self.devices()) == len(self.simulation.gpus),
            "every GPU is offered to claims",
        )
        eventually(lambda: self.offered().get(MEMORY, "0") == "0", "none by the device plugin")
        eventually(
            lambda: not self.node().claims_trouble and self.node().claim_driver,
            "kubelet has the driver",
        )

    def by_claim(self, name: str) -> None:
        """A pod with a claim of its name for a part of a GPU, once it holds it."""
        self.claim(name, deviceClassName="mps.mpsd.io", capacity={"requests": {"memory": "4Gi"}})
        self.program_of(name)

    def launch_another_agent(self) -> None:
        self.agent.kill()
        self.agent = self.launch_agent()


CLUSTER, POLICY = MixedCluster, {"claim_nodes": "labelled"}


@pytest.fixture
def cluster(running_cluster: MixedCluster) -> Iterator[MixedCluster]:
    yield running_cluster
    running_cluster.empty()
    running_cluster.label({CLAIMS_LABEL: "false"})
    running_cluster.until_by_plugins()


def test_a_label_moves_an_empty_node_to_claims_and_back(cluster: MixedCluster) -> None:
    cluster.running("first", 4)
    cluster.label({CLAIMS_LABEL: "true"})
    cluster.running("second", 2)  # which is served as long as the node is not empty
    assert not cluster.devices()
    cluster.ended("first", "second")
    cluster.until_by_claims()
    cluster.by_claim("third")
    cluster.label({CLAIMS_LABEL: "false"})
    cluster.by_claim("fourth")
    assert cluster.offered().get(MEMORY, "0") == "0"
    cluster.ended("third", "fourth")
    cluster.until_by_plugins()
    cluster.running("fifth", 4)


def test_a_whole_gpu_is_for_one_claim_alone_and_all_of_its_threads(cluster: MixedCluster) -> None:
    cluster.label({CLAIMS_LABEL: "true"})
    cluster.until_by_claims()
    cluster.by_claim("part")
    cluster.claim("whole", deviceClassName="whole-gpu.mpsd.io")
    eventually(
        lambda: cluster.pod("whole").get("status", {}).get("conditions"),
        "it waits, as one has a part",
    )
    cluster.ended("part")
    cluster.program_of("whole")
    (grant,) = cluster.node().grants
    assert (grant.memory_mib, grant.thread_percent) == (23 * 1024, 100)
    cluster.claim("other", deviceClassName="mps.mpsd.io", capacity={"requests": {"memory": "1Gi"}})
    eventually(
        lambda: cluster.pod("other").get("status", {}).get("conditions"),
        "nobody gets what is left of it",
    )
    assert "nodeName" not in cluster.pod("other")["spec"]


def test_an_agent_that_starts_without_the_api_serves_what_is_held(cluster: MixedCluster) -> None:
    cluster.running("held", 4)
    cluster.api.send(signal.SIGSTOP)
    try:
        cluster.launch_another_agent()
        (served,) = eventually(lambda: cluster.agent.logged("GPUs served"), "how GPUs are served")
        assert served["how"] == "by the device plugins"
    finally:
        cluster.api.send(signal.SIGCONT)
    cluster.ended("held")
    cluster.label({CLAIMS_LABEL: "true"})
    cluster.until_by_claims()
    cluster.by_claim("claimed")
    cluster.api.send(signal.SIGSTOP)
    try:
        cluster.launch_another_agent()
        (served,) = eventually(lambda: cluster.agent.logged("GPUs served"), "how GPUs are served")
        assert served["how"] == "by resource claims"
    finally:
        cluster.api.send(signal.SIGCONT)
    cluster.until_by_claims()


def test_an_agent_that_knows_nothing_waits_for_the_api_server(cluster: MixedCluster) -> None:
    def unknown() -> str:
        with suppress(local_api.NotRunning):
            return " ".join(cluster.node().unknown)
        return ""

    cluster.api.send(signal.SIGSTOP)
    try:
        cluster.launch_another_agent()
        eventually(lambda: "API server" in unknown(), "it has looked, and the API server is away")
        assert not cluster.agent.logged("GPUs served")
        assert cluster.node().claim_driver == ""
    finally:
        cluster.api.send(signal.SIGCONT)
    cluster.until_by_plugins()
