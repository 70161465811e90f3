"""Pods of several GPUs on a node whose policy lists no `domains`: their GPUs are joined while
nobody else uses them."""

import json
from collections.abc import Callable

import pytest

from mpsd.platform import local_api
from mpsd.platform.processes import identity_of
from mpsd.simulator.card import Quirk
from tests.platform.pod_cgroup import needs_cgroups
from tests.whole.machine.machine import eventually
from tests.whole.node.cluster import Cluster, Object, pod

pytestmark = needs_cgroups
COUNT = "aliyun.com/gpu-count"


GPUS = "A30×3"
WAITS = {"mpsd.mps.records._IDLE_S": 1.0}


def pod_of_two(name: str = "two", gib: int = 12, **more: object) -> Object:
    return pod(name, gib, labels={COUNT: "2"}, **more)


def on(cluster: Cluster, *ordinals: int) -> dict[str, str]:
    return {"mpsd.io/gpu": ",".join(cluster.simulation.gpus[ordinal].uuid for ordinal in ordinals)}


def names(cluster: Cluster) -> set[str]:
    return {domain.name for domain in cluster.node().domains}


def kinds_of(cluster: Cluster) -> dict[str, str]:
    """Of the domains, as the MPSNode says."""
    return {one["name"]: one["kind"] for one in cluster.mpsnode()["status"]["domains"]}


def until_alone(cluster: Cluster) -> None:
    eventually(lambda: names(cluster) == {"gpu0", "gpu1", "gpu2"}, "its GPUs are alone again")
    cluster.until_ready()


def test_a_pod_of_two_gpus_sees_half_of_its_request_on_each(cluster: Cluster) -> None:
    neighbour = cluster.running("neighbour", 3, annotations=on(cluster, 2))
    (grant,) = cluster.node().grants
    assert grant.gpus == (cluster.simulation.gpus[2].uuid,)
    before = cluster.daemon("gpu2")

    cluster.apply(pod_of_two())
    program = cluster.program_of("two")

    seen = [line for line in program.lines if "meminfo_free_MiB" in line]
    assert all(line["meminfo_free_MiB"] < 6 * 1024 for line in seen)
    assert set(cluster.grant("two").gpus) == {gpu.uuid for gpu in cluster.simulation.gpus[:2]}
    assert cluster.grant("two").memory_mib == 6 * 1024
    assert names(cluster) == {"gpu0-1", "gpu2"}
    assert cluster.limit_mib("gpu0-1") == 6 * 1024
    assert cluster.daemon("gpu2") == before
    assert len(neighbour.runs) == 1
    assert cluster.phase("neighbour") == "Running"
    kinds = {"gpu0-1": "joined", "gpu2": "alone"}
    eventually(lambda: kinds_of(cluster) == kinds, "the MPSNode says which domain is joined")
    until = ("neighbour", "two")
    for name in until:
        cluster.delete(name)
    until_alone(cluster)


def reason_of(cluster: Cluster) -> str:
    (condition,) = cluster.mpsnode()["status"]["conditions"]
    return str(condition["reason"])


def lose(cluster: Cluster, *, now: bool) -> None:
    cluster.card(1).lost = now


def hang(cluster: Cluster, *, now: bool) -> None:
    cluster.card(1).quirks = Quirk.HANGS if now else Quirk(0)


def tell_no_memory(cluster: Cluster, *, now: bool) -> None:
    cluster.card(1).quirks = Quirk.TELLS_NO_MEMORY if now else Quirk(0)


@pytest.mark.parametrize("put", [lose, hang, tell_no_memory])
def test_pods_begin_and_end_beside_a_gpu_in_trouble(
    cluster: Cluster, put: Callable[..., None]
) -> None:
    cluster.running("there", 3, annotations=on(cluster, 1))
    put(cluster, now=True)
    eventually(lambda: reason_of(cluster) == "GPUUnavailable", "its node says so")
    eventually(lambda: cluster.events("GPUUnavailable", "there"), "its pod is told")
    cluster.control.kill()
    cluster.control = cluster.service("control")
    cluster.restart_agent()
    eventually(lambda: cluster.domain("gpu1").state == "refused", "it is refused by the next mpsd")
    killed = cluster.daemon("gpu0")
    cluster.kill(killed)
    cluster.new_daemon(killed, "gpu0")

    cluster.running("here", 3, annotations=on(cluster, 0))
    first = identity_of(cluster.program_of("here").heard("pid")[0])
    assert first
    eventually(lambda: cluster.grant("here").clients == 1, "its process is known")
    assert cluster.grant("there").clients is None
    asks = {"root": "/r", "id": "c1", "signum": 9, "pid": first.pid}
    asks["start_ticks"] = first.start_ticks
    socket = cluster.run_directory / "mpsd.sock"
    code, body = local_api.ask(socket, "POST", "/v1/containers/end", asks)
    assert (code, json.loads(body)["ended"]) == (200, 1)
    cluster.delete("here")
    eventually(lambda: [one.pod for one in cluster.node().grants] == ["default/there"], "it ends")

    put(cluster, now=False)
    eventually(lambda: reason_of(cluster) == "AllServe", "it is seen again")
    eventually(lambda: cluster.grant("there").clients == 1, "its process is known again")
    cluster.delete("there")


def test_pods_begin_and_end_beside_a_gpu_that_is_sick(cluster: Cluster) -> None:
    cluster.running("there", 3, annotations=on(cluster, 1))
    cluster.card(1).post_xid(79)
    eventually(lambda: reason_of(cluster) == "GPUSick", "its node says so")
    eventually(lambda: cluster.events("GPUSick", "there"), "its pod is told")
    assert cluster.phase("there") == "Running"
    cluster.running("here", 3, annotations=on(cluster, 0))
    cluster.delete("here")
    eventually(lambda: [one.pod for one in cluster.node().grants] == ["default/there"], "it ends")
    cluster.delete("there")
    eventually(lambda: reason_of(cluster) == "AllServe", "its canary has passed")
    cluster.running("again", 3, annotations=on(cluster, 1))
    cluster.delete("again")
