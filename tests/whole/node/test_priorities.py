"""A pod's work on a GPU has the priority that the policy gives it: from kubelet's answer to what is
shown of it."""

from collections.abc import Iterator

import pytest

from mpsd.model.cuda_limit_parser import CLIENT_PRIORITY
from mpsd.platform.processes import environment_of
from tests.whole.machine.machine import eventually
from tests.whole.machine.test_agent_metrics import now
from tests.whole.node.cluster import Cluster, Object, PodProgram
from tests.whole.node.conftest import begun

BELOW = {"mpsd.io/gpu-priority": "below-normal"}
NAMES = ("namespace", "pod", "container")


@pytest.fixture(scope="module")
def running_cluster() -> Iterator[Cluster]:
    cluster = Cluster("A30")
    cluster.set_policy(gpu_priority={"by": "annotation"})
    yield from begun(cluster)


def given(program: PodProgram) -> str | None:
    """What the program was started with."""
    return (environment_of(program.heard("pid")[-1]) or {}).get(CLIENT_PRIORITY)


def grant_in_mpsnode(cluster: Cluster, name: str) -> Object:
    def look() -> list[Object]:
        found: list[Object] = cluster.mpsnode()["status"].get("grants", [])
        return [one for one in found if one["pod"] == f"default/{name}"]

    return eventually(look, f"the MPSNode has {name}")[0]


def test_a_pod_has_the_priority_of_its_annotation_wherever_it_is_shown(cluster: Cluster) -> None:
    batch = cluster.running("batch", 2, annotations=BELOW)
    serve, odd = (
        cluster.running("serve", 2),
        cluster.running("odd", 2, annotations={"mpsd.io/gpu-priority": "low"}),
    )
    assert [given(one) for one in (batch, serve, odd)] == ["1", "0", "0"]
    assert [cluster.grant(name).priority for name in ("batch", "serve", "odd")] == [1, 0, 0]
    assert grant_in_mpsnode(cluster, "batch")["priority"] == 1
    assert "priority" not in grant_in_mpsnode(cluster, "serve")
    shown = now(cluster, "mpsd_grant_below_normal", *NAMES)
    assert shown == {
        ("default", "batch", ""): 1,
        ("default", "serve", ""): 0,
        ("default", "odd", ""): 0,
    }
