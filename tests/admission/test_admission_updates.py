"""On an update only what was not wrong before counts, and an object that goes is free."""

import copy

import pytest

from tests.admission.cases import PLACED, in_kind
from tests.admission.reviews import ALLOWED, mutated, review_of, rules_refusing, validated
from tests.model.manifests import MEMORY, Fields, container, inside, pod


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
        template(securityContext={"privileged": True}, env=[{"name": "EGPU", "value": "1"}], image="new"),
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
        (template(securityContext={"privileged": True}, env=[{"name": "EGPU", "value": "2"}]), ["environment-blocked"]),
        (template(env=[{"name": "EGPU", "value": "1"}, {"name": "CUDA_MPS_X"}]), ["environment-blocked"]),
    ],
)
def test_what_an_update_makes_wrong_is_rules_refusing(now: Fields, rules: list[str]) -> None:
    answer = validated(review_of(now, old=BAD))
    assert rules_refusing(answer) == rules
    assert "1 problem\n" in answer.message


def test_a_pod_that_asks_only_now_is_judged_as_one_that_asks() -> None:
    old = inside("apps/v1", "Deployment", pod(container(securityContext={"privileged": True})))
    now = inside("apps/v1", "Deployment", pod(container(limits={MEMORY: 7}, securityContext={"privileged": True})))
    assert rules_refusing(validated(review_of(now, old=old))) == ["privileged"]


def test_a_pod_that_runs_can_always_be_labelled_bound_and_finished() -> None:
    old = pod(container(limits={MEMORY: 7}), hostIPC=None, nodeName="node-1")
    now = changed(old, labels={"a": "b"}) | {"status": {"phase": "Succeeded"}}
    assert validated(review_of(now, old=old)) == ALLOWED


def test_an_object_that_goes_may_be_changed_in_any_way() -> None:
    old = changed(pod(container(limits={MEMORY: 7})), deletionTimestamp="2026-11-21T00:00:00Z", finalizers=["a"])
    now = changed(in_kind("containers", securityContext={"privileged": True}), deletionTimestamp="2026-11-21T00:00:00Z")
    assert validated(review_of(now, old=old)) == ALLOWED
    assert rules_refusing(validated(review_of(now, old=pod(container())))), "only the API server's own word counts"


@pytest.mark.parametrize("operation", ["DELETE", "CONNECT"])
def test_deleting_and_connecting_are_never_rules_refusing(operation: str) -> None:
    review = review_of(BAD, operation, oldObject=BAD)
    assert validated(review) == mutated(review) == ALLOWED
    assert validated(review_of(BAD, operation, object=None)) == ALLOWED


def test_a_placement_is_changed_by_the_scheduler_alone() -> None:
    old, now = (changed(pod(container(limits={MEMORY: 7})), annotations=notes) for notes in ({}, PLACED))
    for before, after in ((old, now), (now, old)):
        assert rules_refusing(validated(review_of(after, old=before))) == ["placement-annotation"]
        scheduler = {"username": "system:serviceaccount:mpsd-system:mpsd-scheduler"}
        assert validated(review_of(after, old=before, userInfo=scheduler)) == ALLOWED
    assert validated(review_of(changed(now, labels={"a": "b"}), old=now)) == ALLOWED


def test_an_ephemeral_container_is_held_to_the_rules_of_its_pod() -> None:
    old = pod(container(limits={MEMORY: 7}), nodeName="node-1")
    debug = container("debug", env=[{"name": "CUDA_MPS_X", "value": "1"}], securityContext={"privileged": True})
    now = copy.deepcopy(old)
    now["spec"]["ephemeralContainers"] = [debug]
    answer = validated(review_of(now, old=old, subResource="ephemeralcontainers"))
    assert rules_refusing(answer) == ["environment-blocked", "privileged"]
