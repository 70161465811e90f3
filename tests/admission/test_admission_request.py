"""Any JSON is a review that is answered, or is no review and is told why."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.admission.rules.review import MalformedReview, needed_to_mutate, needed_to_validate, read_review
from mpsd.model.policy import HostIPC
from tests.admission.reviews import mutated, review_of, validated
from tests.model.manifests import ANY_JSON, FACTS, POLICY, Fields, broken_objects, container, pod, with_admission


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"apiVersion": "admission.k8s.io/v1beta1"}, "admission.k8s.io/v1beta1"),
        ({"kind": "Pod"}, 'the body is "Pod"'),
        ({"apiVersion": None}, "null"),
        ({"request": None}, "request: is missing"),
        ({"request": []}, "request is []: is not a mapping"),
        ({"request.uid": None}, "request.uid: is missing"),
        ({"request.uid": ""}, "request.uid: is missing"),
        ({"request.uid": 7}, "request.uid is 7: is not text"),
        ({"request.operation": "PATCH"}, 'request.operation is "PATCH": is no operation'),
        ({"request.operation": None}, "request.operation: is missing"),
        ({"request.kind": None}, "request.kind: is missing"),
        ({"request.kind": {"group": "", "version": "v1"}}, "request.kind.kind: is missing"),
        ({"request.kind": {"group": 1, "version": "v1", "kind": "Pod"}}, "request.kind.group is 1"),
        ({"request.object": None}, "request.object: is missing"),
        ({"request.object": "x"}, 'request.object is "x"'),
        ({"request.namespace": ["x"]}, "request.namespace is"),
        ({"request.userInfo": "ann"}, "request.userInfo is"),
        ({"request.dryRun": "yes"}, "request.dryRun is"),
        ({"request.uid": 7, "request.operation": 7}, "request.operation is 7"),
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
    with pytest.raises(MalformedReview, match="and not an AdmissionReview"):
        read_review(body)


def test_an_update_without_its_old_object_is_no_review() -> None:
    with pytest.raises(MalformedReview, match=r"request\.oldObject: is missing"):
        read_review(review_of(pod(container()), "UPDATE"))


def answered(review: object) -> None:
    """Any JSON gives answers that can be sent, or is no review."""
    for policy in (POLICY, with_admission(host_ipc=HostIPC.INJECT)):
        try:
            question = read_review(review)
        except MalformedReview:
            return
        needed_to_validate(question, policy, FACTS)
        needed_to_mutate(question, policy)
        for answer in (validated(review, policy), mutated(review, policy)):
            json.dumps(answer.record()).encode()
            assert answer.allowed or answer.message
            assert all(len(warning) < 120 and warning.isprintable() for warning in answer.warnings)
            assert all(line.isprintable() for line in answer.message.split("\n"))


@given(ANY_JSON)
def test_any_json_is_answered_or_is_no_review(document: object) -> None:
    answered(document)
    answered({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": document})


@given(broken_objects(), broken_objects() | st.none(), ANY_JSON)
def test_any_object_in_a_review_is_answered(thing: Fields, old: Fields | None, junk: object) -> None:
    named = {**thing, "apiVersion": "v1", "kind": thing["kind"] if isinstance(thing.get("kind"), str) else "Pod"}
    answered(review_of(named, old=old))
    answered(review_of(named, old=old, subResource="ephemeralcontainers", userInfo=junk))
    answered(review_of({**named, "kind": "Pod"}, old=named))
    answered(review_of(named) | {"request": junk})


def test_json_as_deep_as_a_parser_takes_is_answered() -> None:
    deep: Any = {}
    for _ in range(900):
        deep = {"spec": deep}
    answered(review_of({"apiVersion": "v1", "kind": "Pod", "metadata": {}, **deep}, old=copy.copy(deep)))
    list_of = review_of(pod(container(args=[deep])), old=pod(container(args=[json.loads(json.dumps(deep))])))
    answered(list_of)
