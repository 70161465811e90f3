"""The structural schemas of custom resources: what an object may say, and what is silently dropped.

One rule: what mpsd's own definitions use is checked; a keyword that is not known here is an error of the definition.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mpsd.simulator.api_server.refusals import Cause

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
_KNOWN = frozenset(
    {
        *("type", "description", "properties", "items", "required", "enum", "pattern", "format", "maxItems", "default"),
        *("x-kubernetes-list-type", "x-kubernetes-list-map-keys"),
    }
)


def unknown_keywords(schema: Mapping[str, Any], path: str = "") -> list[str]:
    """What a definition says that is not simulated."""
    found = [f"{path}.{key}" for key in schema if key not in _KNOWN]
    for name, inner in (schema.get("properties") or {}).items():
        found += unknown_keywords(inner, f"{path}.{name}")
    return found + (unknown_keywords(schema["items"], f"{path}[]") if "items" in schema else [])


def pruned(value: Any, schema: Mapping[str, Any], *, top: bool = True) -> Any:
    """The value without the fields that its schema does not name; apiVersion, kind and metadata always stay."""
    if isinstance(value, list) and "items" in schema:
        return [pruned(one, schema["items"], top=False) for one in value]
    properties = schema.get("properties")
    if not isinstance(value, dict) or properties is None:
        return value
    always = {"apiVersion", "kind", "metadata"} if top else set()
    return {
        key: pruned(inner, properties[key], top=False) if key in properties else inner
        for key, inner in value.items()
        if key in properties or key in always
    }


def causes(value: Any, schema: Mapping[str, Any], path: str = "") -> Iterator[Cause]:
    """Everything that is wrong with a value."""
    wanted = schema.get("type")
    if wanted and (not isinstance(value, _TYPES[wanted]) or (isinstance(value, bool) and wanted != "boolean")):
        yield Cause(path, f"Invalid value: {value!r}: must be of type {wanted}", "FieldValueTypeInvalid")
        return
    if "enum" in schema and value not in schema["enum"]:
        yield Cause(path, f"Unsupported value: {value!r}", "FieldValueNotSupported")
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield Cause(path, f"Invalid value: {value!r}: should match '{schema['pattern']}'")
    if isinstance(value, dict):
        yield from _object_causes(value, schema, path)
    if isinstance(value, list):
        yield from _list_causes(value, schema, path)


def _object_causes(value: dict[str, Any], schema: Mapping[str, Any], path: str) -> Iterator[Cause]:
    for name in schema.get("required", ()):
        if name not in value:
            yield Cause(f"{path}.{name}".lstrip("."), "Required value", "FieldValueRequired")
    for name, inner in (schema.get("properties") or {}).items():
        if name in value:
            yield from causes(value[name], inner, f"{path}.{name}".lstrip("."))


def _list_causes(value: list[Any], schema: Mapping[str, Any], path: str) -> Iterator[Cause]:
    if len(value) > schema.get("maxItems", len(value)):
        yield Cause(path, f"Invalid value: {len(value)}: must have at most {schema['maxItems']} items")
    for index, one in enumerate(value):
        yield from causes(one, schema.get("items") or {}, f"{path}[{index}]")
    yield from _repetitions(value, schema, path)


def _repetitions(value: list[Any], schema: Mapping[str, Any], path: str) -> Iterator[Cause]:
    kind, seen = schema.get("x-kubernetes-list-type"), []
    if kind not in {"map", "set"}:
        return
    for index, one in enumerate(value):
        key = [one.get(name) for name in schema["x-kubernetes-list-map-keys"]] if kind == "map" else one
        if key in seen:
            yield Cause(f"{path}[{index}]", f"Duplicate value: {key!r}", "FieldValueDuplicate")
        seen.append(key)
