"""What `helm template | kubectl apply` leaves on a cluster."""

from tests.e2e.cluster import Cluster
from tests.e2e.installation import (
    AGENT,
    CONFIGURATIONS,
    CONTROL,
    GPUS,
    SYSTEM,
    UNITS,
    Installation,
)
from tests.e2e.load import loading
from tests.e2e.objects import WITHOUT_HOST_IPC
from tests.e2e.shares import Pods
from tests.e2e.waiting import eventually


def test_the_daemon_is_found_as_the_published_guide_finds_it(
    cluster: Cluster, mpsd: Installation
) -> None:
    found = cluster.get("po", "-l", "app.aliyun.com/name=mps-control-daemon", "-A")["items"]
    assert [pod["spec"]["nodeName"] for pod in found] == [mpsd.node]
    assert found[0]["spec"]["priorityClassName"] == "system-node-critical"


def test_what_runs_is_the_built_image_alone(cluster: Cluster, mpsd: Installation) -> None:
    for name in ("control", "agent", "webhook"):
        for pod in mpsd.pods(name):
            assert [status["image"] for status in pod["status"]["containerStatuses"]] == [
                mpsd.image
            ]
    for owner in (f"daemonset/{CONTROL}", f"daemonset/{AGENT}", "deployment/mpsd-webhook"):
        where = cluster.do(
            "exec", owner, "-n", SYSTEM, "--", "python", "-c", "import mpsd; print(mpsd.__file__)"
        ).out
        assert where.startswith("/opt/mpsd/"), "not a mount of the checkout"


def test_kubectl_get_mps_is_the_first_look(cluster: Cluster, mpsd: Installation) -> None:
    eventually(
        lambda: mpsd.told().get("conditions", [{}])[0].get("status") == "True", "a node that serves"
    )
    header, line = cluster.do("get", "mps").out.splitlines()
    assert header.split()[:2] == ["NAME", "READY"]
    assert line.split()[:2] == [mpsd.node, "True"]
    assert f"0/{GPUS * UNITS}Gi" in line


def test_the_webhook_is_asked_through_its_service_and_fails_closed(
    cluster: Cluster, mpsd: Installation, pods: Pods
) -> None:
    for kind in CONFIGURATIONS:
        (registered,) = cluster.get(kind, "mpsd-webhook")["webhooks"]
        assert registered["clientConfig"]["service"]["name"] == "mpsd-webhook"
        assert registered["clientConfig"]["caBundle"]
    mpsd.wait_until_closed()
    said = cluster.apply(WITHOUT_HOST_IPC, pods.namespace)
    assert not said.ok
    assert "hostIPC" in said.err


def test_rolling_the_webhook_fails_no_request(
    cluster: Cluster, mpsd: Installation, pods: Pods
) -> None:
    before = {pod["metadata"]["name"] for pod in mpsd.pods("webhook")}
    with loading(cluster, pods.namespace, threads=1) as load:
        eventually(lambda: load.asked > 10, "load")
        cluster.do("rollout", "restart", "deployment/mpsd-webhook", "-n", SYSTEM)
        cluster.do("rollout", "status", "deployment/mpsd-webhook", "-n", SYSTEM, "--timeout=60s")
        asked = load.asked
        eventually(lambda: load.asked > asked + 10, "load after the last replica")
    assert load.failed == []
    assert not before & {pod["metadata"]["name"] for pod in mpsd.pods("webhook")}


def test_nobody_lacks_a_right_or_a_privilege(mpsd: Installation) -> None:
    """After the webhook was rolled: those before may have lived through API servers that had just
    started."""
    for name in ("control", "agent", "webhook"):
        logs = mpsd.logs(name)
        assert not [line for line in logs.splitlines() if "right" in line and "lacks" in line]
        assert "Operation not permitted" not in logs
        assert "Permission denied" not in logs
        assert "Read-only file system" not in logs
        assert "Traceback" not in logs
