"""An AdmissionReview is answered as Kubernetes wants it, whatever is sent."""

import base64
import copy
import json
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import mpsd.cli
from mpsd.admission.rules.review import (
    AdmissionAnswer,
    AdmissionContext,
    MalformedReview,
    ReviewNeeds,
    needed_to_mutate,
    needed_to_validate,
    read_review,
    validate,
)
from mpsd.admission.rules.verdict import review
from mpsd.model.policy import HostIPC, RuleId, RuleMode
from tests.admission.cases import PLACED, asking, in_kind, with_volume
from tests.admission.reviews import ALLOWED, mutated, review_of, rules_refusing, validated
from tests.docs.pages import page
from tests.model.manifests import (
    ANY_JSON,
    FACTS,
    MEMORY,
    POLICY,
    Fields,
    broken_objects,
    container,
    inside,
    pod,
    with_admission,
)

SAMPLE: Fields = yaml.safe_load(Path(mpsd.cli.__file__).with_name("mps-sample.yaml").read_text())


def without_host_ipc() -> Fields:
    thing = copy.deepcopy(SAMPLE)
    del thing["spec"]["template"]["spec"]["hostIPC"]
    return thing


def test_the_published_sample_is_admitted_as_it_is_with_a_word_about_root() -> None:
    answer = validated(review_of(SAMPLE))
    assert answer.allowed
    assert answer.audit == {"warn": "host-pid,host-root"}
    assert mutated(review_of(SAMPLE)) == ALLOWED


def test_everything_wrong_is_said_at_once_and_in_the_words_of_explain() -> None:
    thing = inside(
        "apps/v1", "Deployment", in_kind("initContainers", env=[{"name": "EGPU", "value": "1"}])
    )
    thing["spec"]["template"]["spec"] |= {
        "hostIPC": False,
        "nodeName": "a",
        "volumes": [{"hostPath": {"path": "/"}}],
    }
    answer, verdict = validated(review_of(thing)), review(thing, POLICY, FACTS)
    assert len(verdict.problems) == 4
    assert answer.message.splitlines()[1:] == [f"  {problem}" for problem in verdict.problems]


@pytest.mark.parametrize(
    "thing",
    [
        pod(container()),
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}},
        {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "spec": {}},
        {"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": {"replicas": 1}},
        {"apiVersion": "v1", "kind": "Binding", "target": {}},
    ],
)
def test_what_touches_no_gpu_needs_nothing_and_costs_no_word(thing: Fields) -> None:
    review = review_of(thing)
    needs = needed_to_validate(read_review(review), POLICY, FACTS)
    assert replace(needs, is_faultless=False) == ReviewNeeds()
    assert validated(review) == ALLOWED


def test_what_is_needed_is_said_beforehand() -> None:
    sources = [{"configMapRef": {"name": name}} for name in ("a", "b", "a")]
    sources += [{"secretRef": {"name": "c"}}, {"prefix": "MY_", "configMapRef": {"name": "d"}}]
    asking = read_review(review_of(pod(container(limits={MEMORY: 7}, envFrom=sources))))
    assert needed_to_validate(asking, POLICY, FACTS) == ReviewNeeds("team", ("a", "b"))
    assert needed_to_mutate(asking, POLICY, FACTS) == ReviewNeeds("team")
    assert needed_to_mutate(asking, replace(POLICY, pod_ends=False), FACTS) == ReviewNeeds()
    other = read_review(review_of(with_volume("/", asks=False)))
    assert needed_to_validate(other, POLICY, FACTS) == ReviewNeeds("team")
    assert needed_to_mutate(other, POLICY, FACTS) == ReviewNeeds("team")
    exempt = read_review(review_of(with_volume("/"), namespace="kube-system"))
    assert (
        needed_to_validate(exempt, POLICY, FACTS)
        == needed_to_mutate(exempt, POLICY, FACTS)
        == ReviewNeeds()
    )


def test_keys_that_were_looked_up_count_and_those_of_other_config_maps_do_not() -> None:
    review = review_of(
        pod(container(limits={MEMORY: 7}, envFrom=[{"configMapRef": {"name": "a"}}]))
    )
    seen = {"a": ["EGPU"], "b": ["BATCH"]}
    assert rules_refusing(validated(review, seen=AdmissionContext(config_maps=seen))) == [
        "environment-blocked"
    ]
    elsewhere = validated(review, seen=AdmissionContext(config_maps={"b": ["EGPU"]}))
    assert elsewhere.audit == {"warn": "environment-unseen"}


@pytest.mark.parametrize("namespace", POLICY.admission.exempt_namespaces)
def test_nothing_is_said_in_exempt_namespaces(namespace: str) -> None:
    thing = in_kind("containers", securityContext={"privileged": True})
    assert validated(review_of(thing, namespace=namespace)) == ALLOWED
    assert mutated(review_of(thing, namespace=namespace)) == ALLOWED


def test_the_reviews_namespace_counts_and_not_the_objects_own_word() -> None:
    thing = in_kind("containers", securityContext={"privileged": True})
    thing["metadata"]["namespace"] = "kube-system"
    assert rules_refusing(validated(review_of(thing))) == ["privileged"]


@pytest.mark.parametrize("mode", list(RuleMode))
def test_a_rule_is_taken_as_hard_as_the_policy_says(mode: RuleMode) -> None:
    policy = with_admission(rules={**POLICY.admission.rules, RuleId.HOST_PID: mode})
    answer = validated(review_of(asking(hostPID=True)), policy)
    assert answer.verdicts == (("host-pid", str(mode)),)
    assert answer.audit == {str(mode): "host-pid"}
    assert (answer.allowed, bool(answer.warnings)) == (
        mode is not RuleMode.ENFORCE,
        mode is RuleMode.WARN,
    )


def test_an_answer_stays_short_however_much_is_wrong() -> None:
    env = [{"name": f"CUDA_MPS_{n}", "value": "1"} for n in range(500)]
    answer = validated(review_of(pod(container(limits={MEMORY: 7}, env=env))))
    assert answer.message.splitlines()[0].endswith("is refused, 500 problems")
    assert answer.message.splitlines()[-1] == "  and 400 more"
    volumes = [{"name": f"v{n}", "hostPath": {"path": "/"}} for n in range(500)]
    assert len(validated(review_of(pod(container(), volumes=volumes))).warnings) == 31


def test_the_record_is_an_admission_review_that_answers_the_uid() -> None:
    assert ALLOWED.record() == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": "705ab4f5", "allowed": True},
    }
    response: Any = validated(review_of(without_host_ipc())).record()["response"]
    assert response["allowed"] is False
    assert response["status"].keys() == {"code", "reason", "message"}
    assert response["status"]["code"] == 403
    assert response["warnings"]
    assert response["auditAnnotations"] == {
        "enforce": "host-ipc-missing",
        "warn": "host-pid,host-root",
    }


def test_a_patch_is_sent_as_json_patch_in_base64() -> None:
    response: Any = mutated(review_of(pod(container()))).record()["response"]
    assert response["patchType"] == "JSONPatch"
    assert json.loads(base64.b64decode(response["patch"])) == [
        {
            "op": "add",
            "path": "/spec/containers/0/env",
            "value": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
        }
    ]


# Any JSON is a review that is answered, or is no review and is told why.


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"apiVersion": "admission.k8s.io/v1beta1"}, "$.apiVersion"),
        ({"kind": "Pod"}, "$.kind"),
        ({"apiVersion": None}, "$.apiVersion"),
        ({"request": None}, "$.request"),
        ({"request": []}, "$.request"),
        ({"request.uid": None}, "$.request.uid"),
        ({"request.uid": ""}, "$.request.uid"),
        ({"request.uid": 7}, "$.request.uid"),
        ({"request.operation": "PATCH"}, "$.request.operation"),
        ({"request.operation": None}, "$.request.operation"),
        ({"request.kind": None}, "$.request.kind"),
        ({"request.kind": {"group": "", "version": "v1"}}, "missing required field `kind`"),
        ({"request.kind": {"group": 1, "kind": "Pod"}}, "$.request.kind.group"),
        ({"request.object": None}, "request.object is missing"),
        ({"request.object": "x"}, "$.request.object"),
        ({"request.namespace": ["x"]}, "$.request.namespace"),
        ({"request.userInfo": "ann"}, "$.request.userInfo"),
        ({"request.dryRun": "yes"}, "$.request.dryRun"),
    ],
)
def test_what_is_no_review_is_said_to_be_none_and_why(change: Fields, said: str) -> None:
    review = review_of(pod(container()))
    for path, value in change.items():
        place = review if path.count(".") == 0 else review["request"]
        place[path.rpartition(".")[2]] = value
    with pytest.raises(MalformedReview) as raised:
        read_review(review)
    assert said in str(raised.value)


@pytest.mark.parametrize("body", [None, [], "AdmissionReview", 7, True])
def test_a_body_that_is_no_mapping_is_no_review(body: object) -> None:
    with pytest.raises(MalformedReview, match="Expected `object`"):
        read_review(body)


def test_an_update_without_its_old_object_is_no_review() -> None:
    with pytest.raises(MalformedReview, match=r"request\.oldObject is missing"):
        read_review(review_of(pod(container()), "UPDATE"))


def answered(review: object) -> None:
    """Any JSON gives answers that can be sent, or is no review."""
    for policy in (POLICY, with_admission(host_ipc=HostIPC.INJECT)):
        try:
            question = read_review(review)
        except MalformedReview:
            return
        needed_to_validate(question, policy, FACTS)
        needed_to_mutate(question, policy, FACTS)
        for answer in (validated(review, policy), mutated(review, policy)):
            json.dumps(answer.record()).encode()
            assert answer.allowed or answer.message
            assert all(len(warning) < 120 and warning.isprintable() for warning in answer.warnings)
            assert all(line.isprintable() for line in answer.message.split("\n"))


@given(ANY_JSON)
def test_any_json_is_answered_or_is_no_review(document: object) -> None:
    answered(document)
    answered({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": document})


@given(broken_objects(), broken_objects() | st.none())
def test_what_is_called_faultless_before_anything_is_looked_up_is_allowed_without_a_word(
    thing: Fields, old: Fields | None
) -> None:
    named = {**thing, "apiVersion": "v1", "kind": "Pod"}
    for asked in (
        review_of(named, old=old),
        review_of(pod(container()), old=named),
        review_of(named),
    ):
        with suppress(MalformedReview):
            question = read_review(asked)
            if needed_to_validate(question, POLICY, FACTS).is_faultless:
                assert validate(question, POLICY, FACTS, AdmissionContext()) == AdmissionAnswer(
                    question.uid
                )


@given(broken_objects(), broken_objects() | st.none(), ANY_JSON)
def test_any_object_in_a_review_is_answered(
    thing: Fields, old: Fields | None, junk: object
) -> None:
    named = {
        **thing,
        "apiVersion": "v1",
        "kind": thing["kind"] if isinstance(thing.get("kind"), str) else "Pod",
    }
    answered(review_of(named, old=old))
    answered(review_of(named, old=old, subResource="ephemeralcontainers", userInfo=junk))
    answered(review_of({**named, "kind": "Pod"}, old=named))
    answered(review_of(named) | {"request": junk})


def test_json_as_deep_as_a_parser_takes_is_answered() -> None:
    deep: Any = {}
    for _ in range(900):
        deep = {"spec": deep}
    answered(
        review_of({"apiVersion": "v1", "kind": "Pod", "metadata": {}, **deep}, old=copy.copy(deep))
    )
    list_of = review_of(
        pod(container(args=[deep])), old=pod(container(args=[json.loads(json.dumps(deep))]))
    )
    answered(list_of)


# On an update only what was not wrong before counts, and an object that goes is free.


def template(**fields: object) -> Fields:
    return inside("apps/v1", "Deployment", in_kind("containers", **fields))


BAD = template(securityContext={"privileged": True}, env=[{"name": "EGPU", "value": "1"}])


def changed(thing: Fields, **metadata: object) -> Fields:
    thing = copy.deepcopy(thing)
    thing["metadata"] |= metadata
    return thing


def test_what_was_wrong_before_stops_no_update() -> None:
    for now in (
        BAD,
        changed(BAD, labels={"a": "b"}, finalizers=[]),
        template(
            securityContext={"privileged": True}, env=[{"name": "EGPU", "value": "1"}], image="new"
        ),
        template(env=[{"name": "EGPU", "value": "1"}]),
    ):
        assert validated(review_of(now, old=BAD)) == ALLOWED


def test_an_object_of_too_many_fields_is_not_changed_because_it_was_so_before() -> None:
    many = [{"name": f"A{number}"} for number in range(20_000)]
    old, now = template(env=many), template(env=many, securityContext={"privileged": True})
    assert rules_refusing(validated(review_of(now, old=old))) == ["object-malformed"]
    assert validated(review_of(changed(old, finalizers=[]), old=old)) == ALLOWED


@pytest.mark.parametrize(
    ("now", "rules"),
    [
        (
            template(securityContext={"privileged": True}, env=[{"name": "EGPU", "value": "2"}]),
            ["environment-blocked"],
        ),
        (
            template(env=[{"name": "EGPU", "value": "1"}, {"name": "CUDA_MPS_X"}]),
            ["environment-blocked"],
        ),
    ],
)
def test_what_an_update_makes_wrong_is_rules_refusing(now: Fields, rules: list[str]) -> None:
    answer = validated(review_of(now, old=BAD))
    assert rules_refusing(answer) == rules
    assert "1 problem\n" in answer.message


def test_a_pod_that_runs_can_always_be_labelled_bound_and_finished() -> None:
    old = asking(hostIPC=None, nodeName="node-1")
    now = changed(old, labels={"a": "b"}) | {"status": {"phase": "Succeeded"}}
    assert validated(review_of(now, old=old)) == ALLOWED


def test_an_object_that_goes_may_be_changed_in_any_way() -> None:
    old = changed(asking(), deletionTimestamp="2026-11-21T00:00:00Z", finalizers=["a"])
    now = changed(
        in_kind("containers", securityContext={"privileged": True}),
        deletionTimestamp="2026-11-21T00:00:00Z",
    )
    assert validated(review_of(now, old=old)) == ALLOWED
    assert rules_refusing(validated(review_of(now, old=pod(container())))), (
        "only the API server's own word counts"
    )


@pytest.mark.parametrize("operation", ["DELETE", "CONNECT"])
def test_deleting_and_connecting_are_never_rules_refusing(operation: str) -> None:
    review = review_of(BAD, operation, oldObject=BAD)
    assert validated(review) == mutated(review) == ALLOWED
    assert validated(review_of(BAD, operation, object=None)) == ALLOWED


def test_a_placement_is_changed_by_the_scheduler_alone() -> None:
    old, now = (changed(asking(), annotations=notes) for notes in ({}, PLACED))
    for before, after in ((old, now), (now, old)):
        assert rules_refusing(validated(review_of(after, old=before))) == ["placement-annotation"]
        scheduler = {"username": "system:serviceaccount:mpsd-system:mpsd-scheduler"}
        assert validated(review_of(after, old=before, userInfo=scheduler)) == ALLOWED
    assert validated(review_of(changed(now, labels={"a": "b"}), old=now)) == ALLOWED


# What `kubectl debug --profile` writes into its container (profiles.go of kubectl).
_RESTRICTED = {
    "runAsNonRoot": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}
_PROFILES: dict[str, tuple[Fields | None, list[str]]] = {
    "restricted": (_RESTRICTED | {"seccompProfile": {"type": "RuntimeDefault"}}, []),
    "baseline": (None, []),
    "netadmin": ({"capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}}, []),
    "legacy": (None, []),
    "general": ({"capabilities": {"add": ["SYS_PTRACE"]}}, ["capabilities"]),
    "sysadmin": ({"privileged": True}, ["privileged"]),
}


@pytest.mark.parametrize("profile", _PROFILES)
def test_a_debugger_of_a_gpu_pod_is_admitted_by_its_profile_as_the_page_says(profile: str) -> None:
    security, refusing = _PROFILES[profile]
    old = asking(nodeName="node-1")
    now = copy.deepcopy(old)
    now["spec"]["ephemeralContainers"] = [
        {"name": "debugger", "image": "busybox", "securityContext": security}
    ]
    review = review_of(now, old=old, subResource="ephemeralcontainers")
    assert rules_refusing(validated(review)) == refusing
    strict = [*refusing, *([] if profile == "restricted" else ["host-root"])]
    assert (
        rules_refusing(validated(review, seen=AdmissionContext({"mpsd.io/enforce": "all"})))
        == strict
    )
    (row,) = (
        line
        for line in page("docs/admission.md").text.splitlines()
        if re.match(rf"\| .*`{profile}`.* \|", line)
    )
    _name, shipped, hostile = (cell.strip() for cell in row.strip("|").split("|"))
    assert [
        rule for rule in ("capabilities", "privileged") if f"refused by `{rule}`" in shipped
    ] == refusing
    assert ("`host-root`" in hostile) == ("host-root" in strict)
