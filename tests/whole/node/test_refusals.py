"""What no pod may have, and who is told."""

import json

from mpsd.agent.sources import PODS_ONLY
from mpsd.platform import local_api
from tests.whole.machine.machine import MPSD, eventually
from tests.whole.node.cluster import Cluster, pod

EGPU = "POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=2048,WEIGHT=10"


GPUS = "A30x2"


def test_a_pod_that_asks_for_more_than_any_gpu_is_refused(cluster: Cluster) -> None:
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


def test_kubelet_alone_gives_gpus_and_ends_pods(cluster: Cluster) -> None:
    cluster.running("train", 4)
    socket = cluster.run_directory / "mpsd.sock"
    asks = {"root": "/run/runc", "id": "c1", "name": "", "environment": {"EGPU": EGPU}}
    status, body = local_api.ask(socket, "POST", "/v1/containers", asks)
    assert status == 400
    assert json.loads(body)["reasons"] == [PODS_ONLY]
    asks["environment"] = {}
    assert local_api.ask(socket, "POST", "/v1/containers", asks) == (204, b"")
    program = cluster.run("--gpu-mem 2", "true")
    assert program.exit_code() != 0
    assert PODS_ONLY in program.errors
    stop = cluster.start([MPSD, "stop", "default/train"])
    assert stop.exit_code() == 1
    assert "kubectl delete pod" in stop.errors
    assert cluster.phase("train") == "Running"
