"""A pod of 7 GiB, and a node with 4 + 3 GiB free: with mpsd's scheduler it waits and says why,
without it fails."""

from tests.e2e.cluster import Cluster
from tests.e2e.installation import SCHEDULER, SYSTEM, UNITS, Installation
from tests.e2e.scheduler.shares_waiting import GPU_ANNOTATION, placed, said_of, shared
from tests.e2e.shares import Pods, container, share
from tests.e2e.waiting import eventually

_GIB = 7
# GiB that each of two pods leaves on its GPU, by its name
_LEFT = {"leaves-4": 4, "leaves-3": 3}


def test_what_runs_is_one_kube_scheduler_and_the_built_image_beside_it(mpsd: Installation) -> None:
    found = mpsd.pods("scheduler")
    assert len(found) == 2
    for pod in found:
        images = {status["name"]: status["image"] for status in pod["status"]["containerStatuses"]}
        assert images["scheduler"] == mpsd.image
        assert images["kube-scheduler"].endswith(mpsd.images.kube_scheduler)


def _gpus(mpsd: Installation, pods: Pods) -> dict[str, str]:
    """The GPU of each of the two, either of which may have either: one where a program was ended
    is held back for a moment. Empty until both are told of."""
    found = placed(mpsd, pods)
    return {name: found[name][0] for name in _LEFT} if found.keys() >= _LEFT.keys() else {}


def test_large_pods_get_a_gpu_each(mpsd: Installation, pods: Pods) -> None:
    eventually(mpsd.is_ledger_at_zero, "nobody else on the GPUs", within_s=60.0)
    for name, left in _LEFT.items():
        pods.create(shared(pods, name, UNITS - left))
        pods.wait_until_holding(name)
    gpus = eventually(lambda: _gpus(mpsd, pods), "the grants of both")
    assert sorted(gpus.values()) == ["gpu0", "gpu1"]


def test_a_pod_that_fits_no_single_gpu_waits_and_says_why(
    cluster: Cluster, mpsd: Installation, pods: Pods
) -> None:
    pods.create(shared(pods, "seven", _GIB))
    left = {gpu: _LEFT[name] for name, gpu in _gpus(mpsd, pods).items()}
    wanted = f"gpu0 has {left['gpu0']} of the needed {_GIB} GiB free, gpu1 {left['gpu1']}"
    eventually(
        lambda: any(wanted in said for said in said_of(pods, "seven", "FailedScheduling")), wanted
    )
    assert pods.phase("seven") == "Pending"


def test_without_the_extender_such_a_pod_is_sent_to_the_node_and_fails_there(
    cluster: Cluster, pods: Pods
) -> None:
    """What the README says of a cluster without it."""
    pods.create(share("unlucky", container(pods.image, _GIB, "hold")))
    eventually(lambda: pods.phase("unlucky") == "Failed", "kubelet's no")
    assert pods.get("unlucky")["status"]["reason"] == "UnexpectedAdmissionError"


def test_it_runs_when_a_pod_ends_on_the_gpu_that_was_written_on_it(
    mpsd: Installation, pods: Pods
) -> None:
    freed = _gpus(mpsd, pods)["leaves-4"]
    pods.delete("leaves-4")
    pods.wait_until_holding("seven", within_s=120.0)
    eventually(lambda: placed(mpsd, pods).get("seven") == (freed,), f"its devices on {freed}")
    (uuid,) = [gpu["uuid"] for gpu in mpsd.told()["gpus"] if gpu["label"] == freed]
    annotations = pods.get("seven")["metadata"]["annotations"]
    assert annotations[GPU_ANNOTATION] == uuid
    assert annotations["ALIYUN_COM_GPU_MEM_IDX"] == freed.removeprefix("gpu")


def test_nobody_lacks_a_right(cluster: Cluster, mpsd: Installation) -> None:
    for name in ("kube-scheduler", "scheduler"):
        for pod in mpsd.pods("scheduler"):
            logs = cluster.do("logs", pod["metadata"]["name"], "-n", SYSTEM, "-c", name).out
            for trouble in (
                "forbidden",
                "Permission denied",
                "Read-only file system",
                "Traceback",
                "panic",
            ):
                assert trouble not in logs, [line for line in logs.splitlines() if trouble in line]
    assert cluster.get("lease", SCHEDULER, "-n", SYSTEM)["spec"]["holderIdentity"]
