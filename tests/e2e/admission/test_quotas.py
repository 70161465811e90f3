"""The quotas of docs/queues.md, as the API server counts them."""

from collections.abc import Iterator

import pytest
import yaml

from tests.docs.pages import page
from tests.e2e.cluster import Cluster, Object
from tests.e2e.objects import pod
from tests.e2e.waiting import eventually

MEMORY, PERCENT = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"
_PAGE = [
    yaml.safe_load(fence.text)
    for fence in page("docs/queues.md").fences
    if fence.text.count("apiVersion: v1\n")
]
QUOTA, RANGE = (
    {one["kind"]: one for one in _PAGE}[kind] for kind in ("ResourceQuota", "LimitRange")
)


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """Without mpsd: the API server counts by itself."""
    with cluster.namespace(exempt=True) as name:
        yield name


def _pod(name: str, gib: int = 0, percent: int = 0) -> Object:
    limits = {key: str(value) for key, value in ((MEMORY, gib), (PERCENT, percent)) if value}
    return pod(
        name,
        containers=[{"name": "main", "image": "local/busybox:1", "resources": {"limits": limits}}],
    )


def _create(cluster: Cluster, namespace: str, thing: Object) -> str:
    """Why it was refused; empty where it was not."""
    return cluster.kubectl("create", "-n", namespace, "-f", "-", given=thing).err


def _limits(cluster: Cluster, namespace: str, name: str) -> Object:
    found: Object = cluster.get("pod", name, "-n", namespace)["spec"]["containers"][0][
        "resources"
    ].get("limits", {})
    return found


def test_a_quota_bounds_memory_and_threads_of_a_namespace_and_leaves_other_pods_alone(
    cluster: Cluster, namespace: str
) -> None:
    cluster.do("apply", "-n", namespace, "-f", "-", given=QUOTA)
    eventually(
        lambda: "used" in cluster.get("quota", "gpu-shares", "-n", namespace).get("status", {}),
        "it counts",
    )
    assert _create(cluster, namespace, _pod("most", 20, 60)) == ""
    assert "exceeded quota: gpu-shares, requested: requests.aliyun.com/gpu-mem=5" in _create(
        cluster, namespace, _pod("more-memory", 5)
    )
    assert "requests.aliyun.com/gpu-core.percentage=41" in _create(
        cluster, namespace, _pod("more-threads", 1, 41)
    )
    assert _create(cluster, namespace, _pod("rest", 4, 40)) == ""
    assert _create(cluster, namespace, _pod("other")) == ""


def test_a_limit_range_refuses_what_is_too_much_and_gives_a_share_to_whoever_asks_for_none(
    cluster: Cluster, namespace: str
) -> None:
    cluster.do("apply", "-n", namespace, "-f", "-", given=RANGE)
    eventually(
        lambda: (
            "maximum aliyun.com/gpu-mem usage per Container is 8"
            in _create(cluster, namespace, _pod("much", 9))
        ),
        "it is in force",
    )
    assert _create(cluster, namespace, _pod("fits", 8)) == ""
    assert _create(cluster, namespace, _pod("other")) == ""
    assert [_limits(cluster, namespace, name)[MEMORY] for name in ("fits", "other")] == ["8", "2"]


def test_a_maximum_alone_gives_that_much_to_whoever_asks_for_none(
    cluster: Cluster, namespace: str
) -> None:
    alone = RANGE | {"spec": {"limits": [{"type": "Container", "max": {MEMORY: 8}}]}}
    cluster.do("apply", "-n", namespace, "-f", "-", given=alone)
    eventually(lambda: "maximum" in _create(cluster, namespace, _pod("much", 9)), "it is in force")
    assert _create(cluster, namespace, _pod("other")) == ""
    assert _limits(cluster, namespace, "other") == {MEMORY: "8"}
