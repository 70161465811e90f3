"""The API server itself, by the values `policies-mutating`, answers as the webhook does."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from mpsd.admission.rules.requests import BY_CLASS
from mpsd.model.container import CONTAINER_FIELDS
from mpsd.model.policy import RuleId
from tests.admission.cases import PLACED, found
from tests.e2e.admission.cases import Answer, Creator, admission_cases, creating
from tests.e2e.cluster import Cluster, Object, listed
from tests.e2e.objects import deployment, environment, pod, with_environment
from tests.e2e.waiting import eventually
from tests.e2e.webhook import Webhook
from tests.manifests.rendering import rendered
from tests.model.manifests import POLICY

_PLACE = "policies-mutating"
_BY_CLASS = f"{BY_CLASS}mps.mpsd.io"  # whose it is stands in the policy too
# The webhook is asked there too, but neither refuses nor warns nor changes anything.
_LEFT = {"mpsd.io/enforce": "none", "mpsd.io/warn": "none"}
# it depends on the domains in the policy, which CEL does not see
_UNSAID = {str(RuleId.GPUS_NOT_TOGETHER)}


# Without that on what agents write, which is of no pod.
_POLICIES = [
    thing
    for thing in rendered(_PLACE)
    if "AdmissionPolicy" in thing["kind"] and thing["metadata"]["name"] != "mpsd-agent-writes"
]


def _validating() -> list[Object]:
    return [policy for policy in _POLICIES if policy["kind"] == "ValidatingAdmissionPolicy"]


@dataclass(frozen=True, slots=True)
class Asked:
    case: Object
    webhook: Answer
    policies: Answer

    def __str__(self) -> str:
        return (
            f"{self.case}: {self.webhook.message or 'admitted'}; policies:"
            f" {self.policies.message or 'admitted'}"
        )


@dataclass(frozen=True, slots=True)
class Judges:
    asked: tuple[Asked, ...]
    creator: Creator


@pytest.fixture(scope="module")
def judges(cluster: Cluster, webhook: Webhook) -> Iterator[Judges]:
    if not cluster.serves("mutatingadmissionpolicies"):
        pytest.skip("the cluster serves no MutatingAdmissionPolicy: Kubernetes 1.36 and newer do")
    classes = [_runtime_class(name) for name in ("nvidia", "kata")]
    cases = [case for case in admission_cases() if _BY_CLASS not in str(case)]
    with cluster.namespace() as ours, cluster.namespace(labels=_LEFT) as theirs:
        try:
            for one in classes:
                cluster.do("apply", "-f", "-", given=one)
            with creating(cluster, ours) as creator:
                by_webhook = creator.ask_for_all(cases)
            with creating(cluster, theirs) as creator:
                cluster.apply_all(_POLICIES)
                eventually(lambda: _are_in_force(creator), "the policies in force")
                by_policies = creator.ask_for_all(cases)
                yield Judges(tuple(map(Asked, cases, by_webhook, by_policies)), creator)
        finally:
            cluster.kubectl("delete", "-f", "-", "--ignore-not-found", given=listed(_POLICIES))
            for one in classes:
                cluster.kubectl(
                    "delete", "runtimeclass", one["metadata"]["name"], "--ignore-not-found"
                )


def _runtime_class(name: str) -> Object:
    return {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": name},
        "handler": name,
    }


def _are_in_force(creator: Creator) -> bool:
    """Every binding has been seen: one broken rule of each."""
    plain, asking = pod("plain"), pod("asks", gpu=True)
    privileged = pod(
        "plain",
        containers=[{"name": "main", "image": "x", "securityContext": {"privileged": True}}],
    )
    placed = asking | {"metadata": {"name": "placed", "annotations": PLACED}}
    seen = creator.create(plain)
    return (
        seen.is_admitted
        and environment(seen.thing) == {"NVIDIA_VISIBLE_DEVICES": "void"}
        and creator.create(with_environment(plain, NVIDIA_VISIBLE_DEVICES="all")).rule_broken != ""
        and creator.create(pod("asks", gpu=True, hostIPC=False)).rule_broken != ""
        and creator.create(pod("asks", gpu=True, hostPID=True)).rules_warned != set()
        and creator.create(privileged).rules_warned != set()
        and creator.create(placed).rule_broken != ""
    )


def test_the_policies_admit_and_refuse_what_the_webhook_does(judges: Judges) -> None:
    differ = [
        str(one) for one in judges.asked if one.webhook.is_admitted is not one.policies.is_admitted
    ]
    assert differ == []
    judged = [one for one in judges.asked if one.webhook.is_judged]
    refused = [one for one in judged if not one.webhook.is_admitted]
    assert len(refused) > 250
    assert len(judged) - len(refused) > 250
    for one in refused:
        assert one.policies.rule_broken in {str(finding.rule) for finding in found(one.case)}, str(
            one
        )


def test_the_policies_warn_of_what_the_webhook_warns_of(judges: Judges) -> None:
    for one in judges.asked:
        if one.webhook.is_admitted:
            assert one.policies.rules_warned == one.webhook.rules_warned - _UNSAID, str(one)


def test_every_rule_of_the_policies_has_refused_or_warned(judges: Judges) -> None:
    seen = {
        rule
        for one in judges.asked
        for rule in {one.policies.rule_broken, *one.policies.rules_warned}
    } - {""}
    said = {
        one["message"].partition(":")[0]
        for policy in _validating()
        for one in policy["spec"]["validations"]
    }
    assert seen == said & set(map(str, RuleId))


def test_the_mutating_policy_changes_what_the_webhook_changes(judges: Judges) -> None:
    pods = [one for one in judges.asked if one.case["kind"] == "Pod" and one.webhook.is_admitted]
    for one in pods:
        by_webhook, by_policies = (
            _without_end(answer.thing["spec"]) for answer in (one.webhook, one.policies)
        )
        assert by_policies == by_webhook, str(one)
    assert sum("'value': 'void'" in str(one.policies.thing) for one in pods) > 100


def _without_end(spec: Object) -> Object:
    """Without grace and hooks, which the webhook alone adds."""
    kept = {name: value for name, value in spec.items() if name != "terminationGracePeriodSeconds"}
    for key in CONTAINER_FIELDS.keys() & kept.keys():
        kept[key] = [{**one, "lifecycle": None} for one in kept[key]]
    return kept


@pytest.mark.parametrize("writer", ["ann", *POLICY.admission.placement_accounts])
def test_only_those_who_place_pods_change_what_says_where_they_are(
    judges: Judges, writer: str
) -> None:
    name = f"placed-{writer.rpartition(':')[2]}"
    for thing in (
        pod(name, gpu=True),
        deployment(name, pod(name, gpu=True)) | {"spec": _paused(name)},
    ):
        made = judges.creator.create(thing, dry=False)
        assert made.is_admitted, made.message
        placed = made.thing
        metadata = (placed if thing["kind"] == "Pod" else placed["spec"]["template"])["metadata"]
        metadata["annotations"] = dict(PLACED)
        said = judges.creator.replace(placed, user=writer)
        assert said.rule_broken == ("placement-annotation" if writer == "ann" else ""), said.message
        assert said.is_admitted is (writer != "ann"), said.message
        metadata["annotations"] = {"note": "x"}
        assert judges.creator.replace(placed, user=writer).is_admitted


def _paused(name: str) -> Object:
    return deployment(name, pod(name, gpu=True))["spec"] | {"paused": True, "replicas": 0}


def test_an_old_bad_object_can_be_labelled_and_cannot_be_made_worse(
    judges: Judges, cluster: Cluster
) -> None:
    creator = judges.creator
    bad = deployment("old", pod("old", gpu=True, hostIPC=False))
    with cluster.namespace(exempt=True) as name, creating(cluster, name) as unwatched:
        made = unwatched.create(bad | {"spec": bad["spec"] | {"replicas": 0}}, dry=False).thing
        cluster.do(
            "label",
            "namespace",
            name,
            "mpsd.io/exempt-",
            *(f"{key}={value}" for key, value in _LEFT.items()),
        )
        worse = made | {"spec": made["spec"] | {"minReadySeconds": 1}}
        eventually(
            lambda: unwatched.replace(worse).rule_broken == "host-ipc-missing",
            "the policies asked again",
        )
        assert unwatched.replace(
            made | {"metadata": made["metadata"] | {"labels": {"still": "here"}}}
        ).is_admitted
    assert creator.create(bad).rule_broken == "host-ipc-missing"


def test_the_api_server_finds_nothing_wrong_with_the_types_in_the_policies(
    judges: Judges, cluster: Cluster
) -> None:
    for policy in _validating():
        name = policy["metadata"]["name"]

        def checked(name: str = name) -> Object:
            return cluster.get("validatingadmissionpolicy", name).get("status", {})

        eventually(lambda look=checked: "typeChecking" in look(), f"the types of {name} checked")
        assert "expressionWarnings" not in checked()["typeChecking"], name
