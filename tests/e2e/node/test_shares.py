"""What a pod gets that asks for a share, on a real kubelet and in a real container.

The pods of all tests are there at once: 48 clients a GPU are room for six of eight each.
"""

from tests.e2e.installation import MEMORY, PERCENT, UNITS, Installation
from tests.e2e.shares import Pods, assert_fills, container, sample, share
from tests.e2e.waiting import eventually


def test_a_container_that_asks_for_more_than_any_gpu_holds_is_refused_in_plain_words(
    mpsd: Installation, pods: Pods
) -> None:
    """The scheduler adds GPUs up: so much is free on this node, and on none of its GPUs."""
    pods.create(share("huge", container(mpsd.image, UNITS + 1, "hold")))
    eventually(lambda: pods.phase("huge") == "Failed", "refused")
    status = pods.get("huge")["status"]
    assert status["reason"] == "UnexpectedAdmissionError"
    assert MEMORY in status["message"]
    eventually(
        lambda: [
            event
            for event in pods.events("huge")
            if event["type"] == "Warning" and "GPU" in event["message"]
        ],
        "an event that says why",
    )


def test_the_published_sample_runs_under_its_limit(mpsd: Installation, pods: Pods) -> None:
    name = sample(pods)
    said = pods.wait_until_holding(name, "mps-sample")
    assert_fills(said, 7)

    inside = pods.environment(name, "mps-sample")
    assert inside["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=7168M"
    assert inside["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "100"
    assert inside["CUDA_MPS_PIPE_DIRECTORY"] == "/run/mpsd/client"
    assert inside["NVIDIA_VISIBLE_DEVICES"] == said[0]["uuid"]

    def gpu() -> str:
        annotations: dict[str, str] = pods.get(name)["metadata"].get("annotations") or {}
        return annotations.get("mpsd.io/gpu", "")

    assert eventually(gpu, "the agent writes its GPU") == said[0]["uuid"]
    annotations = pods.get(name)["metadata"]["annotations"]
    assert annotations["ALIYUN_COM_GPU_MEM_POD"] == "7"
    eventually(
        lambda: mpsd.granted_mib(pods.namespace).get(name) == 7168,
        "its grant in the node's MPSNode",
    )

    def is_on_mps() -> bool:
        called = f"{pods.namespace}/{name}"
        return any(
            grant["command"] == called and grant["clients"] == 1
            for grant in mpsd.status()["grants"]
        )

    eventually(is_on_mps, "its process among the clients of MPS")


def test_pods_share_a_gpu_at_the_same_time(mpsd: Installation, pods: Pods) -> None:
    sizes = {"small": 1, "middle": 2, "large": 3}
    pods.create(
        *(
            share(name, container(mpsd.image, gib, "alloc=9000", "hold"))
            for name, gib in sizes.items()
        )
    )
    said = {name: pods.wait_until_holding(name) for name in sizes}
    assert len({lines[0]["uuid"] for lines in said.values()}) == 1, "binpack"
    for name, gib in sizes.items():
        assert_fills(said[name], gib)

    wanted = {name: gib * 1024 for name, gib in sizes.items()}.items()
    eventually(lambda: wanted <= mpsd.granted_mib(pods.namespace).items(), "a grant for each")


def test_a_pod_sees_one_socket_that_it_cannot_replace(pods: Pods) -> None:
    pods.start("sees", 1)
    assert pods.run_in("sees", "ls", "-A", "/run/mpsd/client").split() == ["control"]
    (mount,) = [
        line
        for line in pods.run_in("sees", "cat", "/proc/mounts").splitlines()
        if " /run/mpsd/client " in line
    ]
    assert "ro" in mount.split()[3].split(",")
    (domain,) = {
        name
        for name in pods.run_in("sees", "ls", "-A", "/run/mpsd").split()
        if name.startswith("gpu")
    }
    assert pods.run_in("sees", "ls", "-A", f"/run/mpsd/{domain}").split() == ["gate"], (
        "nothing of the daemon's own"
    )


def test_a_pod_that_is_not_root_is_a_client_and_commands_nothing(
    mpsd: Installation, pods: Pods
) -> None:
    pods.start("asks", 1)
    pods.start("neighbour", 1)
    for command in ("quit", "set_default_device_pinned_mem_limit 0 20G", "shutdown_server -f"):
        pods.run_in(
            "asks", "sh", "-c", f"echo {command} | /run/mpsd/simulation/bin/nvidia-cuda-mps-control"
        )
    for name in ("asks", "neighbour"):
        assert pods.status(name)["state"].get("running"), "nobody was ended"
    limit = pods.run_in(
        *("asks", "sh", "-c"),
        "echo get_default_device_pinned_mem_limit 0 |"
        " /run/mpsd/simulation/bin/nvidia-cuda-mps-control",
    )
    assert "20G" not in limit


def test_a_percentage_becomes_the_containers_threads(mpsd: Installation, pods: Pods) -> None:
    asks = container(mpsd.image, 2, "hold")
    asks["resources"]["limits"][PERCENT] = "30"
    pods.create(share("part", asks))
    said = pods.wait_until_holding("part")
    assert pods.environment("part")["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    assert said[0]["sms"] <= 0.31 * 56


def test_what_an_init_container_asked_for_stays_with_its_pod(
    mpsd: Installation, pods: Pods
) -> None:
    """kubelet keeps its devices for the pod, though it tells nobody of them."""
    first = container(mpsd.image, 10, "alloc=8000", name="first")
    pods.create(
        share("phases", container(mpsd.image, 3, "alloc=9000", "hold"), initContainers=[first])
    )
    said = pods.wait_until_holding("phases")
    assert_fills(said, 3)  # the main container has its own limit
    assert pods.said("phases", "first")[1]["rc"].startswith("0:"), (
        "and the init container had its own"
    )
    eventually(
        lambda: mpsd.granted_mib(pods.namespace).get("phases") == 10240,
        "the grant of the whole pod",
    )


def test_a_pod_that_is_deleted_or_done_gives_back_what_it_held(
    mpsd: Installation, pods: Pods
) -> None:
    pods.start("short", 2)
    pods.create(share("brief", container(mpsd.image, 4, "alloc=100")))
    eventually(lambda: mpsd.granted_mib(pods.namespace).get("short"), "a grant")
    pods.delete("short")
    eventually(lambda: pods.phase("brief") == "Succeeded", "the program's end")
    eventually(
        lambda: not {"short", "brief"} & mpsd.granted_mib(pods.namespace).keys(),
        "both given back",
        within_s=60.0,
    )
