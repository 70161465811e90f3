"""What kube-scheduler writes is read in any case of its fields; what it would not write is refused
in words."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.scheduler.wire import (
    CandidatesReader,
    MalformedRequest,
    Proposed,
    bind_answer,
    filter_answer,
    filter_error,
    preempt_answer,
    prioritize_answer,
    read_binding,
    read_preemption,
)

POD = {"metadata": {"name": "a"}}
BINDING = {"PodName": "a", "PodNamespace": "default", "PodUID": "u", "Node": "node1"}
READERS = (CandidatesReader().read, read_preemption, read_binding)


def written(thing: object) -> bytes:
    return json.dumps(thing).encode()


@pytest.mark.parametrize(
    "case", [str, str.lower, str.upper, lambda name: name[:1].lower() + name[1:]]
)
def test_fields_are_read_in_any_case(case: Callable[[str], str]) -> None:
    candidates = {case("Pod"): POD, case("Nodes"): None, case("NodeNames"): ["node1", "node2"]}
    assert CandidatesReader().read(written(candidates)).nodes == ("node1", "node2")
    victims = {"node1": {case("Pods"): [{case("UID"): "u"}], case("NumPDBViolations"): 2}}
    preemption = read_preemption(
        written({case("Pod"): POD, case("NodeNameToMetaVictims"): victims})
    )
    assert preemption.nodes == {"node1": Proposed(("u",), 2)}
    assert (
        read_binding(written({case(name): value for name, value in BINDING.items()})).pod_uid == "u"
    )


def test_whole_nodes_go_back_as_they_came() -> None:
    nodes = [
        {"metadata": {"name": f"node{n}", "labels": {"é": "\n"}}, "spec": {"x": 2**70}}
        for n in range(3)
    ]
    asked = CandidatesReader().read(
        written({"Pod": POD, "Nodes": {"metadata": {}, "items": nodes}, "NodeNames": None})
    )
    assert asked.nodes == ("node0", "node1", "node2")
    said = json.loads(filter_answer(asked, ("node0", "node2"), {"node1": "full"}, {}))
    assert said["Nodes"]["items"] == [nodes[0], nodes[2]]
    assert (said["NodeNames"], said["FailedNodes"], said["Error"]) == (None, {"node1": "full"}, "")


def test_no_node_at_all_is_a_question_too() -> None:
    for nodes in ({"Nodes": {"metadata": {}, "items": None}}, {"NodeNames": []}):
        assert CandidatesReader().read(written({"Pod": POD} | nodes)).nodes == ()


def test_names_go_back_as_names() -> None:
    asked = CandidatesReader().read(written({"Pod": POD, "NodeNames": ["node1", "node2"]}))
    said = json.loads(filter_answer(asked, ("node2",), {"node1": "small"}, {"node1": "small"}))
    assert said == {
        "Nodes": None,
        "NodeNames": ["node2"],
        "FailedNodes": {"node1": "small"},
        "FailedAndUnresolvableNodes": {"node1": "small"},
        "Error": "",
    }
    assert json.loads(filter_error("not now"))["Error"] == "not now"
    assert json.loads(prioritize_answer(asked.nodes, (10, 0))) == [
        {"Host": "node1", "Score": 10},
        {"Host": "node2", "Score": 0},
    ]


def test_victims_that_come_whole_go_back_as_their_uids() -> None:
    whole = {"node1": {"Pods": [{"metadata": {"uid": "u"}}], "NumPDBViolations": 1}, "node2": None}
    nodes = read_preemption(
        written({"Pod": POD, "NodeNameToVictims": whole, "NodeNameToMetaVictims": None})
    ).nodes
    assert nodes == {"node1": Proposed(("u",), 1), "node2": Proposed((), 0)}
    assert json.loads(preempt_answer(nodes)) == {
        "NodeNameToMetaVictims": {
            "node1": {"Pods": [{"UID": "u"}], "NumPDBViolations": 1},
            "node2": {"Pods": [], "NumPDBViolations": 0},
        }
    }


def test_a_binding_names_everything() -> None:
    for name in BINDING:
        with pytest.raises(MalformedRequest, match=name.lower()):
            read_binding(written(BINDING | {name: ""}))
    assert (json.loads(bind_answer("")), json.loads(bind_answer("full"))) == (
        {"Error": ""},
        {"Error": "full"},
    )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "the body: Input data was truncated"),
        (b"[]", "the body: Expected `object`, got `array`"),
        (b'{"Pod": {}}', "both Nodes and NodeNames are null"),
        (b'{"NodeNames": []}', "Pod: Expected `object`, got `null`"),
        (b'{"Pod": {}, "NodeNames": ["a", 1]}', "NodeNames: Expected `str`, got `int`"),
        (
            b'{"Pod": {}, "Nodes": {"items": [{"metadata": {}}]}}',
            "Nodes: Object missing required field `name`",
        ),
        (b'{"Pod": {}, "Nodes": {"items": [1]}}', "Nodes: Expected `object`, got `int`"),
        (b'{"Pod": {"a": "\xff"}, "NodeNames": []}', "Pod: "),
        (b'{"Pod": ' + b'{"a":' * 100_000, "the body: nested too deeply"),
    ],
)
def test_what_is_wrong_with_a_body_is_said(body: bytes, words: str) -> None:
    with pytest.raises(MalformedRequest) as raised:
        CandidatesReader().read(body)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    "victims", [[1], {"Pods": 1}, {"Pods": [1]}, {"Pods": [{"UID": ""}]}, {"NumPDBViolations": "1"}]
)
def test_victims_without_a_uid_are_refused(victims: object) -> None:
    with pytest.raises(MalformedRequest):
        read_preemption(written({"Pod": POD, "NodeNameToMetaVictims": {"node1": victims}}))


ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
_FIELDS = (
    "Pod",
    "Nodes",
    "NodeNames",
    "NodeNameToVictims",
    "NodeNameToMetaVictims",
    "items",
    *BINDING,
)


def read_all(body: bytes) -> None:
    for read in READERS:
        with suppress(MalformedRequest):
            read(body)


@given(ANY_JSON | st.dictionaries(st.sampled_from(_FIELDS), ANY_JSON, max_size=4))
def test_no_json_whatever_is_a_fault_of_ours(thing: Any) -> None:
    read_all(written(thing))


@given(st.binary(max_size=60), st.integers(0, 200))
def test_no_bytes_whatever_are_a_fault_of_ours(noise: bytes, at: int) -> None:
    whole = written({"Pod": POD, "NodeNames": ["node1"], "NodeNameToMetaVictims": {}} | BINDING)
    read_all(whole[:at] + noise + whole[at + len(noise) :])


def test_schedulers_that_send_whole_nodes_push_no_names_out() -> None:
    reader = CandidatesReader()
    names = written({"Pod": POD, "NodeNames": ["node1", "node2"]})
    first = reader.read(names).nodes
    for _again in range(10):
        reader.read(
            written(
                {
                    "Pod": POD,
                    "NodeNames": None,
                    "Nodes": {"items": [{"metadata": {"name": "node1"}}]},
                }
            )
        )
    assert reader.read(names).nodes is first


def test_names_that_come_again_are_the_very_tuple_of_before_and_others_are_not() -> None:
    reader = CandidatesReader()
    bodies = [
        written({"Pod": POD, "NodeNames": names})
        for names in (["node1", "node2"], ["node2"], ["node1", "node2"])
    ]
    first, other, again = (reader.read(body).nodes for body in bodies)
    assert first is again
    assert (first, other) == (("node1", "node2"), ("node2",))
