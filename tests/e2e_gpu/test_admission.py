"""The webhook and mpsd's scheduler beside a real node: what is refused, and who is placed where."""

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.installation import MEMORY
from tests.e2e.objects import WITHOUT_HOST_IPC
from tests.e2e.plugins import kubectl_mps
from tests.e2e.shares import Pods, share
from tests.e2e.waiting import eventually
from tests.e2e_gpu.installation import GpuInstallation


@pytest.fixture(autouse=True)
def needs_a_scheduler(mpsd: GpuInstallation) -> None:
    if not mpsd.images.kube_scheduler:
        pytest.skip("MPSD_E2E_KUBE_SCHEDULER names no image of kube-scheduler")


def test_the_webhook_fails_closed_and_refuses(
    cluster: Cluster, mpsd: GpuInstallation, pods: Pods
) -> None:
    mpsd.wait_until_closed()
    said = cluster.apply(WITHOUT_HOST_IPC, pods.namespace)
    assert not said.ok
    assert "hostIPC" in said.err
    print(f"\n{said.err}")


def test_the_scheduler_places_a_pod_and_says_of_another_why_it_waits(
    cluster: Cluster, mpsd: GpuInstallation, pods: Pods
) -> None:
    pods.start("placed", 3, "alloc=1000", schedulerName="mpsd-scheduler")
    said = pods.said("placed")
    assert pods.get("placed")["metadata"]["annotations"]["mpsd.io/gpu"] == said[0]["uuid"]
    largest = max(gpu["memoryMiB"] for gpu in mpsd.gpus()) // 1024
    if int(mpsd.allocatable()[MEMORY]) > largest:
        wanted = largest + 1  # the node has it, and none of its GPUs
    else:
        wanted = largest - 1
        pods.create(share("fills", pods.asks(5, "hold"), schedulerName="mpsd-scheduler"))
    pods.create(share("waits", pods.asks(wanted, "hold"), schedulerName="mpsd-scheduler"))

    def why() -> str:
        found = [
            event["message"]
            for event in pods.events("waits")
            if event["reason"] == "FailedScheduling"
        ]
        assert found, pods.phase("waits")
        return str(found[-1])

    said = eventually(why, "why it waits")
    explained = kubectl_mps(cluster, "explain", "waits", "-n", pods.namespace).out
    print(f"\n{said}\n{explained}")
    assert f"{wanted} GiB" in explained
    assert pods.phase("waits") == "Pending"
