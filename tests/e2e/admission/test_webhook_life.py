"""The webhook killed, rolled and given new certificates, while pods come."""

from tests.e2e.cluster import Cluster
from tests.e2e.load import loading
from tests.e2e.objects import SAMPLE, WITHOUT_HOST_IPC, environment, pod
from tests.e2e.waiting import eventually
from tests.e2e.webhook import Webhook


def test_new_certificates_and_new_authorities_fail_no_request(
    cluster: Cluster, webhook: Webhook, namespace: str
) -> None:
    """Certificates live for 15 s here and authorities for 45 s, so everything is new within a
    minute."""
    first = {part: webhook.fingerprint(part) for part in ("tls", "authority")}
    seen = {part: {value} for part, value in first.items()}

    def both_are_new() -> bool:
        for part, found in seen.items():
            found.add(webhook.fingerprint(part))
        return len(seen["authority"]) > 1 and len(seen["tls"]) > 2 and not load.failed

    with loading(cluster, namespace) as load:
        eventually(lambda: load.asked > 20, "load")
        eventually(both_are_new, "a new authority and two new certificates", within_s=120)
        before = load.asked
        eventually(lambda: load.asked > before + 50, "load after the last change")
    assert load.failed == []


def test_without_the_webhook_gpu_pods_wait_and_exempt_namespaces_work(
    cluster: Cluster, webhook: Webhook, namespace: str
) -> None:
    cluster.do("apply", "-n", namespace, "-f", "-", given=pod("before", gpu=True))
    webhook.kill_all()
    try:
        said = cluster.apply(SAMPLE, namespace)
        assert not said.ok, "fails closed"
        assert "validate.mpsd.io" in said.err, "and says whose absence it is"
        assert not cluster.apply(pod("asks", gpu=True), namespace).ok
        for exempt in ("kube-system", "mpsd-system"):
            cluster.do("apply", "-n", exempt, "-f", "-", given=pod("e2e-exempt", gpu=True))
            cluster.do("delete", "pod", "e2e-exempt", "-n", exempt, "--wait=false")
        cluster.do("delete", "pod", "before", "-n", namespace, "--wait=false")
        eventually(
            lambda: not cluster.get("pods", "-n", namespace)["items"],
            "the old pod gone, webhook or not",
        )
    finally:
        webhook.start()
        webhook.start()
    webhook.wait_until_registered()
    eventually(
        lambda: "hostIPC" in cluster.apply(WITHOUT_HOST_IPC, namespace).err, "the rules kept again"
    )
    cluster.do("apply", "-n", namespace, "-f", "-", given=SAMPLE)
    cluster.do("apply", "-n", namespace, "-f", "-", given=pod("plain"))
    assert environment(cluster.get("pod", "plain", "-n", namespace)) == {
        "NVIDIA_VISIBLE_DEVICES": "void"
    }
