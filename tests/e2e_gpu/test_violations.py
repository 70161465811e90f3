"""Each way out of a limit, from inside a container on a real node: how it ends, what the pod hears,
who is not."""

import subprocess
import sys
from pathlib import Path

import pytest

from mpsd.bench import cuda_client
from tests.e2e.cluster import Cluster
from tests.e2e.machine import Machine
from tests.e2e.shares import BY_MPSD, LIFTED, Pods, share
from tests.e2e.waiting import eventually
from tests.e2e_gpu.installation import SIMULATE, GpuInstallation

_GIB, _TAKEN_MIB = 2, 4000
_PARTITIONING = "export CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING=1"
# Double-forked, in a session of its own, with no more environment than it needs to reach MPS.
_DETACHED = """
import os, signal, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        # The last is where simulated GPUs are.
        kept = {"PATH", "CUDA_MPS_PIPE_DIRECTORY", "MPSD_SIMULATION"}
        there = {name: value for name, value in os.environ.items() if name in kept}
        os.execvpe(sys.argv[1], sys.argv[1:], there | {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=0"})
    os._exit(0)
os.wait()
signal.pause()
"""


@pytest.fixture(scope="module", autouse=True)
def neighbour(pods: Pods) -> str:
    pods.start("neighbour", 5, "alloc=4000")
    return "neighbour"


def test_who_lifts_his_limit_and_takes_more_is_ended(pods: Pods, neighbour: str) -> None:
    pods.create(share("greedy", pods.by_shell(_GIB, LIFTED, f"alloc={_TAKEN_MIB}", "hold")))
    assert pods.exit_code("greedy", within_s=60.0) == BY_MPSD
    print(f"\n{pods.event('greedy', 'GPUMemoryExceeded')}")
    pods.assert_holds(neighbour)


@pytest.mark.skipif(bool(SIMULATE), reason="a simulated card is reached by what mpsd gives alone")
def test_who_leaves_mps_is_ended(pods: Pods, neighbour: str) -> None:
    pods.create(
        share(
            "outside",
            pods.by_shell(_GIB, "export CUDA_MPS_PIPE_DIRECTORY=/nowhere", "alloc=100", "hold"),
        )
    )
    assert pods.exit_code("outside", within_s=60.0) == BY_MPSD
    print(f"\n{pods.event('outside', 'GPUOutsideMPS')}")
    pods.assert_holds(neighbour)


def test_a_detached_child_with_a_clean_environment_is_ended_and_its_parent_is_not(
    mpsd: GpuInstallation, pods: Pods, neighbour: str
) -> None:
    asks = pods.asks(_GIB)
    asks["command"] = ["python", "-c", _DETACHED, *pods.client, f"alloc={_TAKEN_MIB}", "hold"]
    pods.create(share("detached", asks))
    print(f"\n{pods.event('detached', 'GPUMemoryExceeded')}")
    eventually(lambda: mpsd.clients_of("detached") == 0, "nobody of it on the GPU")
    assert "running" in pods.status("detached")["state"], pods.why("detached")
    pods.assert_holds(neighbour)


def test_who_lifts_his_limit_and_takes_no_more_is_reported(pods: Pods) -> None:
    pods.create(share("lifted", pods.by_shell(_GIB, LIFTED, "alloc=100", "hold")))
    pods.wait_until_holding("lifted")
    print(f"\n{pods.event('lifted', 'GPULimitLifted')}")
    pods.assert_holds("lifted")


def test_who_divides_his_threads_himself_is_reported(pods: Pods) -> None:
    pods.create(share("divided", pods.by_shell(_GIB, _PARTITIONING, "alloc=100", "hold")))
    pods.wait_until_holding("divided")
    print(f"\n{pods.event('divided', 'GPUPartitioningEnabled')}")
    pods.assert_holds("divided")


def test_more_clients_than_a_grant_may_have_are_reported_while_there_is_room(pods: Pods) -> None:
    holds = f"{' '.join(pods.client)} hold"
    asks = pods.asks(_GIB) | {"command": ["sh", "-c", f"{holds} & {holds} & exec {holds}"]}
    pods.create(share("many", asks))
    pods.wait_until_holding("many")
    print(f"\n{pods.event('many', 'GPUTooManyClients')}")
    pods.assert_holds("many")


@pytest.mark.skipif(bool(SIMULATE), reason="a simulated card is reached by what mpsd gives alone")
def test_a_pod_without_a_grant_is_ended(
    cluster: Cluster, mpsd: GpuInstallation, pods: Pods, neighbour: str
) -> None:
    """Where admission does not look, its image or its environment asks NVIDIA's runtime for the
    GPUs."""
    with cluster.namespace(exempt=True) as exempt:
        stranger = Pods(cluster, exempt, mpsd.image, pods.client)
        asks = stranger.asks(1, "alloc=100", "hold") | {"resources": {}}
        asks["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
        stranger.create(share("stranger", asks))
        assert stranger.exit_code("stranger", within_s=60.0) == BY_MPSD
        print(f"\n{stranger.event('stranger', 'GPUWithoutGrant')}")
    pods.assert_holds(neighbour)


@pytest.mark.skipif(bool(SIMULATE), reason="this machine's own programs see no simulated GPU")
def test_a_process_of_the_host_is_reported_and_left_alone(
    cluster: Cluster, mpsd: GpuInstallation, pods: Pods, machine: Machine
) -> None:
    program = [sys.executable, str(Path(cuda_client.__file__)), "alloc=100", "hold"]
    own = subprocess.Popen(program, stdout=subprocess.DEVNULL)
    try:

        def told() -> list[str]:
            selector = "reason=GPUProcessInNoPod"
            events = cluster.get("events", "-A", "--field-selector", selector)["items"]
            return [event["message"] for event in events if f"pid {own.pid} " in event["message"]]

        print(f"\n{eventually(told, 'an event of the node', within_s=14.0)[0]}")
        assert own.poll() is None
    finally:
        own.kill()
        own.wait()
