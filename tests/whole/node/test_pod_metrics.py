"""What Prometheus reads of pods."""

from tests.whole.machine.test_agent_metrics import now
from tests.whole.node.cluster import Cluster

CALLS = ("call", "outcome")


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
