"""One review after another over TLS: verdicts, and an error in words for everything that is no
review."""

import base64
import json
import shutil
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpsd.model.fields import MOST_FIELDS
from mpsd.platform.certificates import Pair
from mpsd.platform.limits_files import shipped_folder
from tests.whole.machine.machine import eventually
from tests.whole.scheduler.client_certificates import authority, of_client
from tests.whole.webhook.api_server import ApiServer
from tests.whole.webhook.world import Webhook, bundles, gpu_pod, is_registered, review_of, webhook

PATHS = ["/validate", "/mutate"]
GOOD = review_of(gpu_pod())
HUGE = 12


def test_hooks_are_added_as_the_version_of_the_api_server_allows_it(
    tmp_path: Path, api: ApiServer
) -> None:
    api.version = "v1.30.14-gke.1"

    def has_hook() -> bool:
        patch = running.review("/mutate", review_of(gpu_pod()), bundles(api)[0])["patch"]
        return "preStop" in str(json.loads(base64.b64decode(patch)))

    config = str(api.kubeconfig(tmp_path))
    with webhook(tmp_path, kubeconfig=config, serving_life="15s") as running:  # looks often
        eventually(lambda: is_registered(api), "registered")
        assert not has_hook()
        api.version = "v1.31.0-eks-1"
        eventually(has_hook, "the new version is seen")
        api.version = "unknown"
        eventually(lambda: not has_hook(), "the version is not known")


@pytest.mark.parametrize("path", PATHS)
def test_a_body_over_3_mib_is_refused_and_one_below_is_not(
    served: Webhook, bundle: str, path: str
) -> None:
    thing = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "a"},
        "data": {"x": "x" * 3_100_000},
    }
    with served.connect(bundle) as client:
        assert client.review(path, review_of(thing)).status == 200
    with served.connect(bundle) as client:
        answer = client.ask("POST", path, b"x" * (3 * 1024**2 + 1))
        assert (answer.status, answer.text) == (413, "the body is longer than 3145728 bytes\n")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_probes_and_metrics_are_on_both_ports(served: Webhook, bundle: str, path: str) -> None:
    assert served.public(path).status == 200
    with served.connect(bundle) as client:
        assert client.ask("GET", path).status == 200


def test_reviews_are_not_taken_without_tls(served: Webhook) -> None:
    assert served.public("/validate").status == 404


def test_what_was_found_is_counted_by_rule_and_mode(served: Webhook, bundle: str) -> None:
    finding = 'mpsd_admission_findings_total{mode="enforce",rule="host-ipc-missing"}'
    refused = 'mpsd_admission_reviews_total{verdict="refused",webhook="validate"}'
    unread = 'mpsd_admission_requests_refused_total{status="400",webhook="validate"}'
    before = [served.metric(name) for name in (finding, refused, unread)]
    served.review("/validate", review_of(gpu_pod(host_ipc=False)), bundle)
    with served.connect(bundle) as client:
        client.ask("POST", "/validate", b"")
    assert [served.metric(name) for name in (finding, refused, unread)] == [
        value + 1 for value in before
    ]
    assert served.metric('mpsd_admission_review_seconds_count{webhook="validate"}') > 0


def test_huge_objects_hold_no_small_one_up(served: Webhook, bundle: str) -> None:
    huge = gpu_pod()
    sources = [
        {"configMapRef": {"name": f"{'m' * 500}{number}"}}
        for number in range(MOST_FIELDS // 2 - 100)
    ]
    huge["spec"]["containers"][0]["envFrom"] = sources
    with ThreadPoolExecutor(4) as pool, served.connect(bundle) as client:
        answers = [
            pool.submit(served.review, "/validate", review_of(huge), bundle)
            for _turn in range(HUGE)
        ]
        small = 0
        while not all(answer.done() for answer in answers):
            assert client.review("/validate", GOOD).response["allowed"]
            small += 1
        assert all(answer.result()["allowed"] for answer in answers)
    assert small > HUGE, "most of them waited for no huge one"


def test_labels_of_the_namespace_choose_the_mode(
    served: Webhook, bundle: str, shared_api: ApiServer
) -> None:
    shared_api.put(
        "/api/v1/namespaces/lax",
        {"metadata": {"name": "lax", "labels": {"mpsd.io/enforce": "none"}}},
    )
    pod = gpu_pod(host_ipc=False)
    pod["metadata"]["namespace"] = "lax"
    assert served.review("/validate", review_of(pod, namespace="lax"), bundle)["allowed"]
    asked = len([each for each in shared_api.asked if each.path.endswith("/lax")])
    served.review("/validate", review_of(pod, namespace="lax"), bundle)
    assert len([each for each in shared_api.asked if each.path.endswith("/lax")]) == asked, (
        "it was known"
    )


def with_config_map(name: str) -> dict[str, Any]:
    pod = gpu_pod()
    pod["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": name}}]
    return pod


def test_a_config_map_behind_env_from_is_looked_into(
    served: Webhook, bundle: str, shared_api: ApiServer
) -> None:
    at = "/api/v1/namespaces/default/configmaps"
    shared_api.put(
        f"{at}/bad", {"metadata": {"name": "bad"}, "data": {"CUDA_MPS_PIPE_DIRECTORY": "/x"}}
    )
    shared_api.put(f"{at}/good", {"metadata": {"name": "good"}, "data": {"FINE": "1"}})
    assert not served.review("/validate", review_of(with_config_map("bad")), bundle)["allowed"]
    good = served.review("/validate", review_of(with_config_map("good")), bundle)
    assert good["allowed"]
    assert "environment-unseen" not in str(good)
    unknown = served.review("/validate", review_of(with_config_map("not-there")), bundle)
    assert unknown["allowed"]
    assert "environment-unseen" in str(unknown)


def test_a_claim_is_looked_into(served: Webhook, bundle: str, shared_api: ApiServer) -> None:
    pod = gpu_pod(host_ipc=False)
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    at = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"
    for name in ("mps.mpsd.io", "gpu.nvidia.com"):
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": name}}]}}
        shared_api.put(f"{at}/{name}", {"metadata": {"name": name}, "spec": {"spec": spec}})

    def is_allowed(template: str) -> bool:
        pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": template}]
        allowed: bool = served.review("/validate", review_of(pod), bundle)["allowed"]
        return allowed

    assert [is_allowed(name) for name in ("mps.mpsd.io", "gpu.nvidia.com", "not-there")] == [
        False,
        True,
        False,
    ]
    shared_api.forbidden = {("get", "resourceclaimtemplates")}
    try:
        assert is_allowed("mps.mpsd.io"), "a webhook that may not read claims judges none"
    finally:
        shared_api.forbidden = set()


def with_own_limits(folder: Path, api: ApiServer) -> tuple[Path, dict[str, str]]:
    """The shipped limits to be changed: their policy, and the flags of a webhook that has them."""
    limits = folder / "limits"
    shutil.copytree(shipped_folder(), limits)
    flags = {"kubeconfig": str(api.kubeconfig(folder)), "limits": str(limits)}
    return limits / "policy.yaml", flags


def certificate_of(signer: Pair, folder: Path, name: str = "apiserver") -> Path:
    pair = of_client(signer, name)
    path = folder / f"{name}.pem"
    path.write_bytes(pair.key + pair.certificate)
    return path


def test_only_an_api_server_with_a_certificate_is_answered(
    tmp_path: Path, shared_api: ApiServer, bundle: str
) -> None:
    clients = authority("clients")
    (tmp_path / "ca.crt").write_bytes(clients.certificate)
    shown = certificate_of(clients, tmp_path)
    forged = certificate_of(authority("clients"), tmp_path, "forged")
    flags = {"kubeconfig": str(shared_api.kubeconfig(tmp_path))}
    with webhook(tmp_path, client_ca=str(tmp_path / "ca.crt"), **flags) as one:
        one.wait_until_ready()
        for path in PATHS:
            assert one.review(path, GOOD, bundle, shown)["allowed"]
            with one.connect(bundle) as client:
                assert client.review(path, GOOD).status == 401
            with pytest.raises((ssl.SSLError, ConnectionError)), one.connect(bundle, forged) as it:
                it.review(path, GOOD)
        with one.connect(bundle) as client:
            assert client.ask("GET", "/readyz").status == 200


@pytest.mark.parametrize("content", ["", "no certificate", None])
def test_a_webhook_without_its_clients_authority_does_not_start(
    tmp_path: Path, shared_api: ApiServer, content: str | None
) -> None:
    path = tmp_path / "ca.crt"
    if content is not None:
        path.write_text(content)
    flags = {"kubeconfig": str(shared_api.kubeconfig(tmp_path)), "client_ca": str(path)}
    with webhook(tmp_path, **flags) as one:
        assert one.process.wait(30) not in (0, None)


def test_a_template_is_made_before_its_pod_and_not_in_a_dry_run(
    tmp_path: Path, shared_api: ApiServer, bundle: str
) -> None:
    policy, flags = with_own_limits(tmp_path, shared_api)
    policy.write_text(
        policy.read_text().replace("claims_for_requests: false", "claims_for_requests: true")
    )
    clients = authority("clients")
    (tmp_path / "ca.crt").write_bytes(clients.certificate)
    shown = certificate_of(clients, tmp_path)
    with webhook(tmp_path, client_ca=str(tmp_path / "ca.crt"), **flags) as one:
        one.wait_until_ready()
        assert one.review("/mutate", review_of(gpu_pod(), dryRun=True), bundle, shown)["patch"]
        assert shared_api.writes("resourceclaimtemplates") == []
        assert one.review("/mutate", review_of(gpu_pod()), bundle, shown)["patch"]
        (made,) = shared_api.writes("resourceclaimtemplates")
        assert made.body["kind"] == "ResourceClaimTemplate"
        shared_api.forbidden = {("get", "resourceclaimtemplates")}
        try:
            refused = one.review("/mutate", review_of(gpu_pod()), bundle, shown)
        finally:
            shared_api.forbidden = set()
    assert not refused["allowed"]
    assert "resourceclaimtemplates" in refused["status"]["message"]


@pytest.mark.parametrize("trouble", ["away", "slow", "forbidden"])
def test_what_cannot_be_looked_up_is_unknown_and_holds_nothing_up(
    served: Webhook, bundle: str, shared_api: ApiServer, trouble: str
) -> None:
    shared_api.away = trouble == "away"
    shared_api.delay_s = 600.0 if trouble == "slow" else 0.0
    shared_api.forbidden = (
        {("get", "configmaps"), ("get", "namespaces")} if trouble == "forbidden" else set()
    )
    pod = with_config_map("any")
    pod["metadata"]["namespace"] = trouble  # one that was asked for before may be known
    try:
        response = served.review("/validate", review_of(pod, namespace=trouble), bundle)
    finally:
        shared_api.away, shared_api.delay_s, shared_api.forbidden = False, 0.0, set()
    assert response["allowed"]
    assert "environment-unseen" in str(response)


def test_a_changed_policy_counts_without_a_restart(
    tmp_path: Path, shared_api: ApiServer, bundle: str
) -> None:
    policy, flags = with_own_limits(tmp_path, shared_api)
    with webhook(tmp_path, **flags) as one:
        one.wait_until_ready()
        mine = bundles(shared_api)[0]
        refused = review_of(gpu_pod(host_ipc=False))
        assert not one.review("/validate", refused, mine)["allowed"]
        good = policy.read_text()
        policy.write_text("version: v0\n")
        eventually(lambda: one.log("limits kept"), "it says so")
        assert one.metric("mpsd_limits_wrong") == 1
        assert not one.review("/validate", refused, mine)["allowed"]
        policy.write_text(good.replace("host-ipc-missing: enforce", "host-ipc-missing: warn"))
        eventually(lambda: one.review("/validate", refused, mine)["allowed"], "the new one counts")
        assert one.metric("mpsd_limits_wrong") == 0


FUZZ = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def ask_both(served: Webhook, bundle: str, body: bytes) -> None:
    with served.connect(bundle) as client:
        for path in PATHS:
            answer = client.ask("POST", path, body)
            assert answer.status in {200, 400}, answer.text
            if answer.status == 200:
                assert answer.response["uid"]


@FUZZ
@given(st.binary(max_size=200), st.integers(0, len(msgspec.json.encode(GOOD))))
def test_no_bytes_whatever_are_a_fault_of_ours(
    served: Webhook, bundle: str, noise: bytes, at: int
) -> None:
    whole = msgspec.json.encode(GOOD)
    ask_both(served, bundle, whole[:at] + noise + whole[at + len(noise) :])
