"""What pods get through kubelet, and what is said of it."""

from tests.whole.machine.machine import eventually
from tests.whole.node.cluster import Cluster, pod

A30_SMS = 56


def test_a_pod_runs_on_mps_under_limits_that_come_from_the_node_alone(cluster: Cluster) -> None:
    program = cluster.running("sample", 7, 30)
    info = next(line for line in program.lines if "sms" in line)
    assert info["meminfo_free_MiB"] < 7 * 1024
    assert info["sms"] <= A30_SMS * 30 / 100 + 2
    grant = cluster.grant("sample")
    assert (grant.memory_mib, grant.thread_percent) == (7 * 1024, 30)
    eventually(lambda: cluster.grant("sample").clients == 1, "its process is known by its cgroup")
    assert cluster.limit_mib() == 7 * 1024


def test_two_pods_that_come_at_once_are_not_taken_for_each_other(cluster: Cluster) -> None:
    """They ask for the same memory, and kubelet does not say which of them it asks for."""
    cluster.apply(pod("one", 3, 50))
    cluster.apply(pod("other", 3))
    sms = {
        name: next(line for line in cluster.program_of(name).lines if "sms" in line)["sms"]
        for name in ("one", "other")
    }
    assert sms["one"] <= A30_SMS / 2 + 2
    assert sms["other"] == A30_SMS


def test_the_cluster_is_told_of_the_node(cluster: Cluster) -> None:
    cluster.running("sample", 7, 30)
    told = ("pod", "memoryMiB", "reservedPercent")
    eventually(
        lambda: (
            [
                tuple(grant[field] for field in told)
                for grant in cluster.mpsnode()["status"]["grants"]
            ]
            == [("default/sample", 7 * 1024, 30)]
        ),
        "the MPSNode names its pod, and no longer that of the test before",
    )
    assert cluster.mpsnode()["status"]["summary"]["pods"] == 1
    conditions = {
        one["type"]: one["status"] for one in cluster.node_object()["status"]["conditions"]
    }
    assert conditions["MPSReady"] == "True"


def test_programs_of_the_host_get_no_grant_beside_a_kubelet(cluster: Cluster) -> None:
    program = cluster.run("--gpu-mem 2", "true")
    assert program.exit_code() != 0
    assert "kubelet assigns this node's GPUs to pods" in program.errors
