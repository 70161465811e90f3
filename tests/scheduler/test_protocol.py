"""What a real kube-scheduler asked, and what mpsd answers to it, against the schema of the
protocol."""

import json
from pathlib import Path

import msgspec
import pytest
from jsonschema import Draft202012Validator

from mpsd.scheduler.wire import (
    CandidatesReader,
    MalformedRequest,
    bind_answer,
    filter_answer,
    filter_error,
    preempt_answer,
    prioritize_answer,
    read_binding,
    read_preemption,
)
from tests.scheduler.protocol import (
    RECORDED,
    VERBS,
    WHOLE_NODES,
    named,
    problems,
    request,
    verb_of,
)


def _recorded(*verbs: str) -> list[Path]:
    return [file for file in RECORDED if verb_of(file) in verbs]


def test_every_verb_was_recorded() -> None:
    assert {verb_of(file) for file in RECORDED} == set(VERBS)


def test_a_scheduler_that_sends_whole_nodes_is_refused_with_the_remedy() -> None:
    with pytest.raises(MalformedRequest, match="nodeCacheCapable: true"):
        CandidatesReader().read(WHOLE_NODES.read_bytes())


@pytest.mark.parametrize("file", RECORDED, ids=named)
def test_what_was_recorded_is_what_the_schema_says(file: Path) -> None:
    assert problems(f"{verb_of(file)}.request", request(file)) == []


def test_the_schema_is_one_and_refuses_what_it_does_not_know() -> None:
    Draft202012Validator.check_schema(
        json.loads((RECORDED[0].parents[2] / "schema.json").read_text())
    )
    for verb in VERBS:
        assert problems(f"{verb}.request", {"pod": {}})
        assert problems(f"{verb}.answer", {"nodes": []})


@pytest.mark.parametrize("file", _recorded("filter", "prioritize"), ids=named)
def test_our_answers_about_nodes_are_what_the_schema_says(file: Path) -> None:
    asked = CandidatesReader().read(file.read_bytes())
    first, *others = asked.nodes
    reasons = dict.fromkeys(others, "gpu0 has 4 of the needed 7 GiB free, gpu1 3")
    for answer in (
        filter_answer([first], reasons, {}),
        filter_answer([], dict.fromkeys(asked.nodes, "it has no GPU shared by mpsd"), reasons),
        filter_error("mpsd has not seen the cluster yet"),
    ):
        said = json.loads(answer)
        assert problems("filter.answer", said) == []
        assert said["Nodes"] is None, "in the way that it was asked"
    assert (
        problems(
            "prioritize.answer", json.loads(prioritize_answer(asked.nodes, range(len(asked.nodes))))
        )
        == []
    )


@pytest.mark.parametrize("file", _recorded("preempt"), ids=named)
def test_our_answers_about_victims_are_what_the_schema_says(file: Path) -> None:
    proposed = read_preemption(file.read_bytes())
    assert problems("preempt.answer", json.loads(preempt_answer(proposed.nodes))) == []
    assert problems("preempt.answer", json.loads(preempt_answer({}))) == []


@pytest.mark.parametrize("file", _recorded("bind"), ids=named)
def test_our_answers_about_a_binding_are_what_the_schema_says(file: Path) -> None:
    assert read_binding(file.read_bytes()).node == request(file)["Node"]
    for reason in ("", "another scheduler was faster"):
        assert problems("bind.answer", msgspec.json.decode(bind_answer(reason))) == []
