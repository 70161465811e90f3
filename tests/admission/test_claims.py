"""Pods that get their GPU by a resource claim are judged as those that request it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.admission.rules.claims import asked_of, classes_of, wrong_in_claim
from mpsd.admission.rules.requests import BY_CLASS
from mpsd.admission.rules.review import (
    AdmissionContext,
    ReviewNeeds,
    needed_to_mutate,
    needed_to_validate,
    read_review,
)
from mpsd.model.pod import CLAIM, CLAIM_TEMPLATE, ClaimName
from mpsd.model.policy import HostIPC
from tests.admission.reviews import ALLOWED, mutated, patched, review_of, rules_refusing, validated
from tests.model.manifests import (
    FACTS,
    MEMORY,
    POLICY,
    Fields,
    container,
    inside,
    pod,
    with_admission,
)

SHARE = ClaimName(CLAIM_TEMPLATE, "share")
OURS, ANOTHER = (
    AdmissionContext(claims={SHARE: (name,)}) for name in ("mps.mpsd.io", "gpu.nvidia.com")
)
UNKNOWN = AdmissionContext()


def claimed(*containers: Fields, **spec: object) -> Fields:
    """A pod whose first container, `main` unless they are given, uses the claim of a template."""
    claims = {"resources": {"claims": [{"name": "gpu"}]}}
    entry = {"name": "gpu", "resourceClaimTemplateName": SHARE.name}
    return pod(*(containers or [container(**claims)]), resourceClaims=[entry], **spec)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"hostIPC": None}, "host-ipc-missing"),
        ({"nodeName": "node1"}, "node-name"),
        ({"runtimeClassName": "kata"}, "runtime-class"),
        ({"volumes": [{"name": "dev", "hostPath": {"path": "/dev"}}]}, "host-path"),
    ],
)
def test_a_pod_with_a_claim_of_mpsd_meets_the_rules_for_gpus(change: Fields, rule: str) -> None:
    review = review_of(claimed(**change))
    assert rules_refusing(validated(review, seen=OURS)) == [rule]
    assert validated(review, seen=ANOTHER).allowed


def test_a_good_pod_with_a_claim_is_admitted_without_a_word() -> None:
    for seen in (OURS, ANOTHER, UNKNOWN):
        assert validated(review_of(claimed()), seen=seen) == ALLOWED


def test_a_claim_that_cannot_be_read_counts_as_one_of_mpsd_and_is_told() -> None:
    answer = validated(review_of(claimed(hostIPC=None)), seen=UNKNOWN)
    assert rules_refusing(answer) == ["host-ipc-missing"]
    assert "ResourceClaimTemplate share cannot be read" in answer.warnings[0]


def test_the_claims_of_a_template_are_judged_once_its_pods_are_created() -> None:
    job = inside("batch/v1", "Job", claimed(hostIPC=None))
    assert validated(review_of(job), seen=UNKNOWN) == ALLOWED
    assert rules_refusing(validated(review_of(job), seen=OURS)) == ["host-ipc-missing"]


def test_a_claim_that_no_container_uses_gives_nobody_a_gpu() -> None:
    assert validated(review_of(claimed(container(), hostIPC=None)), seen=OURS) == ALLOWED


def test_a_device_class_that_is_requested_as_a_resource_counts() -> None:
    thing = pod(container(limits={f"{BY_CLASS}mps.mpsd.io": 1}), hostIPC=None)
    assert rules_refusing(validated(review_of(thing))) == ["host-ipc-missing"]
    assert (
        validated(review_of(pod(container(limits={f"{BY_CLASS}gpu.nvidia.com": 1}), hostIPC=None)))
        == ALLOWED
    )


def several(*entries: tuple[str, str], **resources: object) -> Fields:
    """A pod with these claims, each with a name and the template that it is made of; its container
    uses the first."""
    claims = [{"name": name, "resourceClaimTemplateName": template} for name, template in entries]
    main = container(resources={"claims": [{"name": entries[0][0]}], **resources})
    return pod(main, resourceClaims=claims)


def test_a_pod_with_two_claims_of_mpsd_is_refused_though_it_uses_one() -> None:
    other = ClaimName(CLAIM_TEMPLATE, "other")
    review = review_of(several(("gpu", "share"), ("more", "other")))
    both = AdmissionContext(claims={SHARE: ("mps.mpsd.io",), other: ("mps.mpsd.io",)})
    answer = validated(review, seen=both)
    assert rules_refusing(answer) == ["request-impossible"]
    assert "spec is gpu and more" in answer.message
    assert (
        validated(
            review, seen=AdmissionContext(claims={**OURS.claims, other: ("nic.example.com",)})
        )
        == ALLOWED
    )
    assert validated(review, seen=OURS) == ALLOWED, "nobody knows what the other one is for"
    assert "request-impossible" in rules_refusing(
        validated(review_of(several(("a", "share"), ("b", "share"))), seen=OURS)
    )


def test_two_entries_of_one_claim_are_one() -> None:
    claims = [{"name": name, "resourceClaimName": "ours"} for name in ("left", "right")]
    thing = pod(container(resources={"claims": [{"name": "left"}]}), resourceClaims=claims)
    seen = AdmissionContext(claims={ClaimName(CLAIM, "ours"): ("mps.mpsd.io",)})
    assert validated(review_of(thing), seen=seen) == ALLOWED


@pytest.mark.parametrize("name", [MEMORY, f"{BY_CLASS}mps.mpsd.io"])
def test_a_claim_of_mpsd_beside_a_request_is_refused(name: str) -> None:
    thing = several(("gpu", "share"), limits={name: 1})
    answer = validated(review_of(thing), seen=OURS)
    assert rules_refusing(answer) == ["request-impossible"]
    assert f"spec is gpu and {name}" in answer.message
    assert validated(review_of(thing), seen=ANOTHER) == ALLOWED
    job = inside("batch/v1", "Job", thing)
    assert rules_refusing(validated(review_of(job), seen=OURS)) == ["request-impossible"]


def test_the_policy_names_the_classes() -> None:
    own = with_admission(device_classes=("small.example.org",))
    seen = AdmissionContext(claims={SHARE: ("small.example.org",)})
    review = review_of(claimed(hostIPC=None))
    assert validated(review, own, seen).allowed is False
    assert validated(review, own, OURS).allowed
    assert validated(review, with_admission(device_classes=()), UNKNOWN).allowed


def test_what_is_needed_of_claims_is_said_beforehand() -> None:
    review = read_review(review_of(claimed(hostIPC=None)))
    assert needed_to_validate(review, POLICY, FACTS) == ReviewNeeds("team", claims=(SHARE,))
    inject = with_admission(host_ipc=HostIPC.INJECT)
    for policy in (POLICY, inject, replace(inject, pod_ends=False)):
        assert needed_to_mutate(review, policy, FACTS) == ReviewNeeds("team", claims=(SHARE,))
    assert needed_to_mutate(review, replace(POLICY, pod_ends=False), FACTS).claims == ()


def test_a_pod_is_changed_only_for_a_claim_that_is_known() -> None:
    inject, thing = with_admission(host_ipc=HostIPC.INJECT), claimed(hostIPC=None)
    thing["spec"]["terminationGracePeriodSeconds"] = 60
    for seen, known in ((OURS, True), (ANOTHER, False), (UNKNOWN, False)):
        spec = patched(thing, mutated(review_of(thing), inject, replace(seen, has_sleep=True)))[
            "spec"
        ]
        assert spec.get("hostIPC") is (True if known else None)
        assert spec["terminationGracePeriodSeconds"] == (65 if known else 60)
        assert ("lifecycle" in spec["containers"][0]) is known


def test_the_classes_of_a_claim_and_of_a_template_are_found_whatever_else_is_in_them() -> None:
    first = {"firstAvailable": [{"deviceClassName": "b"}, {"deviceClassName": "c"}, 1]}
    spec = {
        "devices": {
            "requests": [{"exactly": {"deviceClassName": "a"}}, first, {"exactly": None}, "x"]
        }
    }
    assert (
        classes_of({"spec": spec}, CLAIM)
        == classes_of({"spec": {"spec": spec}}, CLAIM_TEMPLATE)
        == ("a", "b", "c")
    )
    assert classes_of({"spec": {"devices": []}}, CLAIM) == classes_of({}, CLAIM_TEMPLATE) == ()


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=6)
    | st.sampled_from(["7Gi", "30", "mps.mpsd.io"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=6), inner, max_size=2)
    ),
    max_leaves=6,
)
_OPTION = st.dictionaries(
    st.sampled_from(["deviceClassName", "count", "allocationMode", "adminAccess", "capacity"]),
    _JSON | st.just({"requests": {"memory": "7Gi", "mem": "1"}}),
)
_REQUEST = st.dictionaries(
    st.sampled_from(["name", "exactly", "firstAvailable"]), _JSON | _OPTION | st.lists(_OPTION)
)
_DEVICES = st.dictionaries(
    st.sampled_from(["requests", "constraints", "config"]),
    _JSON | st.lists(_REQUEST, max_size=2),
    max_size=3,
)


@given(_DEVICES, st.sampled_from([CLAIM, CLAIM_TEMPLATE]))
def test_any_claim_is_read_and_judged(devices: Fields, kind: str) -> None:
    spec = {"devices": devices}
    thing = {"spec": {"spec": spec} if kind == CLAIM_TEMPLATE else spec}
    for facts in (FACTS, None):
        wrong = wrong_in_claim(thing, kind, POLICY, facts)
        assert all(
            one.where and one.message and one.remedy for one in (*wrong.problems, *wrong.warnings)
        )
    asked = asked_of(thing, kind, POLICY)
    assert (asked is None) is set(classes_of(thing, kind)).isdisjoint(
        POLICY.admission.device_classes
    )
    assert asked is None or str(asked)
