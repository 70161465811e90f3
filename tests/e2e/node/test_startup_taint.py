"""No pod comes to a new node before its GPUs are served: a real kubelet, scheduler and agent,
simulated GPUs."""

from collections.abc import Iterator

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.installation import Installation
from tests.e2e.shares import Pods, share
from tests.e2e.versions import needs
from tests.e2e.waiting import eventually

_REMOVING = {"agent": {"startupTaint": True}}
_NOWHERE, _HERE = {"mpsd.io/e2e": "nowhere"}, {"ack.node.gpu.schedule": "mps"}
_OURS, _OTHER = "mpsd.io/not-ready", "example.com/other"


@pytest.fixture
def removing(cluster: Cluster, mpsd: Installation) -> Iterator[Installation]:
    needs(cluster, 30, "agent.startupTaint")
    agent = mpsd.agent()
    mpsd.apply(_REMOVING)
    mpsd.wait_for_another_agent(agent)
    try:
        yield mpsd
    finally:
        for key in (_OURS, _OTHER):
            cluster.kubectl("taint", "node", mpsd.node, f"{key}-")
        mpsd.put_where(_HERE)
        mpsd.apply_without(_REMOVING)
        mpsd.wait_until_ready()


def _taints(cluster: Cluster, node: str) -> set[str]:
    return {one["key"] for one in cluster.get("node", node)["spec"].get("taints", ())}


def _became(cluster: Cluster, kind: str, name: str, condition: str, *where: str) -> str:
    conditions = cluster.get(kind, name, *where)["status"]["conditions"]
    (when,) = (
        one["lastTransitionTime"]
        for one in conditions
        if (one["type"], one["status"]) == (condition, "True")
    )
    return str(when)


def test_no_pod_comes_before_the_gpus_are_served_and_then_the_agent_removes_its_taint_alone(
    cluster: Cluster, removing: Installation, pods: Pods
) -> None:
    """The node as a node group makes it: with the taint, and before anything of mpsd is there."""
    node = removing.node
    removing.put_where(_NOWHERE)
    eventually(
        lambda: not removing.pods("control") and not removing.pods("agent"),
        "neither of the two",
        within_s=90.0,
    )
    cluster.do("taint", "node", node, f"{_OURS}=:NoSchedule", f"{_OTHER}=:PreferNoSchedule")
    plain = {"name": "main", "image": removing.image, "command": ["sleep", "600"]}
    pods.create(share("asks", pods.asks(2, "hold")), share("plain", plain))
    for name in ("asks", "plain"):
        assert "taint" in pods.event(name, "FailedScheduling")
    removing.put_where(_HERE)
    eventually(lambda: _OURS not in _taints(cluster, node), "the taint is removed", within_s=180.0)
    assert _OTHER in _taints(cluster, node)
    pods.wait_until_holding("asks")
    eventually(lambda: pods.phase("plain") == "Running", "the pod without a GPU")
    serves = _became(cluster, "node", node, "MPSReady")
    for name in ("asks", "plain"):
        assert _became(cluster, "pod", name, "PodScheduled", "-n", pods.namespace) >= serves
