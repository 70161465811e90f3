"""An MPSNode is read at once by its schema, or field by field, and both read the same."""

from typing import Any, get_args, get_origin

import jsonschema
import msgspec
import pytest
from hypothesis import given

from mpsd.model.fields import FieldReader, plain
from mpsd.model.mpsnode import MPSNode, as_object, read_mpsnode
from mpsd.model.node_report import ReportPart
from tests.mpsnodes import NAMES, NOW, anything, damaged, mpsnode
from tests.status.test_mpsnode import SCHEMA


def by_field(thing: Any) -> tuple[MPSNode, FieldReader]:
    shape = FieldReader()
    return shape.struct(MPSNode, thing, ""), shape


@pytest.mark.parametrize("name", NAMES)
def test_what_an_agent_wrote_is_read_at_once_whole_and_written_as_it_was(name: str) -> None:
    thing = mpsnode(name)
    found = msgspec.convert(thing, MPSNode)
    again, shape = by_field(thing)
    assert found == again
    assert not shape.problems
    status = as_object(found.status)
    assert status == thing.get("status", {})
    jsonschema.validate(status, SCHEMA)


@given(damaged())
def test_any_json_is_read_at_once_as_it_is_read_field_by_field_or_not_at_once(thing: Any) -> None:
    if not isinstance(thing, dict):
        return
    try:
        found = msgspec.convert(thing, MPSNode)
    except (msgspec.ValidationError, RecursionError):
        return
    again, shape = by_field(thing)
    assert found == again
    assert not shape.problems


@pytest.mark.parametrize("value", ["yesterday", "2026-11-21T08:30:00", "9999-99-99T00:00:00Z", 5])
def test_a_time_that_is_none_is_unknown_and_named(value: object) -> None:
    thing = mpsnode("gpu-a1")
    thing["status"]["domains"][0]["since"] = value
    node = read_mpsnode(thing, NOW)
    assert node.domains[0].since is None
    (sentence,) = node.unreadable
    assert sentence.startswith("status.domains[0].since is ")


@pytest.mark.parametrize("value", ["much", 1.0, True, [], {}, -1, 2**63])
def test_a_field_of_a_wrong_type_is_said_and_is_unknown(value: object) -> None:
    thing = mpsnode("gpu-a1")
    thing["status"]["gpus"][0]["usedMiB"] = value
    node = read_mpsnode(thing, NOW)
    assert (node.gpus[0].used_mib, len(node.unreadable)) == (None, 1)


@given(anything)
def test_whatever_is_told_of_violations_takes_nothing_from_the_rest(value: Any) -> None:
    for field in ("violations", "counts", "last", "kind", "count", "at", "pods"):
        thing = mpsnode("gpu-a2")
        told = thing["status"]["violations"]
        for holder in (thing["status"], told, told["counts"][0], told["last"][-1]):
            if field in holder:
                holder[field] = value
        assert read_mpsnode(thing, NOW).gpus == read_mpsnode(mpsnode("gpu-a2"), NOW).gpus


def test_the_definition_has_no_field_that_a_report_has_not() -> None:
    assert _missing(MPSNode, {"properties": {"status": SCHEMA}}) == []


def _missing(kind: Any, schema: Any) -> list[str]:
    """The fields of the definition, with the path of each, that are none of this part's or have
    others below them."""
    known = {one.encode_name: plain(one.type) for one in msgspec.structs.fields(kind)}
    missing = []
    for name, below in schema.get("properties", {}).items():
        if name not in known:
            missing.append(name)
            continue
        inner = known[name]
        if get_origin(inner) is tuple:
            inner = plain(get_args(inner)[0])
        if isinstance(inner, type) and issubclass(inner, ReportPart):
            missing += [f"{name}.{one}" for one in _missing(inner, below.get("items", below))]
    return missing
