"""What becomes of pods that take more than they were given, and what the cluster hears of it."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from mpsd.core.policy import Response
from mpsd.core.violations import Kind
from tests.edge.pod_cgroup import needs_cgroups
from tests.roles.machine import eventually
from tests.roles_kubelet.cluster import Cluster, Object, pod

pytestmark = needs_cgroups  # by which a process's pod is known

LIMIT, PIPE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_PIPE_DIRECTORY"
CLIENT = f"exec {sys.executable} -m mpsd.sim.cuda_client"


@pytest.fixture(scope="module")
def running_cluster() -> Iterator[Cluster]:
    """One on which processes may run beside MPS, and pods that do are evicted."""
    cluster = Cluster("A30")
    try:
        cluster.set_policy(
            exclusive_process=False, violations={"outside_mps": {"action": "evict"}, "in_no_pod": {"action": "observe"}}
        )
        cluster.begin()
        yield cluster
        cluster.stop()
    finally:
        cluster.destroy()


def by_shell(name: str, units: int, script: str, **environment: str) -> Object:
    made = pod(name, units)
    (container,) = made["spec"]["containers"]
    container["command"] = ["sh", "-c", script]
    container["env"] = [{"name": variable, "value": value} for variable, value in environment.items()]
    if not units:
        container["resources"] = {}
    return made


def events(cluster: Cluster, pod_name: str) -> Mapping[str, str]:
    """The last message of each reason that the pod was told."""
    found = cluster.ask("GET", "/api/v1/namespaces/default/events")["items"]
    return {one["reason"]: one["message"] for one in found if one["involvedObject"]["name"] == pod_name}


def exit_code(cluster: Cluster, name: str) -> int:
    """Of the pod's container, once it has ended."""

    def look() -> list[Any]:
        states = cluster.pod(name).get("status", {}).get("containerStatuses", [])
        return [one["state"]["terminated"]["exitCode"] for one in states if "terminated" in one.get("state", {})]

    return int(eventually(look, f"{name} has ended")[0])


def test_a_pod_over_its_grant_loses_the_process_alone_and_hears_how_much_it_used(cluster: Cluster) -> None:
    neighbour = cluster.running("neighbour", 4)
    cluster.apply(by_shell("greedy", 2, f"{LIMIT}=garbage {CLIENT} alloc=4000 hold"))
    assert exit_code(cluster, "greedy") == 137
    said = eventually(lambda: events(cluster, "greedy").get("GPUMemoryExceeded"), "the pod hears of it")
    assert "MiB of gpu0 are used where 2048 MiB were granted; it is ended" in said
    assert eventually(lambda: events(cluster, "greedy").get("GPULimitLifted"), "and of what its environment lifts")
    assert not neighbour.heard("broke")
    assert cluster.phase("neighbour") == "Running"
    (told,) = (one for one in cluster.node().violations.last if one.kind is Kind.MEMORY_OVER_GRANT)  # type: ignore[union-attr]
    assert (told.namespace, told.pod, told.action) == ("default", "greedy", Response.KILL)


def test_a_pod_may_be_evicted_for_it(cluster: Cluster) -> None:
    cluster.apply(by_shell("outside", 2, f"{PIPE}=/nowhere {CLIENT} hold"))
    eventually(lambda: cluster.is_gone("outside") or cluster.phase("outside") == "Failed", "it is evicted")
    assert "runs beside MPS on gpu0" in eventually(lambda: events(cluster, "outside").get("GPUOutsideMPS"), "it hears")
    assert "runs beside MPS on gpu0" in eventually(lambda: events(cluster, "outside").get("MPSEvicted"), "and of that")


def test_a_pod_without_a_grant_is_kept_off_the_gpu(cluster: Cluster) -> None:
    simulation = str(cluster.simulation.folder)
    cluster.apply(by_shell("stranger", 0, f"{CLIENT} hold", MPSD_SIMULATION=simulation))
    assert exit_code(cluster, "stranger") == 137
    said = eventually(lambda: events(cluster, "stranger").get("GPUWithoutGrant"), "the pod hears of it")
    assert "uses gpu0 without a grant, and its pod asks for no aliyun.com/gpu-mem; it runs beside MPS" in said
