"""What the webhook's manifests promise: few rights, a tight pod, no lock-out at birth."""

from collections.abc import Iterator

import pytest

from mpsd.admission.settings import WebhookSettings, webhook_settings
from mpsd.model.names import WEBHOOK
from mpsd.model.policy import HostIPC, RuleId, RuleMode
from tests.manifests.helm import merged, rendered_by_helm
from tests.manifests.rendering import (
    ALL,
    LATEST,
    OLD,
    PLAIN,
    Object,
    assert_confined,
    container_of,
    named,
    of_kind,
    only,
    pod_of,
    policy_of,
    rendered,
    values_of,
    workload,
)

_WITH_WEBHOOK = [place for place in ALL if "policies" not in place]
_FAIL_OPEN = [place for place in _WITH_WEBHOOK if place != "cert-manager-fail-closed"]
_CONFIGURATIONS = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")


def _settings() -> WebhookSettings:
    """As the Deployment starts it, which gives no names of its own."""
    return webhook_settings({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})


def _limits(place: str) -> dict[str, str]:
    return named(place, "ConfigMap", "mpsd-limits")["data"]


def _rules(place: str) -> Iterator[Object]:
    for kind in ("Role", "ClusterRole"):
        for role in of_kind(place, kind):
            if role["metadata"]["name"] == "mpsd-webhook":
                yield from role["rules"]


@pytest.mark.parametrize("place", _WITH_WEBHOOK)
def test_no_right_reaches_another_secret(place: str) -> None:
    for rule in _rules(place):
        if "secrets" in rule["resources"]:
            named = rule.get("resourceNames") == [_settings().secret]
            assert named or rule["verbs"] == ["create"], (
                "a right to create cannot name what is created"
            )
    for role in of_kind(place, "ClusterRole"):
        assert not any("secrets" in rule.get("resources", ()) for rule in role["rules"]), (
            "Secrets of its namespace alone"
        )


def test_with_cert_manager_it_may_touch_no_secret_and_no_webhook_configuration() -> None:
    assert not any("secrets" in rule["resources"] for rule in _rules("cert-manager"))
    assert not of_kind("cert-manager", "RoleBinding")
    writing = [rule for rule in _rules("cert-manager") if {*rule["verbs"]} != {"get"}]
    assert [rule["resources"] for rule in writing] == [["namespaces"]]


def test_with_cert_manager_the_manifests_say_fail_in_a_second_step_and_nothing_else() -> None:
    first, second = (rendered(name) for name in ("cert-manager", "cert-manager-fail-closed"))
    differing = [thing for thing in second if thing not in first]
    assert sorted(thing["kind"] for thing in differing) == sorted(_CONFIGURATIONS)
    for thing in differing:
        (webhook,) = thing["webhooks"]
        assert webhook["failurePolicy"] == "Fail"
        assert thing | {"webhooks": [webhook | {"failurePolicy": "Ignore"}]} in first


@pytest.mark.parametrize("place", _WITH_WEBHOOK)
def test_the_pods_may_do_little_and_outlive_a_drain(place: str) -> None:
    deployment = workload(place, "mpsd-webhook")
    assert deployment["replicas"] == 2
    pod = deployment["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["terminationGracePeriodSeconds"] >= _settings().drain_s + 10, (
        "10 s for the last requests"
    )
    assert not any(pod.get(key) for key in ("hostNetwork", "hostPID", "hostIPC"))
    for container in pod["containers"]:
        assert_confined(container)
        assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("place", _WITH_WEBHOOK)
def test_ports_and_names_are_the_programs_own(place: str) -> None:
    settings = _settings()
    container = container_of(place, "mpsd-webhook")
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"https": settings.port, "metrics": settings.metrics_port}
    service = only(place, "Service")
    assert (service["metadata"]["name"], service["metadata"]["namespace"]) == (
        settings.service,
        settings.namespace,
    )
    assert service["spec"]["selector"].items() <= (
        workload(place, "mpsd-webhook")["template"]["metadata"]["labels"].items()
    )


@pytest.mark.parametrize("place", _FAIL_OPEN)
@pytest.mark.parametrize("kind", _CONFIGURATIONS)
def test_as_shipped_nothing_depends_on_the_webhook(place: str, kind: str) -> None:
    (webhook,) = only(place, kind)["webhooks"]
    assert webhook["failurePolicy"] == "Ignore"
    makes_templates = place == "dra" and kind.startswith("Mutating")
    assert webhook["sideEffects"] == ("NoneOnDryRun" if makes_templates else "None")
    assert webhook["timeoutSeconds"] == 5
    assert webhook["matchPolicy"] == "Equivalent"
    assert not any(
        "*" in (*rule["resources"], *rule["apiGroups"], *rule["operations"])
        for rule in webhook["rules"]
    )


def test_mutation_is_for_new_pods_and_new_debugging_containers_only() -> None:
    (webhook,) = only(PLAIN, "MutatingWebhookConfiguration")["webhooks"]
    asked = {(tuple(rule["resources"]), tuple(rule["operations"])) for rule in webhook["rules"]}
    assert asked == {(("pods",), ("CREATE",)), (("pods/ephemeralcontainers",), ("UPDATE",))}
    assert webhook["reinvocationPolicy"] == "IfNeeded"


def test_validation_covers_every_kind_that_makes_pods() -> None:
    (webhook,) = only(PLAIN, "ValidatingWebhookConfiguration")["webhooks"]
    asked = {resource for rule in webhook["rules"] for resource in rule["resources"]}
    workloads = {"deployments", "statefulsets", "daemonsets", "replicasets", "jobs", "cronjobs"}
    assert asked == {
        "pods",
        "pods/ephemeralcontainers",
        "podtemplates",
        "replicationcontrollers",
        *workloads,
    }
    assert all("DELETE" not in rule["operations"] for rule in webhook["rules"]), (
        "deletion is never stuck"
    )


def test_the_oldest_kubernetes_gets_no_version_of_an_api_that_it_lacks() -> None:
    known = {
        ("v1", "Namespace"),
        ("v1", "ServiceAccount"),
        ("v1", "ConfigMap"),
        ("v1", "Service"),
        ("apps/v1", "Deployment"),
        ("apps/v1", "DaemonSet"),
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
        ("rbac.authorization.k8s.io/v1", "Role"),
        ("rbac.authorization.k8s.io/v1", "ClusterRole"),
        ("rbac.authorization.k8s.io/v1", "RoleBinding"),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
        ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"),
        ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"),
    }
    assert {(thing["apiVersion"], thing["kind"]) for thing in rendered(OLD)} <= known
    assert "matchConditions" not in str(rendered(OLD))


def test_the_policy_for_hostile_tenants_is_the_shipped_one_but_for_what_it_must_change() -> None:
    data = _limits("hostile-tenants")
    policy = policy_of("hostile-tenants")
    assert policy.admission.host_ipc is HostIPC.OFF
    assert policy.admission.rules[RuleId.HOST_ROOT] is RuleMode.ENFORCE
    assert policy.admission.rules[RuleId.HOST_PID] is RuleMode.ENFORCE
    assert data["gpus.yaml"] == _limits(PLAIN)["gpus.yaml"]


def test_hostile_tenants_reach_no_webhook_that_answers_them() -> None:
    place = "hostile-tenants"
    (env,) = [one for one in container_of(place, WEBHOOK)["env"] if one["name"] == "MPSD_CLIENT_CA"]
    (mount,) = [
        one for one in container_of(place, WEBHOOK)["volumeMounts"] if one["name"] == "clients"
    ]
    assert env["value"] == f"{mount['mountPath']}/ca.crt"
    (volume,) = [one for one in pod_of(place, WEBHOOK)["volumes"] if one["name"] == "clients"]
    assert volume["configMap"] == {"name": "mpsd-webhook-clients"}
    given = merged(values_of(place), {"networkPolicy": {"apiServers": ["10.0.0.1/32"]}})
    (policy,) = [
        thing
        for thing in rendered_by_helm(given, f"v1.{LATEST}.2")
        if thing["kind"] == "NetworkPolicy" and thing["metadata"]["name"] == WEBHOOK
    ]
    (reviews,) = [one for one in policy["spec"]["ingress"] if one["ports"][0]["port"] == "https"]
    assert reviews["from"] == [{"ipBlock": {"cidr": "10.0.0.1/32"}}]
