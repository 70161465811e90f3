"""Pods on MIG instances of a node: each instance is a GPU of the device plugin, and its layout
changes under them."""

import pytest

from mpsd.model.domain import State
from tests.platform.pod_cgroup import needs_cgroups
from tests.whole.machine.machine import eventually
from tests.whole.node.cluster import MEMORY, Cluster

pytestmark = needs_cgroups


GPUS = "A100:3g.40gb×2,H200"


@pytest.fixture
def cluster(cluster: Cluster) -> Cluster:
    """Divided as at the beginning."""
    cluster.divide("3g.40gb", "3g.40gb")
    cluster.until_ready()
    eventually(
        lambda: cluster.offered().get(MEMORY) == str(39 + 39 + 139), "kubelet offers all of them"
    )
    return cluster


def on(cluster: Cluster, label: str) -> dict[str, str]:
    """The annotation of a pod for which a scheduler has chosen that GPU."""
    (gpu,) = (gpu for gpu in cluster.node().gpus if gpu.label == label)
    return {"mpsd.io/gpu": gpu.uuid}


def test_a_pod_gets_a_share_of_one_instance_and_sees_no_other_gpu(cluster: Cluster) -> None:
    program = cluster.running("one", 7, 30, annotations=on(cluster, "gpu0-mig2"))

    first = program.lines[0]
    (uuid,) = cluster.grant("one").gpus
    assert (first["uuid"], first["devices"], first["total_MiB"]) == (uuid, 1, 40192)
    assert first["sms"] == 12  # 30 % of 42, in pairs
    assert first["meminfo_free_MiB"] < 7 * 1024
    assert cluster.limit_mib("gpu0-mig2") == 7 * 1024
    assert cluster.annotations("one")["mpsd.io/gpu"] == uuid
    of_parent = "0"
    eventually(
        lambda: cluster.annotations("one").get("ALIYUN_COM_GPU_MEM_IDX") == of_parent,
        "gpushare's are written",
    )


def test_a_new_layout_leaves_running_pods_and_takes_others(cluster: Cluster) -> None:
    stays = cluster.running("stays", 20, annotations=on(cluster, "gpu0-mig1"))
    goes = cluster.running("goes", 20, annotations=on(cluster, "gpu0-mig2"))
    before = cluster.daemon("gpu0-mig1"), cluster.daemon("gpu0-mig2")
    gone = cluster.grant("goes")

    cluster.divide("3g.40gb", "2g.20gb")

    eventually(
        lambda: cluster.offered().get(MEMORY) == str(39 + 19 + 139),
        "kubelet offers what is there now",
    )
    has = cluster.node_object()["status"]["capacity"][MEMORY]
    assert has == str(39 + 19 + 139 + 39), (
        "those of the instance that is gone are there, and unhealthy"
    )
    cluster.in_state(State.DRAINING, "gpu0-mig2")
    assert (cluster.daemon("gpu0-mig1"), cluster.daemon("gpu0-mig2")) == before
    assert cluster.grant("goes").gpus == gone.gpus
    eventually(
        lambda: {gpu.label for gpu in cluster.node().gpus} == {"gpu0-mig1", "gpu0-mig3", "gpu1"},
        "it is seen",
    )
    eventually(
        lambda: (
            ("gpu0-mig3", State.READY) in {(one.name, one.state) for one in cluster.node().domains}
        ),
        "it serves",
    )
    cluster.running("comes", 10, annotations=on(cluster, "gpu0-mig3"))
    eventually(
        lambda: {cluster.phase(name) for name in ("stays", "goes", "comes")} == {"Running"},
        "all of them run",
    )
    assert len(stays.runs) == len(goes.runs) == 1
    eventually(lambda: cluster.conditions()[0]["status"] == "True", "the node is ready")

    cluster.delete("goes")
    eventually(
        lambda: "gpu0-mig2" not in {one.name for one in cluster.node().domains},
        "its domain has ended",
    )
    assert {cluster.phase(name) for name in ("stays", "comes")} == {"Running"}
    assert not cluster.events("MPSDaemonDown")
    eventually(
        lambda: cluster.node_object()["status"]["capacity"][MEMORY] == str(39 + 19 + 139),
        "its devices are gone",
    )
