"""What no pod may have, and who is told."""

import json
import resource

import pytest

from mpsd.platform import local_api
from tests.whole.machine.machine import MPSD, Service, eventually
from tests.whole.node.cluster import Cluster, pod

EGPU = "POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=2048,WEIGHT=10"


@pytest.fixture(scope="module")
def gpus() -> str:
    return "A30x2"


def test_a_pod_that_asks_for_more_than_any_gpu_has_is_refused_with_the_reason(
    cluster: Cluster,
) -> None:
    """Two GPUs together would do, and that is what kubelet sees."""
    cluster.apply(pod("large", 30))
    eventually(lambda: cluster.phase("large") == "Failed", "kubelet refuses it")
    status = cluster.pod("large")["status"]
    assert status["reason"] == "UnexpectedAdmissionError"
    assert "no single GPU here has that much left" in status["message"]
    (message,) = eventually(lambda: cluster.events("AllocationRefused"), "the pod is told")
    assert "no single GPU here has that much left" in message
    assert not cluster.node().grants


def test_a_cordoned_gpu_takes_no_new_pods_and_keeps_those_it_has(cluster: Cluster) -> None:
    first, second = cluster.node().gpus
    old = cluster.running("old", 3, annotations={"mpsd.io/gpu": first.uuid})
    cluster.cordon(first.uuid)
    eventually(lambda: cluster.domain("gpu0").state == "draining", "gpu0 drains")
    eventually(
        lambda: cluster.offered()["aliyun.com/gpu-mem"] == "23",
        "its devices are not offered any more",
    )
    cluster.running("new", 3)
    assert cluster.grant("new").gpus == (second.uuid,)
    assert cluster.phase("old") == "Running"
    assert old.heard("ready")
    cluster.delete("old")
    eventually(lambda: cluster.domain("gpu0").state == "drained", "gpu0 is drained")
    cluster.cordon()
    eventually(lambda: cluster.domain("gpu0").state == "ready", "gpu0 serves again")
    cluster.until_offered()


def test_a_node_on_which_a_label_starts_nvidias_mps_daemon_takes_no_new_pods_and_keeps_those_it_has(
    cluster: Cluster,
) -> None:
    old = cluster.running("beside-nvidias", 3)
    cluster.label({"nvidia.com/mps.capable": "true"})
    names = ("gpu0", "gpu1")
    eventually(
        lambda: {cluster.domain(name).state for name in names} == {"draining", "drained"},
        "both drain",
    )
    said = "the Node's label nvidia.com/mps.capable=true starts NVIDIA's own MPS daemon"
    eventually(
        lambda: any(said in one["message"] for one in cluster.conditions()), "the Node says why"
    )
    assert cluster.phase("beside-nvidias") == "Running"
    assert old.heard("ready")
    cluster.label({"nvidia.com/gpu.deploy.device-plugin": "false"})
    eventually(
        lambda: {cluster.domain(name).state for name in names} == {"ready"}, "both serve again"
    )
    cluster.delete("beside-nvidias")
    cluster.until_offered()


def test_a_cordon_that_the_agent_cannot_write_down_ends_nothing_and_is_written_later(
    cluster: Cluster,
) -> None:
    agent, (first, _second) = cluster.agent, cluster.node().gpus
    soft, hard = resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (1, hard))  # what it has open stays open
    try:
        cluster.cordon(first.uuid)
        eventually(lambda: "cordon" in logged_steps(agent), "it is said")
    finally:
        resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (soft, hard))
    eventually(lambda: cluster.domain("gpu0").state == "drained", "gpu0 is drained")
    assert agent.running
    cluster.cordon()
    eventually(lambda: cluster.domain("gpu0").state == "ready", "gpu0 serves again")
    cluster.until_offered()


def logged_steps(agent: Service) -> set[str]:
    return {line["step"] for line in agent.logged("tried again later")}


def test_a_container_without_kubernetes_gets_nothing_beside_a_kubelet(cluster: Cluster) -> None:
    asks = {"root": "/run/runc", "id": "c1", "name": "", "environment": {"EGPU": EGPU}}
    status, body = local_api.ask(
        cluster.run_directory / "mpsd.sock", "POST", "/v1/containers", asks
    )
    assert status == 400
    assert json.loads(body)["reasons"] == ["kubelet assigns this node's GPUs to pods; create a pod"]
    asks["environment"] = {}
    assert local_api.ask(cluster.run_directory / "mpsd.sock", "POST", "/v1/containers", asks) == (
        204,
        b"",
    )


def test_no_pod_is_stopped_by_what_stops_programs(cluster: Cluster) -> None:
    cluster.running("train", 4)
    stop = cluster.start([MPSD, "stop", "default/train"])
    assert stop.exit_code() == 1
    assert "kubectl delete pod" in stop.errors
    assert cluster.phase("train") == "Running"
