"""What pods can be today: with sidecars, users of their own and devices by CDI, resized, looked
into, static."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.cluster import Cluster, Object
from tests.e2e.installation import AGENT, SYSTEM, Installation
from tests.e2e.machine import Machine
from tests.e2e.plugins import kubectl_mps
from tests.e2e.shares import Pods, assert_fills, container, share
from tests.e2e.versions import needs
from tests.e2e.waiting import eventually

_STRATEGY = "MPSD_DEVICE_LIST_STRATEGY"


def test_a_sidecar_keeps_its_memory_beside_that_of_the_main_container(
    cluster: Cluster, mpsd: Installation, pods: Pods
) -> None:
    needs(cluster, 29, "sidecars")
    side = container(mpsd.image, 2, "alloc=9000", "hold", name="side") | {"restartPolicy": "Always"}
    pods.create(
        share("sidecar", container(mpsd.image, 3, "alloc=9000", "hold"), initContainers=[side])
    )
    assert_fills(pods.wait_until_holding("sidecar"), 3)
    assert_fills(pods.said("sidecar", "side"), 2)
    eventually(lambda: mpsd.granted_mib(pods.namespace).get("sidecar") == 5120, "one grant of both")


def test_a_running_pod_is_resized_and_its_program_notices_nothing(
    cluster: Cluster, pods: Pods
) -> None:
    needs(cluster, 33, "resize")
    asks = container(pods.image, 2, "hold")
    asks["resources"]["limits"]["cpu"] = "100m"
    pods.create(share("resized", asks))
    pods.wait_until_holding("resized")
    before = pods.status("resized")["containerID"]

    def resize(**amounts: str) -> Object:
        sized = {"name": "main", "resources": {"limits": amounts, "requests": amounts}}
        return {"spec": {"containers": [sized]}}

    asked = ("patch", "pod", "resized", "-n", pods.namespace, "--subresource=resize", "-p")
    cluster.do(*asked, json.dumps(resize(cpu="200m")))
    eventually(
        lambda: pods.status("resized")["resources"]["limits"]["cpu"] == "200m",
        "the new amount in its status",
    )
    assert (pods.status("resized")["containerID"], pods.status("resized")["restartCount"]) == (
        before,
        0,
    )
    assert not cluster.kubectl(*asked, json.dumps(resize(**{"aliyun.com/gpu-mem": "9"}))).ok, (
        "devices cannot be"
    )


def test_who_looks_into_a_pod_by_kubectl_debug_gets_no_gpu_and_no_way_round(
    cluster: Cluster, pods: Pods
) -> None:
    needs(cluster, 30, "kubectl debug with profiles")
    pods.start("looked-into", 2)
    debug = (
        "debug",
        "looked-into",
        "-n",
        pods.namespace,
        "--image=local/busybox:1",
        "--image-pull-policy=Never",
    )
    refused = cluster.kubectl(*debug, "--profile=general", "-c", "general", "--", "sleep", "60")
    assert not refused.ok
    assert "SYS_PTRACE" in refused.err
    cluster.do(*debug, "--profile=restricted", "-c", "restricted", "--", "sleep", "60")

    def environment() -> dict[str, str]:
        return pods.environment("looked-into", "restricted")

    seen = eventually(environment, "the container runs")
    assert seen["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert not [name for name in seen if name.startswith("CUDA_")]


def test_the_status_of_a_pod_names_its_sick_devices(
    cluster: Cluster, mpsd: Installation, pods: Pods
) -> None:
    """From what the device plugin tells kubelet; a GPU that takes nobody new counts as sick
    there."""
    needs(cluster, 36, "allocatedResourcesStatus")
    pods.start("healthy", 2)

    def health() -> set[str]:
        told = pods.status("healthy")["allocatedResourcesStatus"]
        return {device["health"] for resource in told for device in resource["resources"]}

    eventually(lambda: health() == {"Healthy"}, "well")
    kubectl_mps(cluster, "cordon", mpsd.node)
    try:
        eventually(lambda: health() == {"Unhealthy"}, "cordoned")
    finally:
        kubectl_mps(cluster, "uncordon", mpsd.node)
    eventually(lambda: health() == {"Healthy"}, "well again")
    assert pods.status("healthy")["restartCount"] == 0


def test_a_pod_in_a_user_namespace_has_its_limit(
    cluster: Cluster, mpsd: Installation, pods: Pods
) -> None:
    """Without hostIPC, which Kubernetes forbids there: so in a namespace that admission leaves
    alone."""
    handlers = cluster.get("node", mpsd.node)["status"].get("runtimeHandlers", ())
    if not any(handler.get("features", {}).get("userNamespaces") for handler in handlers):
        pytest.skip("the node's container runtime knows no user namespaces")
    with cluster.namespace(exempt=True) as exempt:
        inside = Pods(cluster, exempt, mpsd.image)
        pod = share(
            "mapped", container(mpsd.image, 3, "alloc=9000", "hold"), hostUsers=False, hostIPC=False
        )
        inside.create(pod)
        assert_fills(inside.wait_until_holding("mapped"), 3)
        mapped = inside.run_in("mapped", "cat", "/proc/self/uid_map").split()
        assert mapped[1] != "0", "its root is nobody on the host"
        eventually(lambda: mpsd.granted_mib(exempt).get("mapped") == 3072, "its grant")
    eventually(lambda: not mpsd.granted_mib(exempt), "given back", within_s=60.0)


@pytest.mark.parametrize("strategy", ["cdi-cri", "cdi-annotations"])
def test_a_container_gets_its_gpu_by_cdi(
    cluster: Cluster, mpsd: Installation, pods: Pods, machine: Machine, strategy: str
) -> None:
    needs(cluster, 31, "CDI devices by kubelet")
    uuids = [gpu["uuid"] for gpu in mpsd.told()["gpus"]]
    devices = [{"name": uuid, "containerEdits": {"env": [f"BY_CDI={uuid}"]}} for uuid in uuids]
    cdi = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices}
    (machine.state / "cdi" / "e2e.json").write_text(json.dumps(cdi))
    with _strategy(cluster, mpsd, strategy):
        pods.start(strategy, 2)
        seen = pods.environment(strategy)
        assert seen["BY_CDI"] in uuids
        assert seen["NVIDIA_VISIBLE_DEVICES"] == "void", "nothing by a variable"


@contextmanager
def _strategy(cluster: Cluster, mpsd: Installation, strategy: str) -> Iterator[None]:

    def roll(setting: str) -> None:
        cluster.do("set", "env", f"daemonset/{AGENT}", "-n", SYSTEM, setting)
        cluster.do("rollout", "status", f"daemonset/{AGENT}", "-n", SYSTEM, "--timeout=50s")
        mpsd.wait_until_offered()

    roll(f"{_STRATEGY}={strategy}")
    try:
        yield
    finally:
        roll(f"{_STRATEGY}=envvar")


def test_a_static_pod_has_its_limit_and_is_known_by_its_name(
    cluster: Cluster, mpsd: Installation, pods: Pods, machine: Machine
) -> None:
    """Kubelet runs it from a file, without asking the API server."""
    pod = share("fixed", container(mpsd.image, 3, "alloc=9000", "hold"))
    pod["metadata"]["namespace"] = pods.namespace
    file = machine.state / "static" / "fixed.json"
    file.write_text(json.dumps(pod))
    name = f"fixed-{mpsd.node}"
    try:
        eventually(
            lambda: cluster.kubectl("get", "pod", name, "-n", pods.namespace).ok,
            "its copy in the API",
        )
        assert_fills(pods.wait_until_holding(name), 3)

        def clients() -> int:
            grants = mpsd.told().get("grants", ())
            return sum(
                grant["clients"] for grant in grants if grant["pod"] == f"{pods.namespace}/{name}"
            )

        eventually(lambda: clients() == 1, "its program counted for it")
    finally:
        file.unlink()
    eventually(lambda: name not in mpsd.granted_mib(pods.namespace), "given back", within_s=60.0)
