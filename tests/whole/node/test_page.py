"""What the page of an agent shows beside a kubelet."""

import json
from typing import Any

import pytest

from mpsd.model.times import seconds
from mpsd.platform import local_api
from tests.whole.machine.machine import eventually
from tests.whole.node.cluster import NODE, Cluster, pod


@pytest.fixture(scope="module")
def gpus() -> str:
    return "A30x2"  # together they have what no single one has, and that is what kubelet sees


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


def test_a_pod_that_kubelet_was_refused_is_what_happened_lately_with_the_reason(
    cluster: Cluster,
) -> None:
    cluster.apply(pod("large", 30))

    def refused() -> list[str]:
        lately = page(cluster)["lately"]
        return [
            line["text"]
            for line in lately
            if (line["what"], line["where"]) == ("AllocationRefused", "default/large")
        ]

    assert "no single GPU here has that much left" in eventually(refused, "the refusal is shown")[0]


def waiting(cluster: Cluster, name: str) -> list[Any]:
    return [one for one in page(cluster)["waiting"] if one["name"] == f"default/{name}"]


def test_a_pod_that_waits_on_its_gpu_is_shown_with_the_reason_of_its_gpu_until_it_runs(
    cluster: Cluster,
) -> None:
    cluster.replace_control_program("exit 1")
    for gpu in ("gpu0", "gpu1"):
        cluster.kill(cluster.daemon(gpu))
    cluster.apply(pod("late", 7, 30))
    cluster.apply(pod("elsewhere", 7, nodeName="another-node"))
    try:
        gpu_is_down = "its containers start as soon as that is over"

        def told_why() -> list[Any]:
            return [one for one in waiting(cluster, "late") if gpu_is_down in one["text"]]

        (one,) = eventually(told_why, "it is told why")
        assert one["text"].startswith("pod default/late waits on gpu")
        assert (one["why"], one["memory_mib"], one["thread_percent"]) == (
            "not-started",
            7 * 1024,
            30,
        )
        assert one["since"] == seconds(bound_at(cluster, "late"))
        assert waiting(cluster, "elsewhere") == []
        eventually(
            lambda: page(cluster)["head"]["pods"] == {"away": "", "since": None},
            "its pods are heard of",
        )
    finally:
        cluster.restore_control_program()
    eventually(lambda: cluster.phase("late") == "Running", "it runs")
    eventually(lambda: not waiting(cluster, "late"), "it waits no more")


def bound_at(cluster: Cluster, name: str) -> str:
    conditions = cluster.pod(name)["status"]["conditions"]
    return next(
        str(one["lastTransitionTime"]) for one in conditions if one["type"] == "PodScheduled"
    )
