"""What Prometheus reads of pods."""

from tests.roles.machine import eventually
from tests.roles.test_agent_metrics import now
from tests.roles_kubelet.cluster import Cluster

MIB = 1024**2
NAMES = ("namespace", "pod", "container")


def test_a_pod_is_told_by_its_name_from_its_grant_to_its_end(cluster: Cluster) -> None:
    cluster.running("sample", 7, 30)
    name = ("default", "sample", "")
    eventually(lambda: now(cluster, "mpsd_grant_clients", *NAMES) == {name: 1}, "its process is told")
    assert now(cluster, "mpsd_grant_limit_bytes", *NAMES, "holder") == {(*name, "pod"): 7 * 1024 * MIB}
    assert now(cluster, "mpsd_grant_threads_ratio", *NAMES) == {name: 0.3}
    (used,) = (one.used_mib for one in cluster.node().grants)
    assert now(cluster, "mpsd_grant_used_bytes", *NAMES) == {name: (used or 0) * MIB}
    cluster.delete("sample")
    eventually(lambda: not now(cluster, "mpsd_grant_limit_bytes", *NAMES), "its series end with it")
