"""What a pod gets through kubelet, and where it is shown."""

import json

from mpsd.model.cuda_limit_parser import CLIENT_PRIORITY
from mpsd.platform import local_api
from mpsd.platform.process_environment import environment_of
from tests.whole.machine.machine import eventually
from tests.whole.node.cluster import NODE, Cluster, Object, PodProgram, pod

A30_SMS = 56
POLICY = {"gpu_priority": {"by": "annotation"}}
BELOW = {"mpsd.io/gpu-priority": "below-normal"}


def page(cluster: Cluster) -> Object:
    _code, body = local_api.ask(cluster.run_directory / "mpsd.sock", "GET", "/v1/page")
    return json.loads(body)


def slices(cluster: Cluster) -> list[tuple[str, str, int]]:
    found = [one for gpu in page(cluster)["gpus"] for one in gpu["slices"]]
    return [(one["holder"], one["name"], one["memoryMiB"]) for one in found]


def reported(cluster: Cluster) -> list[tuple[object, ...]]:
    fields = ("pod", "memoryMiB", "reservedPercent", "priority")
    status = cluster.mpsnode()["status"]
    return [tuple(map(grant.get, fields)) for grant in status.get("grants", ())]


def priority_of(program: PodProgram) -> str | None:
    return (environment_of(program.heard("pid")[-1], (CLIENT_PRIORITY,)) or {}).get(CLIENT_PRIORITY)


def test_a_pod_runs_under_limits_of_the_node_and_is_shown(cluster: Cluster) -> None:
    program = cluster.running("sample", 7, 30, annotations=BELOW)
    info = next(line for line in program.lines if "sms" in line)
    assert info["meminfo_free_MiB"] < 7 * 1024
    assert info["sms"] <= A30_SMS * 30 / 100 + 2
    assert priority_of(program) == "1"
    grant = cluster.grant("sample")
    assert (grant.memory_mib, grant.thread_percent, grant.priority) == (7 * 1024, 30, 1)
    eventually(lambda: cluster.grant("sample").clients == 1, "its process is known by its cgroup")
    assert cluster.limit_mib() == 7 * 1024
    rows: list[tuple[object, ...]] = [("default/sample", 7 * 1024, 30, 1)]
    eventually(lambda: reported(cluster) == rows, "the MPSNode names its pod")
    assert cluster.mpsnode()["status"]["summary"]["pods"] == 1
    assert [one["status"] for one in cluster.conditions()] == ["True"]
    eventually(lambda: slices(cluster) == [("pod", "default/sample", 7 * 1024)], "the page too")
    assert page(cluster)["head"]["name"] == NODE
    cluster.delete("sample")
    eventually(lambda: slices(cluster) == [], "it is gone with the pod")


def test_two_pods_that_come_at_once_are_not_taken_for_each_other(cluster: Cluster) -> None:
    """They ask for the same memory, and kubelet does not say which of them it asks for."""
    cluster.apply(pod("one", 3, 50))
    cluster.apply(pod("other", 3))
    programs = [cluster.program_of(name) for name in ("one", "other")]
    one, other = (next(line for line in each.lines if "sms" in line) for each in programs)
    assert one["sms"] <= A30_SMS / 2 + 2
    assert other["sms"] == A30_SMS
