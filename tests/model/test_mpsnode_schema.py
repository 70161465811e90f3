"""An MPSNode is read at once by its schema, or field by field, and both read the same."""

from typing import Any, get_args, get_origin

import jsonschema
import msgspec
import pytest
from hypothesis import given

from mpsd.model.fields import FieldReader
from mpsd.model.mpsnode import MPSNode, MPSNodeStatus, Reported, _read, as_object, read_mpsnode
from tests.mpsnodes import NAMES, NOW, anything, damaged, mpsnode
from tests.status.test_mpsnode import SCHEMA


def by_field(thing: Any) -> tuple[MPSNode, FieldReader]:
    shape = FieldReader()
    return _read(thing, MPSNode, "", shape), shape


@pytest.mark.parametrize("name", NAMES)
def test_what_an_agent_wrote_is_read_at_once_whole_and_written_as_it_was(name: str) -> None:
    thing = mpsnode(name)
    found = msgspec.convert(thing, MPSNode)
    again, shape = by_field(thing)
    assert found == again
    assert not shape.problems
    status = as_object(found.status or MPSNodeStatus())
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


@pytest.mark.parametrize("value", [-1, 2**63, None])
def test_what_is_no_amount_is_unknown_and_nothing_is_said(value: object) -> None:
    thing = mpsnode("gpu-a1")
    thing["status"]["gpus"][0]["usedMiB"] = value
    node = read_mpsnode(thing, NOW)
    assert (node.gpus[0].used_mib, node.unreadable) == (None, ())


@pytest.mark.parametrize("value", ["much", 1.0, True, [], {}])
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


def test_the_schema_has_every_field_of_the_definition_and_no_other() -> None:
    assert _fields(MPSNodeStatus) == _properties(SCHEMA)


def _fields(kind: Any) -> Any:
    """The names of the JSON fields, each with those below it."""
    return {one.encode_name: _below(get_args(one.type)[0]) for one in msgspec.structs.fields(kind)}


def _below(kind: Any) -> Any:
    inner = get_args(kind)[0] if get_origin(kind) is list else kind
    return _fields(inner) if isinstance(inner, type) and issubclass(inner, Reported) else None


def _properties(schema: Any) -> Any:
    return {name: _properties_below(one) for name, one in schema["properties"].items()}


def _properties_below(schema: Any) -> Any:
    inner = schema.get("items", schema)
    return _properties(inner) if "properties" in inner else None
