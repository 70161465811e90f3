"""AdmissionReviews for tests, as an API server sends them, and their patches applied."""

import copy
from typing import Any

from mpsd.admission.rules.review import (
    AdmissionAnswer,
    AdmissionContext,
    mutate,
    read_review,
    validate,
)
from mpsd.model.policy import Policy
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
    """The object after the patch, by the part of RFC 6902 that mpsd uses: add to a mapping or a
    list, and remove from a mapping."""
    after: Any = copy.deepcopy(thing)
    for change in answer.patch:
        assert change.keys() == {"op", "path", *(["value"] if change["op"] == "add" else [])}
        *steps, last = (
            step.replace("~1", "/") for step in str(change["path"]).removeprefix("/").split("/")
        )
        place = after
        for step in steps:
            place = place[int(step)] if isinstance(place, list) else place[step]
        if change["op"] == "remove":
            del place[last]
        elif isinstance(place, dict):
            place[last] = copy.deepcopy(change["value"])
        else:
            place.insert(len(place) if last == "-" else int(last), copy.deepcopy(change["value"]))
    result: Fields = after
    return result
