"""What pods get through kubelet, and what is said of it."""

import json
from typing import Any

from mpsd.platform import local_api
from tests.whole.machine.machine import eventually
from tests.whole.machine.test_agent_metrics import now
from tests.whole.node.cluster import NODE, Cluster, pod

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


def page(cluster: Cluster) -> Any:
    _code, body = local_api.ask(cluster.run_directory / "mpsd.sock", "GET", "/v1/page")
    return json.loads(body)


def slices(cluster: Cluster) -> list[tuple[str, str, int]]:
    found = [one for gpu in page(cluster)["gpus"] for one in gpu["slices"]]
    return [(one["holder"], one["name"], one["memoryMiB"]) for one in found]


def test_a_pod_has_its_slice_under_its_name_and_the_page_the_name_of_its_node(
    cluster: Cluster,
) -> None:
    cluster.running("sample", 7, 30)
    eventually(
        lambda: slices(cluster) == [("pod", "default/sample", 7 * 1024)], "its slice is shown"
    )
    assert page(cluster)["head"]["name"] == NODE
    cluster.delete("sample")
    eventually(lambda: slices(cluster) == [], "it is gone with the pod")


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
