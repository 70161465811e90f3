"""Each value of the Helm chart does what it says. Wrong ones: test_wrong_values."""

from base64 import b64decode
from typing import Any

import pytest
import yaml

from mpsd.admission.rules.claims import asked_of
from mpsd.admission.rules.verdict import claims_in, review_all
from mpsd.platform.limits_files import load_limits, read_policy
from tests.manifests.helm import Object, files_by_helm, rendered_by_helm, values
from tests.manifests.rendering import called

_SCHEDULER = {"scheduler": {"enabled": True}}
_PROMETHEUS = {
    "prometheus": {"serviceMonitor": True, "rules": True, "dashboard": True},
    **_SCHEDULER,
}


def _named(given: Object, kind: str, name: str, kubernetes: str = "v1.36.2") -> Object:
    (found,) = (
        one
        for one in rendered_by_helm(given, kubernetes)
        if (one["kind"], one["metadata"]["name"]) == (kind, name)
    )
    return found


def _pods(given: Object) -> dict[str, Object]:
    found = [one for one in rendered_by_helm(given) if "template" in one.get("spec", {})]
    return {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in found}


def _policy(given: Object) -> Any:
    return read_policy(
        yaml.safe_load(_named(given, "ConfigMap", "mpsd-limits")["data"]["policy.yaml"]),
        "policy.yaml",
    )


def test_the_image_is_that_of_every_pod_by_its_digest_with_the_secrets_to_pull_it() -> None:
    digest = f"sha256:{'0' * 64}"
    image = {
        "repository": "r.test:5000/t/mpsd",
        "digest": digest,
        "pullPolicy": "Always",
        "pullSecrets": ["key"],
    }
    pods = _pods({"image": image, **_SCHEDULER})
    assert {*pods} == {"mps-control-daemon", "mpsd-agent", "mpsd-webhook", "mpsd-scheduler"}
    for pod in pods.values():
        ours = [one for one in pod["containers"] if one["name"] != "kube-scheduler"]
        assert [(one["image"], one["imagePullPolicy"]) for one in ours] == [
            (f"r.test:5000/t/mpsd@{digest}", "Always")
        ]
        assert pod["imagePullSecrets"] == [{"name": "key"}]


_TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
_OF_NODES = {"mps-control-daemon", "mpsd-agent"}
_SIZE = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}


@pytest.mark.parametrize(
    ("given", "pods", "wanted"),
    [
        (
            {"nodeSelector": {"pool": "gpu"}},
            _OF_NODES,
            {"nodeSelector": {"ack.node.gpu.schedule": "mps", "pool": "gpu"}},
        ),
        (
            {"resources": {"domain": "example.com"}},
            _OF_NODES,
            {"nodeSelector": {"mpsd.io/share": "mps"}},
        ),
        ({"tolerations": [_TOLERATION]}, _OF_NODES, {"tolerations": [_TOLERATION]}),
        ({"runtimeClassName": "nvidia-cdi"}, _OF_NODES, {"runtimeClassName": "nvidia-cdi"}),
        (
            {"priorityClass": {"cluster": "gpus"}},
            {"mpsd-webhook", "mpsd-scheduler"},
            {"priorityClassName": "gpus"},
        ),
        (
            {"webhook": {"tolerations": [_TOLERATION]}},
            {"mpsd-webhook"},
            {"tolerations": [_TOLERATION]},
        ),
        (
            {"policy": {"graces": {"drain_s": 900}}},
            {"mps-control-daemon"},
            {"terminationGracePeriodSeconds": 930},
        ),
    ],
)
def test_a_value_is_in_the_pods_that_it_is_for_and_in_no_others(
    given: Object, pods: set[str], wanted: Object
) -> None:
    given = values(**given)
    given.setdefault("scheduler", {})["enabled"] = True
    for name, pod in _pods(given).items():
        assert ({key: pod.get(key) for key in wanted} == wanted) is (name in pods), name


@pytest.mark.parametrize(
    ("path", "pod", "at"),
    [
        ("control", "mps-control-daemon", 0),
        ("agent", "mpsd-agent", 0),
        ("webhook", "mpsd-webhook", 0),
        ("scheduler", "mpsd-scheduler", 1),
        ("scheduler.kubeScheduler", "mpsd-scheduler", 0),
    ],
)
def test_each_container_has_the_resources_that_its_values_say(path: str, pod: str, at: int) -> None:
    given: Object = {"resources": _SIZE}
    for name in reversed(path.split(".")):
        given = {name: given}
    given.setdefault("scheduler", {})["enabled"] = True
    assert _pods(values(**given))[pod]["containers"][at]["resources"] == _SIZE


def test_the_workloads_have_the_replicas_strategy_and_arguments_that_values_say() -> None:
    given = values(
        control={"updateStrategy": "RollingUpdate", "extraArgs": ["--simulate=A30x2"]},
        agent={"extraArgs": ["--simulate=A30x2"], "deviceListStrategy": "volume-mounts"},
        webhook={"replicas": 3},
        scheduler={
            "enabled": True,
            "replicas": 1,
            "kubeScheduler": {"repository": "r.test/kube-scheduler"},
        },
    )
    assert _named(given, "DaemonSet", "mps-control-daemon")["spec"]["updateStrategy"] == {
        "type": "RollingUpdate"
    }
    assert _named(given, "Deployment", "mpsd-webhook")["spec"]["replicas"] == 3
    assert _named(given, "Deployment", "mpsd-scheduler")["spec"]["replicas"] == 1
    pods = _pods(given)
    assert {name: pods[name]["containers"][0]["args"][-1] for name in _OF_NODES} == dict.fromkeys(
        _OF_NODES, "--simulate=A30x2"
    )
    assert {"name": "MPSD_DEVICE_LIST_STRATEGY", "value": "volume-mounts"} in pods["mpsd-agent"][
        "containers"
    ][0]["env"]
    assert pods["mpsd-scheduler"]["containers"][0]["image"] == "r.test/kube-scheduler:v1.36.2"


@pytest.mark.parametrize("version", ["v1.33.5-eks-3025e55", "v1.33.5-gke.1201000", "v1.33.5+k3s1"])
def test_the_second_kube_scheduler_is_of_the_clusters_version(version: str) -> None:
    pod = _named(values(**_SCHEDULER), "Deployment", "mpsd-scheduler", version)["spec"]["template"][
        "spec"
    ]
    assert pod["containers"][0]["image"] == "registry.k8s.io/kube-scheduler:v1.33.5"


def test_another_domain_is_in_the_policy_and_in_what_the_second_scheduler_sends() -> None:
    given = values(resources={"domain": "example.com"}, **_SCHEDULER)
    assert _policy(given).resources.memory == "example.com/gpu-mem"
    sent = yaml.safe_load(
        _named(given, "ConfigMap", "mpsd-kube-scheduler")["data"]["kube-scheduler.yaml"]
    )
    assert [one["name"] for one in sent["extenders"][0]["managedResources"]] == [
        "example.com/gpu-mem"
    ]


def test_without_the_webhook_nothing_of_it_is_there() -> None:
    given = values(webhook={"enabled": False}, networkPolicy={"enabled": True}, **_PROMETHEUS)
    assert [
        called(one) for one in rendered_by_helm(given) if "webhook" in one["metadata"]["name"]
    ] == []


_PROMETHEUS_ALONE = {"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}


@pytest.mark.parametrize("readers", [None, [], [_PROMETHEUS_ALONE, {"ipBlock": {"cidr": "::/0"}}]])
def test_a_port_is_open_to_those_who_need_it(readers: list[Object] | None) -> None:
    """Ports of probes alone to nobody: what comes from the pod's own node is let in always."""
    chosen = {} if readers is None else {"readers": readers}
    given = values(networkPolicy={"enabled": True, **chosen}, **_SCHEDULER)
    peers = [{"namespaceSelector": {}}] if readers is None else readers
    found = {}
    for one in rendered_by_helm(given):
        if one["kind"] == "NetworkPolicy":
            rules = one["spec"].get("ingress") or []
            ports = {rule["ports"][0]["port"]: rule.get("from", "anybody") for rule in rules}
            assert all(len(rule["ports"]) == 1 for rule in rules)
            found[one["metadata"]["name"]] = ports
    assert found == {
        "mps-control-daemon": {},
        "mpsd-agent": {"readers": peers} if peers else {},
        "mpsd-scheduler": {"readers": peers} if peers else {},
        "mpsd-webhook": {"https": "anybody"} | ({"metrics": peers} if peers else {}),
    }


def test_a_given_secret_serves_the_webhook_which_then_has_no_rights_to_secrets() -> None:
    pem = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
    given = values(
        webhook={
            "tls": {"source": "secret", "secretName": "ours", "caBundle": pem},
            "failClosed": True,
        }
    )
    for kind in ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"):
        (webhook,) = _named(given, kind, "mpsd-webhook")["webhooks"]
        assert webhook["failurePolicy"] == "Fail"
        assert b64decode(webhook["clientConfig"]["caBundle"]).decode() == pem
    mounted = {one["name"]: one for one in _pods(given)["mpsd-webhook"]["volumes"]}
    assert mounted["certificates"]["secret"]["secretName"] == "ours"
    kinds = [
        one["kind"] for one in rendered_by_helm(given) if one["metadata"]["name"] == "mpsd-webhook"
    ]
    assert not {"Role", "RoleBinding", "Certificate", "Issuer"} & {*kinds}


# -- the policy


def test_the_policy_is_the_shipped_one_and_a_field_that_is_set_changes_alone() -> None:
    shipped = load_limits(None).policy
    assert _policy(values()) == shipped
    changed = _policy(
        values(policy={"placement": "spread", "admission": {"rules": {"host-pid": "enforce"}}})
    )
    assert changed.placement == "spread"
    assert changed.admission.rules["host-pid"] == "enforce"
    assert changed.admission.rules["host-root"] == shipped.admission.rules["host-root"]


def test_numbers_ordinals_and_off_are_read_as_they_were_written() -> None:
    cards = {"1": {"policy": 3, "max_inst": 20}}
    policy = _policy(
        values(
            policy={
                "resources": {"memory_unit_mib": 1048576},
                "admission": {"host_ipc": "off"},
                "compute": {"cards": cards},
                "domains": [[0, 1]],
                "graces": {"command_s": 2.5},
            }
        )
    )
    assert policy.resources.memory_unit_mib == 1048576
    assert policy.admission.host_ipc == "off"
    assert policy.compute.cards["1"].max_inst == 20
    assert policy.domains == [[0, 1]]
    assert policy.graces.command_s == 2.5


def test_the_expressions_of_admission_policies_have_the_lists_and_names_of_the_policy() -> None:
    lists = {
        "blocked_host_paths": ["/opt/x"],
        "blocked_environment": ["X_*"],
        "placement_accounts": ["ann"],
    }
    lists |= {
        "other_gpus": ["amd.com/gpu", "a.b/*"],
        "exempt_namespaces": ["ours"],
        "runtime_classes": ["kata"],
    }
    given = values(
        resources={"domain": "example.com"},
        admissionPolicies={"enabled": True, "mutating": True},
        policy={"admission": lists},
    )
    every = [one for one in rendered_by_helm(given) if one["kind"].endswith("AdmissionPolicy")]
    policies = [one for one in every if not one["metadata"]["name"].startswith("mpsd-agent-")]
    said = str(policies)
    for text in (
        "['opt/x/']",
        "['X_*']",
        "['ann']",
        "^(amd.com/gpu$|a.b/)",
        "['', 'kata']",
        "example.com/gpu-mem",
    ):
        assert text in said.replace('"', "").replace("\\'", "'"), text
    assert "aliyun.com" not in said
    for one in policies:
        _exempt, by_name = one["spec"]["matchConstraints"]["namespaceSelector"]["matchExpressions"]
        assert by_name["values"] == ["ours"]


# -- the sample Job, and what is said at the end

_CLAIMS = {"dra": {"enabled": True}}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"policy": {"admission": {"host_ipc": "off"}}},
        _CLAIMS,
        {**_CLAIMS, "policy": {"resources": {"memory_unit_mib": 512}}, "test": {"memory": 14}},
    ],
    ids=str,
)
def test_helms_test_is_a_job_that_admission_takes_without_a_warning(given: Object) -> None:
    given = values(**given, **_SCHEDULER)
    text = files_by_helm(given)["templates/tests/sample.yaml"]
    *templates, job = (dict(one) for one in yaml.safe_load_all(text))
    for one in (*templates, job):
        assert one["metadata"]["annotations"]["helm.sh/hook"] == "test"
        del one["metadata"]["namespace"]  # which is exempt
    (verdict,) = review_all(job, _policy(given), load_limits(None).facts, claims_in(templates))
    assert (verdict.problems, verdict.warnings) == ((), ())
    asked = [asked_of(one, one["kind"], _policy(given)) for one in templates]
    claimed = [(one.memory_mib, one.reserved_percent) for one in asked if one]
    requested = [(one.memory_mib, one.thread_percent) for one in verdict.requests]
    assert (claimed or requested) == [(7168, 30)]
    assert [one["metadata"]["annotations"]["helm.sh/hook-weight"] for one in templates] == [
        "-1"
    ] * len(templates)


@pytest.mark.parametrize(
    ("given", "said", "unsaid"),
    [
        (
            {},
            ("helm test mpsd", "ack.node.gpu.schedule=mps", "set scheduler.enabled"),
            ("failClosed", "dra.md"),
        ),
        (_SCHEDULER, ("schedulerName: mpsd-scheduler",), ("set scheduler.enabled",)),
        (
            _CLAIMS,
            ("docs/dra.md", "set policy.admission.claims_for_requests"),
            ("set scheduler.enabled",),
        ),
        (
            {
                **_CLAIMS,
                "policy": {"admission": {"claims_for_requests": True}},
                "webhook": {"tls": {"clientAuthority": "clients"}},
            },
            ("docs/dra.md",),
            ("set policy.admission", "set scheduler.enabled"),
        ),
        ({"webhook": {"enabled": False}}, ("Without the webhook",), ("set webhook.failClosed",)),
        (
            {"webhook": {"enabled": False}, "admissionPolicies": {"enabled": True}},
            (),
            ("Without the webhook", "set webhook.failClosed"),
        ),
    ],
    ids=str,
)
def test_what_helm_says_at_the_end_is_left_to_do_with_these_values_and_nothing_else(
    given: Object, said: tuple[str, ...], unsaid: tuple[str, ...]
) -> None:
    notes = files_by_helm(values(**given))["templates/NOTES.txt"]
    assert [one for one in said if one not in notes] == []
    assert [one for one in unsaid if one in notes] == []
