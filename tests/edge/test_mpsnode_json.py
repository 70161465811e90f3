"""An MPSNode as an agent writes it makes the row of its node at once, the one that reading all of it makes."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mpsd.core.heartbeat import STALE_S
from mpsd.core.mpsnode_reading import read_mpsnode
from mpsd.core.node_rows import NodeRow, ToldNode, node_row, told_row
from mpsd.core.top_rows import TopGpu, gpus_of
from mpsd.core.top_told import ToldTopNode, told_gpus
from mpsd.edge.kube_time import seconds
from mpsd.edge.mpsnode_json import mpsnodes, read, reader
from tests.mpsnodes import NAMES, NOW, anything, damaged, mpsnode


def raw(thing: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(thing).encode())


def at_once(thing: msgspec.Raw, now: float = NOW) -> NodeRow | None:
    plain = reader(ToldNode)(thing)
    return None if plain is None else told_row(plain, now, seconds)


def gpus_at_once(thing: msgspec.Raw, now: float = NOW) -> list[TopGpu] | None:
    plain = reader(ToldTopNode)(thing)
    return None if plain is None else [*told_gpus(plain, now, seconds)]


def all_gpus(thing: msgspec.Raw, now: float = NOW) -> list[TopGpu]:
    return [*gpus_of(read_mpsnode(read(thing), now, seconds))]


def whole(thing: msgspec.Raw, now: float = NOW) -> NodeRow:
    return node_row(read_mpsnode(read(thing), now, seconds))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("later_s", [0.0, STALE_S * 2])
def test_what_an_agent_wrote_is_read_at_once_unless_something_is_cordoned(name: str, later_s: float) -> None:
    thing = mpsnode(name)
    if not thing.get("spec", {}).get("cordoned"):
        assert at_once(raw(thing), NOW + later_s) == whole(raw(thing), NOW + later_s)
    assert gpus_at_once(raw(thing), NOW + later_s) == all_gpus(raw(thing), NOW + later_s)
    thing["spec"] = {"cordoned": ["all"]}
    assert at_once(raw(thing)) is None


@given(damaged(), st.floats(allow_nan=False, allow_infinity=False))
def test_any_json_makes_at_once_the_row_that_all_of_it_makes_or_none(thing: Any, now: float) -> None:
    try:
        written = raw(thing)
        all_of_it = whole(written, now)
    except ValueError:
        assume(False)
    assert at_once(written, now) in (None, all_of_it)
    assert gpus_at_once(written, now) in (None, all_gpus(written, now))


@pytest.mark.parametrize(
    ("field", "value"), [("usedMiB", -1), ("usedMiB", None), ("clients", 2**63), ("grantedMiB", 0), ("domain", "gpu77")]
)
def test_amounts_that_are_none_are_unknown_at_once_too(field: str, value: object) -> None:
    thing = mpsnode("gpu-a1")
    thing["status"]["gpus"][0][field] = value
    row = at_once(raw(thing))
    assert row is not None
    assert row == whole(raw(thing))
    assert row != at_once(raw(mpsnode("gpu-a1")))
    assert gpus_at_once(raw(thing)) == all_gpus(raw(thing)) != all_gpus(raw(mpsnode("gpu-a1")))


def with_violations() -> Any:
    return mpsnode("gpu-a2") | {"spec": {}}  # where something is cordoned, nothing is read at once


def test_violations_are_told_at_once_too_and_are_unknown_of_who_does_not_tell() -> None:
    row = at_once(raw(with_violations()))
    assert row is not None
    assert row == whole(raw(with_violations()))
    assert (row.violations, row.violation_at) == (4, NOW - 5 * 60 - 5)
    older = at_once(raw(mpsnode("gpu-a1")))
    assert older is not None
    assert older.violations is None


@given(anything, st.sampled_from(["violations", "counts", "last", "kind", "count", "at", "pods"]))
def test_whatever_is_told_of_violations_is_read_at_once_as_it_is_read_whole_or_not(value: Any, field: str) -> None:
    thing = with_violations()
    status = thing["status"]
    told = status["violations"]
    for holder in (status, told, told["counts"][0], told["last"][-1]):
        if field in holder:
            holder[field] = value
    try:
        written = raw(thing)
        all_of_it = whole(written)
    except ValueError:
        assume(False)
    assert at_once(written) in (None, all_of_it)


@pytest.mark.parametrize("value", ["much", 1.0, True, [], {}])
def test_a_wrong_type_is_left_to_whoever_says_so(value: object) -> None:
    thing = mpsnode("gpu-a1")
    thing["status"]["gpus"][0]["usedMiB"] = value
    assert at_once(raw(thing)) is None
    assert gpus_at_once(raw(thing)) is None
    assert whole(raw(thing)).used_mib is None


def test_an_object_of_endless_fields_is_left_to_whoever_does_not_believe_it() -> None:
    endless = mpsnode("gpu-a1")
    endless["status"]["grants"] *= 4000
    assert at_once(raw(endless)) is None


def test_a_list_and_one_object_are_answers_and_nothing_else_is() -> None:
    one = mpsnode("gpu-a1") | {"kind": "MPSNode"}
    listed = mpsnodes(json.dumps({"kind": "MPSNodeList", "items": [one, 3]}).encode())
    assert [read(thing) for thing in listed or ()] == [one, 3]
    assert [read(thing) for thing in mpsnodes(json.dumps(one).encode()) or ()] == [one]
    for other in (b"", b"[", b"{}", b"[]", b"\xff", b'{"kind": "MPSNodeList"}', b'{"kind": 3}', b"[" * 100_000):
        assert mpsnodes(other) is None
    with pytest.raises(ValueError, match="no JSON"):
        read(msgspec.Raw(b'{"a": [' + b"[" * 100_000))
