"""What a limits file holds becomes limits, or every problem in it with a path and a remedy."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given

from mpsd.model.gpu_facts import GpuFacts
from mpsd.model.policy import Policy
from mpsd.model.problem import InvalidInput, Problem
from mpsd.platform.rules.limits_reading import read_gpu_facts, read_policy
from tests.model.manifests import ANY_JSON
from tests.model.worlds import POLICY, POLICY_DATA

CAPABILITY = {
    "compute_capability": "9.0",
    "clients": 48,
    "cores_per_sm": 128,
    "context_base_mib": 28,
    "context_per_sm_kib": 3772,
    "server_mib": 76,
    "sm_granularity": 2,
    "sm_minimum": 8,
    "measured": True,
    "source": "a test",
}
CARD = {
    "name": "NVIDIA H200",
    "short": "H200",
    "compute_capability": "9.0",
    "memory_mib": 143155,
    "sms": 132,
    "measured": True,
    "source": "a test",
}
FACTS_DATA = {"version": "v1", "capabilities": [CAPABILITY], "cards": [CARD]}


def problems_of_policy(data: object) -> list[Problem]:
    with pytest.raises(InvalidInput) as raised:
        read_policy(data, "policy.yaml")
    assert raised.value.subject == "policy.yaml"
    return list(raised.value.problems)


def problems_of_facts(data: object) -> list[Problem]:
    with pytest.raises(InvalidInput) as raised:
        read_gpu_facts(data, "gpus.yaml")
    return list(raised.value.problems)


def test_a_complete_policy_is_read() -> None:
    assert read_policy(copy.deepcopy(POLICY_DATA), "policy.yaml") == POLICY


def test_complete_facts_are_read() -> None:
    facts = read_gpu_facts(FACTS_DATA, "gpus.yaml")
    assert facts.cards[0].short == "H200"


def test_every_field_that_is_missing_is_named_at_once() -> None:
    found = problems_of_policy({"version": "v1"})
    assert {problem.where for problem in found} == POLICY_DATA.keys() - {"version"}
    assert {problem.rule for problem in found} == {"field-missing"}


def test_unknown_missing_and_wrong_fields_are_all_said_together() -> None:
    data: dict[str, Any] = copy.deepcopy(POLICY_DATA)
    data["placment"] = data.pop("placement")
    data["requests"]["clients_per_grant"] = "many"
    assert {(problem.rule, problem.where, problem.value) for problem in problems_of_policy(data)} == {
        ("field-missing", "placement", ""),
        ("field-unknown", "placment", '"binpack"'),
        ("field-wrong", "requests.clients_per_grant", '"many"'),
    }


@pytest.mark.parametrize("version", ["v2", 1, None, "V1"])
def test_another_version_is_refused(version: object) -> None:
    (problem,) = problems_of_policy({**POLICY_DATA, "version": version})
    assert (problem.rule, problem.where, problem.remedy) == ("version-unknown", "version", 'write "v1"')


@pytest.mark.parametrize("data", [None, [], "policy", 7, True])
def test_a_file_that_holds_no_fields_is_refused(data: object) -> None:
    (problem,) = problems_of_policy(data)
    assert problem.rule == "not-a-mapping"


def test_a_field_in_a_list_is_found_by_its_position() -> None:
    found = problems_of_facts({**FACTS_DATA, "cards": [CARD, {**CARD, "short": "H 200"}]})
    assert [problem.where for problem in found] == ["cards[1].short"]


@pytest.mark.parametrize(
    ("facts", "contradiction"),
    [
        ({"cards": [CARD, CARD]}, ("cards", "cards give one short name to more than one card")),
        (
            {"capabilities": [CAPABILITY, CAPABILITY]},
            ("capabilities", "capabilities name one compute_capability more than once"),
        ),
        (
            {"cards": [{**CARD, "compute_capability": "8.0"}]},
            ("the file", "card H200: compute_capability 8.0 is not among the capabilities"),
        ),
    ],
)
def test_rows_that_do_not_agree_are_refused(facts: dict[str, object], contradiction: tuple[str, str]) -> None:
    (problem,) = problems_of_facts({**FACTS_DATA, **facts})
    assert (problem.rule, problem.where, problem.message) == ("fields-contradict", *contradiction)


def test_rows_that_do_not_agree_are_named_beside_a_row_that_is_wrong_in_itself() -> None:
    found = problems_of_facts({**FACTS_DATA, "cards": [CARD, {**CARD, "short": "A", "sms": "1"}, CARD]})
    assert [(problem.rule, problem.where) for problem in found] == [
        ("field-wrong", "cards[1].sms"),
        ("fields-contradict", "cards"),
    ]
    found = problems_of_facts({**FACTS_DATA, "capabilities": [{**CAPABILITY, "clients": "1"}]})
    assert [problem.where for problem in found] == ["capabilities[0].clients"], "no card is said to lack that row"


def test_a_gpu_named_twice_is_said_beside_a_domain_that_is_wrong_in_itself() -> None:
    found = problems_of_policy({**POLICY_DATA, "domains": [[0, 1], ["2", 3], [1, 4]]})
    assert [(problem.where, problem.message) for problem in found][1:] == [("domains", "GPU 1 is named more than once")]
    assert found[0].where == "domains[1][0]"


@pytest.mark.parametrize("value", [False, True])
def test_a_word_that_yaml_reads_as_true_or_false_is_to_be_quoted(value: bool) -> None:
    data: dict[str, Any] = copy.deepcopy(POLICY_DATA)
    data["admission"]["host_ipc"] = value
    (problem,) = problems_of_policy(data)
    assert (problem.where, problem.value) == ("admission.host_ipc", str(value).lower())
    assert "off" in problem.message
    assert problem.remedy == "write it in quotes; without, YAML reads on, off, yes and no as true or false"


def test_a_number_where_text_belongs_is_to_be_quoted() -> None:
    data: dict[str, Any] = copy.deepcopy(POLICY_DATA)
    data["admission"]["schedulers"] = [7]
    (problem,) = problems_of_policy(data)
    assert (problem.where, problem.remedy) == ("admission.schedulers[0]", "write it in quotes")


@pytest.mark.parametrize("key", ["sms", "memory_mib", "measured", "source"])
def test_a_number_in_quotes_or_a_fact_without_a_source_is_refused(key: str) -> None:
    (problem,) = problems_of_facts({**FACTS_DATA, "cards": [{**CARD, key: "" if key == "source" else "1"}]})
    assert problem.where == f"cards[0].{key}"


@given(ANY_JSON)
def test_any_json_is_limits_or_problems(data: object) -> None:
    for read in (read_policy, read_gpu_facts):
        held = outcome(read, data)
        if isinstance(held, InvalidInput):
            assert held.problems
            assert all(problem.remedy for problem in held.problems)


def outcome(read: Callable[[object, str], Policy | GpuFacts], data: object) -> Policy | GpuFacts | InvalidInput:
    try:
        return read(data, "a file")
    except InvalidInput as error:
        return error
