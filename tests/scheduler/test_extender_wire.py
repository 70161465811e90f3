"""What kube-scheduler writes is read; what it would not write is refused in words."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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

POD = {"metadata": {"name": "a"}}
BINDING = {"PodName": "a", "PodNamespace": "default", "PodUID": "u", "Node": "node1"}
READERS = (CandidatesReader().read, read_preemption, read_binding)


def written(thing: object) -> bytes:
    return json.dumps(thing).encode()


def test_names_go_back_as_names() -> None:
    asked = CandidatesReader().read(written({"Pod": POD, "NodeNames": ["node1", "node2"]}))
    said = json.loads(filter_answer(("node2",), {"node1": "small"}, {"node1": "small"}))
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


def test_victims_go_back_as_they_came() -> None:
    proposed = {
        "node1": {"Pods": [{"UID": "u"}], "NumPDBViolations": 1},
        "node2": {"Pods": None, "NumPDBViolations": 0},
    }
    nodes = read_preemption(written({"Pod": POD, "NodeNameToMetaVictims": proposed})).nodes
    assert {name: one.uids for name, one in nodes.items()} == {"node1": ("u",), "node2": ()}
    assert json.loads(preempt_answer(nodes)) == {"NodeNameToMetaVictims": proposed}


def test_a_binding_names_everything() -> None:
    for name in BINDING:
        with pytest.raises(MalformedRequest, match=name):
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
        (b'{"Pod": {}, "NodeNames": null}', "set nodeCacheCapable: true"),
        (b'{"NodeNames": []}', "the body: Object missing required field `Pod`"),
        (b'{"Pod": {}}', "the body: Object missing required field `NodeNames`"),
        (b'{"Pod": {}, "NodeNames": ["a", 1]}', "NodeNames: Expected `str`, got `int`"),
        (b'{"Pod": {"a": "\xff"}, "NodeNames": []}', "the body: "),
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
_FIELDS = ("Pod", "NodeNames", "NodeNameToMetaVictims", *BINDING)


def read_all(body: bytes) -> None:
    for read in READERS:
        with suppress(MalformedRequest):
            read(body)


@given(ANY_JSON | st.dictionaries(st.sampled_from(_FIELDS), ANY_JSON, max_size=4))
def test_no_json_whatever_is_a_fault_of_ours(thing: Any) -> None:
    read_all(written(thing))
