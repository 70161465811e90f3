"""What a pod gets through kubelet."""

from tests.roles.machine import eventually
from tests.roles_kubelet.cluster import Cluster


def test_a_pod_runs_on_mps_under_limits_that_come_from_the_node_alone(cluster: Cluster) -> None:
    program = cluster.running("sample", 7, 30)
    info = next(line for line in program.lines if "sms" in line)
    assert info["meminfo_free_MiB"] < 7 * 1024
    assert info["sms"] < 56 * 0.4
    grant = cluster.grant("sample")
    assert (grant.memory_mib, grant.thread_percent, grant.clients) == (7 * 1024, 30, 1)
    assert cluster.limit_mib() == 7 * 1024
    eventually(lambda: "mpsd.io/gpu" in cluster.annotations("sample"), "its annotations say where it is")


def test_the_books_are_at_zero_once_the_pod_is_gone(cluster: Cluster) -> None:
    cluster.running("sample", 7)
    cluster.delete("sample")
    cluster.until_denied()
