"""What the page of an agent shows beside a kubelet."""

import json
from typing import Any

import pytest

from mpsd.platform import local_api
from tests.whole.machine.machine import eventually
from tests.whole.node.cluster import NODE, Cluster


@pytest.fixture(scope="module")
def gpus() -> str:
    return "A30x2"  # together they have what no single one has, and that is what kubelet sees


def page(cluster: Cluster) -> Any:
    _code, body = local_api.ask(cluster.run_directory / "mpsd.sock", "GET", "/v1/page")
    return json.loads(body)


def slices(cluster: Cluster) -> list[tuple[str, str, int]]:
    found = [one for gpu in page(cluster)["gpus"] for one in gpu["slices"]]
    return [(one["holder"], one["name"], one["memory_mib"]) for one in found]


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
