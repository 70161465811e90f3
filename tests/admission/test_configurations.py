"""What a webhook configuration must say: repaired, never locked out, left alone once it is
right."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.admission.rules.configurations import (
    EXEMPT,
    PROBE,
    Called,
    Calls,
    FailurePolicy,
    WebhookRegistration,
    authorities_named,
    called,
    exemption,
    is_registered,
    probe,
    repair,
)
from mpsd.admission.rules.review import ReviewNeeds, needed_to_validate, read_review
from tests.admission.reviews import review_of, validated
from tests.model.manifests import FACTS, POLICY, with_admission

WANTED = WebhookRegistration(
    "mpsd-webhook", "mpsd-system", "/validate", "", "QUJD", FailurePolicy.FAIL
)
EXEMPTION = {"key": EXEMPT, "operator": "NotIn", "values": ["true"]}
RULES = [
    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
]
Fields = dict[str, Any]


def shipped(**fields: object) -> Fields:
    """A configuration as the manifests have it."""
    webhook = {
        "name": "pods.mpsd.io",
        "clientConfig": {
            "service": {"name": "mpsd-webhook", "namespace": "mpsd-system", "path": "/validate"}
        },
        "failurePolicy": "Ignore",
        "namespaceSelector": {"matchExpressions": [EXEMPTION]},
        "rules": RULES,
        **fields,
    }
    return {"metadata": {"name": "mpsd-webhook", "resourceVersion": "7"}, "webhooks": [webhook]}


def settled(
    configuration: Fields, wanted: WebhookRegistration = WANTED, *, may_fail: bool = True
) -> Fields:
    """The configuration after every repair."""
    for _look in range(3):
        change = repair(configuration, wanted, may_fail=may_fail)
        if change is None:
            return configuration
        configuration = {**configuration, "webhooks": change.webhooks}
    raise AssertionError("repairs do not come to an end")


def test_the_authorities_come_first_and_fail_comes_after_them() -> None:
    first = repair(shipped(), WANTED, may_fail=True)
    assert first
    assert first.webhooks[0]["clientConfig"]["caBundle"] == "QUJD"
    assert first.webhooks[0]["failurePolicy"] == "Ignore"
    assert first.changes == ("pods.mpsd.io: clientConfig",)
    second = repair({"webhooks": first.webhooks}, WANTED, may_fail=True)
    assert second
    assert second.webhooks[0]["failurePolicy"] == "Fail"
    assert second.changes == ("pods.mpsd.io: failurePolicy",)
    assert repair({"webhooks": second.webhooks}, WANTED, may_fail=True) is None


def test_fail_is_taken_back_where_no_api_server_can_call() -> None:
    change = repair(settled(shipped()), WANTED, may_fail=False, must_ignore=True)
    assert change
    assert change.webhooks[0]["failurePolicy"] == "Ignore"
    assert change.changes == ("pods.mpsd.io: failurePolicy",)
    assert repair({"webhooks": change.webhooks}, WANTED, may_fail=False, must_ignore=True) is None


WORD = "0123456789abcdef"
OURS = (
    'Internal error occurred: failed calling webhook "validate.mpsd.io": Post "https://x": dial'
    " tcp: i/o timeout"
)


@pytest.mark.parametrize(
    ("refusal", "fails", "expected"),
    [
        (
            f'admission webhook "validate.mpsd.io" denied the request: mpsd.io/probe: {WORD}',
            True,
            Called.YES,
        ),
        ("", False, Called.NO),
        ("", True, Called.UNKNOWN),
        (OURS, True, Called.NO),
        (OURS.replace("validate.mpsd.io", "kyverno.svc"), True, Called.UNKNOWN),
        (
            "mpsd lacks the right to create podtemplates mpsd-probe in default",
            False,
            Called.UNKNOWN,
        ),
        ("create podtemplates: no answer from the Kubernetes API in 10 s", True, Called.UNKNOWN),
        ('admission webhook "other.io" denied the request: no', False, Called.UNKNOWN),
    ],
)
def test_only_the_word_of_a_probe_proves_a_call_and_only_a_failed_call_disproves_it(
    refusal: str, fails: bool, expected: Called
) -> None:
    assert called(refusal, WORD, fails=fails) is expected


@given(st.lists(st.tuples(st.sampled_from(Called), st.floats(0.1, 40)), max_size=12))
def test_fail_is_taken_back_only_after_a_time_without_one_call(
    steps: list[tuple[Called, float]],
) -> None:
    calls, now, failing_since = Calls(), 0.0, None
    for found, later_s in steps:
        now += later_s
        calls = calls.after(found, now)
        if found is Called.YES:
            failing_since = None
        elif found is Called.NO and failing_since is None:
            failing_since = now
        assert calls.must_ignore(now, 60.0) is (
            failing_since is not None and now - failing_since >= 60.0
        )


def test_a_probe_is_refused_with_its_word_whatever_counts_in_its_namespace() -> None:
    for policy in (POLICY, with_admission(exempt_namespaces=("default",), rules={})):
        answer = validated(review_of(probe(WORD), namespace="default", dryRun=True), policy)
        assert not answer.allowed
        assert called(answer.message, WORD, fails=True) is Called.YES
        assert answer.verdicts == ()
    assert needed_to_validate(read_review(review_of(probe(WORD))), POLICY, FACTS) == ReviewNeeds()


@pytest.mark.parametrize("annotations", [None, [], {}, {PROBE: 7}, {"other": WORD}])
def test_another_template_is_judged_as_ever(annotations: object) -> None:
    thing = probe(WORD)
    thing["metadata"]["annotations"] = annotations
    assert WORD not in validated(review_of(thing)).message


@pytest.mark.parametrize(
    "broken",
    [
        {"clientConfig": {"url": "https://elsewhere/validate", "caBundle": "QUJD"}},
        {"namespaceSelector": None},
        {
            "namespaceSelector": {
                "matchExpressions": [{"key": EXEMPT, "operator": "NotIn", "values": ["false"]}]
            }
        },
    ],
)
def test_what_somebody_breaks_is_put_right(broken: Fields) -> None:
    configuration = shipped(**broken)
    assert not is_registered(configuration, WANTED)
    (webhook,) = settled(configuration)["webhooks"]
    assert webhook["clientConfig"]["service"]["name"] == "mpsd-webhook"
    assert webhook["clientConfig"]["caBundle"] == "QUJD"
    assert EXEMPTION in webhook["namespaceSelector"]["matchExpressions"]
    assert webhook["failurePolicy"] == "Fail"


def test_an_exemption_in_other_words_and_what_stands_beside_it_are_left_alone() -> None:
    selector = {
        "matchLabels": {"team": "a"},
        "matchExpressions": [
            {"key": EXEMPT, "operator": "DoesNotExist"},
            {"key": "x", "operator": "Exists"},
        ],
    }
    assert (
        settled(shipped(namespaceSelector=selector))["webhooks"][0]["namespaceSelector"] == selector
    )


def test_a_url_takes_the_place_of_the_service() -> None:
    wanted = replace(WANTED, url="https://10.0.0.7:9443/")
    (webhook,) = settled(shipped(), wanted)["webhooks"]
    assert webhook["clientConfig"] == {"url": "https://10.0.0.7:9443/validate", "caBundle": "QUJD"}


def test_authorities_that_somebody_else_writes_stay() -> None:
    wanted = replace(WANTED, authorities=None)
    client = {**shipped()["webhooks"][0]["clientConfig"], "caBundle": "Y2VydC1tYW5hZ2Vy"}
    right = settled(shipped(clientConfig=client), wanted)
    assert authorities_named(right) == ("Y2VydC1tYW5hZ2Vy",)


@pytest.mark.parametrize(
    ("labels", "is_exempt"), [(None, False), ({EXEMPT: "false"}, False), ({EXEMPT: "true"}, True)]
)
def test_a_namespace_is_exempt_by_its_label(labels: Fields | None, is_exempt: bool) -> None:
    patch = exemption({"metadata": {"labels": labels} if labels is not None else {}})
    assert patch == (None if is_exempt else {"metadata": {"labels": {EXEMPT: "true"}}})


VALUES = st.none() | st.booleans() | st.text(max_size=5) | st.lists(st.text(max_size=3), max_size=2)
EXPRESSIONS = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.sampled_from([EXEMPT, "a"]),
            "operator": st.sampled_from(["In", "NotIn", "DoesNotExist"]),
        },
        optional={"values": st.lists(st.sampled_from(["true", "false"]), max_size=2)},
    ),
    max_size=3,
)
WEBHOOKS = st.fixed_dictionaries(
    {"name": st.text(max_size=5)},
    optional={
        "clientConfig": (
            st.dictionaries(st.sampled_from(["url", "caBundle"]), st.text(max_size=5))
            | st.fixed_dictionaries(
                {"service": st.dictionaries(st.sampled_from(["name", "path", "port"]), VALUES)}
            )
        ),
        "failurePolicy": st.sampled_from(["Ignore", "Fail"]),
        "namespaceSelector": st.fixed_dictionaries({}, optional={"matchExpressions": EXPRESSIONS}),
        "rules": VALUES,
    },
)


@given(st.lists(WEBHOOKS, max_size=3), st.booleans())
def test_every_configuration_is_right_after_its_repairs_and_then_left_alone(
    webhooks: list[Fields], may: bool
) -> None:
    configuration = {"webhooks": webhooks}
    steps = [configuration]
    while (change := repair(steps[-1], WANTED, may_fail=may)) is not None:
        steps.append({"webhooks": change.webhooks})
        assert len(steps) < 4
    for before, after in pairwise(steps):
        for old, new in zip(before["webhooks"], after["webhooks"], strict=True):
            assert old.get("rules") == new.get("rules")
            turned = old.get("failurePolicy") != "Fail" and new.get("failurePolicy") == "Fail"
            assert not turned or is_registered({"webhooks": [old]}, WANTED), (
                "Fail before it could be reached"
            )
    assert not webhooks or is_registered(steps[-1], WANTED)
