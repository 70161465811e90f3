"""What Prometheus reads of pods."""

from tests.whole.machine.machine import eventually
from tests.whole.machine.test_agent_metrics import now
from tests.whole.node.cluster import Cluster

MIB = 1024**2
CALLS = ("call", "outcome")
NAMES = ("namespace", "pod", "container")


def test_a_pod_is_told_by_its_name_from_its_grant_to_its_end(cluster: Cluster) -> None:
    cluster.running("sample", 7, 30)
    name = ("default", "sample", "")
    eventually(
        lambda: now(cluster, "mpsd_grant_clients", *NAMES) == {name: 1}, "its process is told"
    )
    assert now(cluster, "mpsd_grant_limit_bytes", *NAMES, "holder") == {
        (*name, "pod"): 7 * 1024 * MIB
    }
    assert now(cluster, "mpsd_grant_threads_ratio", *NAMES) == {name: 0.3}
    (used,) = (one.used_mib for one in cluster.node().grants)
    assert now(cluster, "mpsd_grant_used_bytes", *NAMES) == {name: (used or 0) * MIB}
    cluster.delete("sample")
    eventually(lambda: not now(cluster, "mpsd_grant_limit_bytes", *NAMES), "its series end with it")


def test_what_kubelet_called_the_plugin_for_is_counted(cluster: Cluster) -> None:
    before = now(cluster, "mpsd_plugin_calls_total", *CALLS)
    cluster.running("counted", 2)
    after = now(cluster, "mpsd_plugin_calls_total", *CALLS)
    for call in ("Allocate", "PreStartContainer"):
        assert after[call, "answered"] > before[call, "answered"]
    times = now(cluster, "mpsd_plugin_call_seconds_count", "call")
    for (call,), count in times.items():
        assert count == sum(number for (of, _outcome), number in after.items() if of == call)
    assert now(cluster, "mpsd_plugin_containers_held_back") == {(): 0}
