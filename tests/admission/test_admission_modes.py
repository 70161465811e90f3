"""How hard each rule is taken: the policy, and what a namespace's labels make of it."""

import itertools

import pytest

from mpsd.admission.rules.verdict import label_of, modes_in
from mpsd.model.policy import RuleId, RuleMode

RULES = {RuleId.PRIVILEGED: RuleMode.ENFORCE, RuleId.HOST_PID: RuleMode.WARN, RuleId.HOST_ROOT: RuleMode.AUDIT}
ENFORCED, WARNED, AUDITED = RULES


def modes(**labels: str) -> list[str]:
    """What becomes of the enforced, the warned and the audited rule; empty for nothing."""
    found = modes_in({f"mpsd.io/{name}": value for name, value in labels.items()}, RULES).modes
    return [str(found.get(rule, "")) for rule in RULES]


def test_a_namespace_that_says_nothing_gets_the_policy() -> None:
    assert modes_in({}, RULES).modes is RULES
    assert modes_in({"team": "a", "mpsd.io/exempt": "false"}, RULES).modes == RULES


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"enforce": "all"}, ["enforce", "enforce", "enforce"]),
        ({"enforce": "none"}, ["warn", "warn", "audit"]),
        ({"enforce": "none", "warn": "none"}, ["audit", "audit", "audit"]),
        ({"enforce": "none", "warn": "none", "audit": "none"}, ["", "", ""]),
        ({"warn": "all"}, ["enforce", "warn", "warn"]),
        ({"warn": "none"}, ["enforce", "audit", "audit"]),
        ({"audit": "none"}, ["enforce", "warn", ""]),
        ({"audit": "all"}, ["enforce", "warn", "audit"]),
        ({"enforce": "default", "warn": "default"}, ["enforce", "warn", "audit"]),
    ],
)
def test_each_label_says_which_rules_are_taken_so(labels: dict[str, str], expected: list[str]) -> None:
    assert modes(**labels) == expected


@pytest.mark.parametrize("value", ["strict", "", "ALL", "restricted"])
def test_a_label_that_says_nothing_known_is_the_default_and_is_told(value: str) -> None:
    there = modes_in({"mpsd.io/enforce": value}, RULES)
    assert there.modes == RULES
    assert there.changes_pods
    assert there.remarks == (f'the namespace\'s label mpsd.io/enforce is "{value}": write all, none or default',)


def test_a_stronger_label_never_makes_a_rule_weaker() -> None:
    strength = ["", "audit", "warn", "enforce"]
    values = ["none", "default", "all"]
    for combination in itertools.product(values, repeat=3):
        labels = dict(zip(map(str, RuleMode), combination, strict=True))
        for mode, value in labels.items():
            for stronger in values[values.index(value) :]:
                for weak, strong in zip(modes(**labels), modes(**labels | {mode: stronger}), strict=True):
                    assert strength.index(strong) >= strength.index(weak)


def test_labels_are_named_after_the_modes() -> None:
    assert [label_of(mode) for mode in RuleMode] == ["mpsd.io/enforce", "mpsd.io/warn", "mpsd.io/audit"]
