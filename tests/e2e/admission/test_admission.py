"""What a person sees who applies objects to a cluster with the webhook in it."""

import base64
import json

from tests.e2e.cluster import Cluster
from tests.e2e.objects import (
    SAMPLE,
    WITHOUT_HOST_IPC,
    environment,
    pod,
    with_environment,
)
from tests.e2e.waiting import eventually
from tests.e2e.webhook import NAME, SYSTEM, Webhook


def test_the_webhook_registers_itself_and_fails_closed_only_then(
    cluster: Cluster, webhook: Webhook
) -> None:
    secret = webhook.secret()
    for configuration in webhook.configurations():
        bundle = base64.b64decode(configuration["clientConfig"]["caBundle"])
        assert secret["authority.crt"] in bundle
        assert configuration["failurePolicy"] == "Fail"
        assert configuration["timeoutSeconds"] == 5, "what the manifests say stays"
    for name in ("kube-system", SYSTEM):
        assert cluster.get("namespace", name)["metadata"]["labels"]["mpsd.io/exempt"] == "true"


def test_it_needs_no_right_beyond_those_in_the_manifests(
    cluster: Cluster, webhook: Webhook
) -> None:
    """The replicas run with the token of their service account, and what they say is that nothing
    is missing."""
    account = f"system:serviceaccount:{SYSTEM}:{NAME}"
    said = cluster.kubectl("auth", "can-i", "get", "secrets", "-n", "default", "--as", account)
    assert said.out.strip() == "no"
    for replica in webhook.replicas:
        assert "lacks the right" not in replica.log.read_text()


def test_the_sample_job_is_admitted_with_its_pod(cluster: Cluster, namespace: str) -> None:
    said = cluster.apply(SAMPLE, namespace)
    assert said.ok, said.err
    pods = eventually(lambda: cluster.get("pods", "-n", namespace)["items"], "the Job's pod")
    assert pods[0]["spec"]["hostIPC"] is True
    assert "NVIDIA_VISIBLE_DEVICES" not in environment(pods[0]), (
        "the node sets that for a container with a GPU"
    )


def test_the_sample_without_host_ipc_is_refused_at_apply_in_words_that_name_it(
    cluster: Cluster, namespace: str
) -> None:
    said = cluster.apply(WITHOUT_HOST_IPC, namespace)
    assert not said.ok
    assert "hostIPC" in said.err
    assert "denied the request" in said.err
    assert not cluster.get("jobs", "-n", namespace)["items"]


def test_a_pod_without_a_gpu_sees_none_whatever_its_image_says(
    cluster: Cluster, namespace: str
) -> None:
    cluster.do("apply", "-n", namespace, "-f", "-", given=pod("plain"))
    assert environment(cluster.get("pod", "plain", "-n", namespace)) == {
        "NVIDIA_VISIBLE_DEVICES": "void"
    }


def test_an_exempt_namespace_is_left_alone(cluster: Cluster, webhook: Webhook) -> None:
    with cluster.namespace(exempt=True) as exempt:
        said = cluster.apply(with_environment(pod("any"), NVIDIA_VISIBLE_DEVICES="all"), exempt)
        assert said.ok, said.err
        assert environment(cluster.get("pod", "any", "-n", exempt)) == {
            "NVIDIA_VISIBLE_DEVICES": "all"
        }


def test_a_namespaces_label_turns_refusals_into_warnings(cluster: Cluster, namespace: str) -> None:
    cluster.do("label", "namespace", namespace, "mpsd.io/enforce=none", "mpsd.io/warn=all")

    def is_warned() -> bool:  # labels are looked up anew every ten seconds
        said = cluster.apply(WITHOUT_HOST_IPC, namespace, "--dry-run=server")
        return said.ok and "hostIPC" in "\n".join(said.warnings)

    eventually(is_warned, "a warning in place of the refusal")


def test_an_old_bad_pod_can_be_labelled_freed_of_finalizers_and_deleted(
    cluster: Cluster, webhook: Webhook
) -> None:
    with cluster.namespace(exempt=True) as name:
        bad = with_environment(
            pod("old", gpu=True, hostIPC=False), CUDA_VISIBLE_DEVICES="0", CUDA_MPS_X="1"
        )
        bad["metadata"]["finalizers"] = ["mpsd.io/e2e"]
        cluster.do("apply", "-n", name, "-f", "-", given=bad)
        cluster.do("label", "namespace", name, "mpsd.io/exempt-")
        refused = eventually(
            lambda: (
                not cluster.apply(pod("new", gpu=True, hostIPC=False), name, "--dry-run=server").ok
            ),
            "the webhook asked again",
        )
        assert refused
        cluster.do("label", "pod", "old", "-n", name, "still=here")
        cluster.do("delete", "pod", "old", "-n", name, "--wait=false")
        cluster.do("label", "pod", "old", "-n", name, "going=yes")
        free = json.dumps({"metadata": {"finalizers": None}})
        cluster.do("patch", "pod", "old", "-n", name, "--type=merge", "-p", free)
        eventually(
            lambda: "NotFound" in cluster.kubectl("get", "pod", "old", "-n", name).err,
            "the pod gone",
        )


def test_a_pod_that_was_admitted_cannot_be_made_bad_by_an_update(
    cluster: Cluster, namespace: str
) -> None:
    cluster.do("apply", "-n", namespace, "-f", "-", given=pod("good", gpu=True))
    said = cluster.kubectl(
        "annotate", "pod", "good", "-n", namespace, "mpsd.io/gpu=GPU-of-my-choice"
    )
    assert not said.ok
    assert "mpsd.io/gpu" in said.err
