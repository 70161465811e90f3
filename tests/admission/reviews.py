"""AdmissionReviews for tests, as an API server sends them, and their patches applied."""

from mpsd.admission.rules.review import (
    AdmissionAnswer,
    AdmissionContext,
    mutate,
    read_review,
    validate,
)
from mpsd.model.policy import Policy
from mpsd.simulator.api_server.bodies import edited
from tests.model.manifests import FACTS, POLICY, Fields

UNSEEN = AdmissionContext()
ALLOWED = AdmissionAnswer("705ab4f5")


def review_of(
    thing: Fields, operation: str = "CREATE", old: Fields | None = None, **request: object
) -> Fields:
    """The review of an object that is created, or becomes `thing` from `old`."""
    group, _, version = thing["apiVersion"].rpartition("/")
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5",
            "kind": {"group": group, "version": version, "kind": thing["kind"]},
            "namespace": "team",
            "operation": operation if old is None else "UPDATE",
            "userInfo": {"username": "ann", "groups": ["system:authenticated"]},
            "object": thing,
            "oldObject": old,
            "dryRun": False,
            **request,
        },
    }


def validated(
    review: object, policy: Policy = POLICY, seen: AdmissionContext = UNSEEN
) -> AdmissionAnswer:
    return validate(read_review(review), policy, FACTS, seen)


def mutated(
    review: object, policy: Policy = POLICY, seen: AdmissionContext = UNSEEN
) -> AdmissionAnswer:
    return mutate(read_review(review), policy, FACTS, seen)


def rules_refusing(answer: AdmissionAnswer) -> list[str]:
    """The rules that refuse, after a look at what belongs to a refusal."""
    rules = [rule for rule, mode in answer.verdicts if mode == "enforce"]
    assert answer.allowed is not bool(rules)
    assert bool(answer.message) is bool(rules)
    return rules


def patched(thing: Fields, answer: AdmissionAnswer) -> Fields:
    """The object after the patch, as an API server applies it."""
    after: Fields = edited(thing, [*answer.patch])
    return after
