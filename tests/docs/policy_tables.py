"""The fields of policy.yaml as docs/policy.md lists them: what each may be, and what the shipped
file says."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from mpsd.model.policy import Policy, RuleId, RuleMode
from mpsd.platform.limits_files import shipped_folder
from mpsd.platform.yaml_files import parse_yaml, read_bytes
from tests.docs.tables import Row, Table

_PAGE = "docs/policy.md"
_RULES = "admission.rules"  # has a table of its own in docs/admission.md
_LONGEST = 48  # of a value that the table shows
_MODES = {  # RuleModes, a class that msgspec does not know
    "type": "object",
    "properties": {rule.value: {"$ref": "#/$defs/RuleMode"} for rule in RuleId},
    "additionalProperties": False,
}


def _policy_rows() -> list[Row]:
    shipped = _shipped()
    return [
        (f"`{path}`", kind, _shown(_at(shipped, path))) for path, kind in _fields(schema_of(Policy))
    ]


POLICY = Table(
    "fields of policy.yaml", _PAGE, ("field", "may be", "as shipped"), _policy_rows, ("means",)
)


def schema_of(record: type) -> dict[str, Any]:
    """The JSON schema of a limits file, which has no other fields than its own, as mpsd reads
    it."""
    found = msgspec.json.schema(record, schema_hook=lambda _modes: _MODES)
    modes = {"RuleMode": {"enum": list(RuleMode)}} if record is Policy else {}
    definitions, orders = (
        found["$defs"] | modes,
        {frozenset(words): list(words) for words in _closed_sets(record)},
    )
    for one in definitions.values():
        if "properties" in one:
            one["additionalProperties"] = False
    return _in_order({**definitions.pop(record.__name__), "$defs": definitions}, orders)


def _closed_sets(kind: Any) -> Iterator[tuple[str, ...]]:
    """The words of each closed set in it, as they are declared; msgspec sorts them."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        yield tuple(kind)
    elif get_origin(kind) is Literal:
        yield get_args(kind)
    elif is_dataclass(kind) and isinstance(kind, type):
        for one in get_type_hints(kind).values():
            yield from _closed_sets(one)
    else:
        for one in (*get_args(kind), *getattr(kind, "__orig_bases__", ())):
            yield from _closed_sets(one)


def _in_order(node: Any, orders: Mapping[frozenset[str], list[str]]) -> Any:
    if isinstance(node, list):
        return [_in_order(one, orders) for one in node]
    if not isinstance(node, dict):
        return node
    enum = {"enum": orders[frozenset(node["enum"])], "type": "string"} if "enum" in node else {}
    return {name: _in_order(one, orders) for name, one in node.items()} | enum


def _shipped() -> Any:
    path = str(shipped_folder() / "policy.yaml")
    return parse_yaml(read_bytes(path), path)[0].value


def _fields(schema: Mapping[str, Any]) -> Iterator[tuple[str, str]]:

    def below(node: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
        found = _resolved(node, schema)
        if path == _RULES:
            yield (
                path,
                "a mode for each [rule](admission.md#the-rules): `enforce`, `warn` or `audit`",
            )
        elif "properties" in found:
            for name, one in found["properties"].items():
                yield from below(one, f"{path}.{name}" if path else name)
        else:
            yield path, _kind(found, schema)

    yield from below(schema, "")


def _resolved(node: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    return schema["$defs"][node["$ref"].rsplit("/", 1)[1]] if "$ref" in node else node


def _kind(node: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    node = _resolved(node, schema)
    if "const" in node:
        return f"`{node['const']}`"
    if "enum" in node:
        return ", ".join(f"`{value}`" for value in node["enum"])
    if "anyOf" in node:
        return " or ".join(_kind(one, schema) for one in node["anyOf"])
    match node.get("type"):
        case "boolean":
            return "`true`, `false`"
        case "null":
            return "`null`"
        case "integer":
            return f"whole number{_range(node)}"
        case "number":
            return f"number{_range(node)}"
        case "array":
            fewest = node.get("minItems")
            return (
                "list of "
                + (f"{fewest} or more: " if fewest else "")
                + _kind(node.get("items", {}), schema)
            )
        case "object":
            return "a mapping"
    return "text"


def _range(node: Mapping[str, Any]) -> str:
    least, most, over = (node.get(key) for key in ("minimum", "maximum", "exclusiveMinimum"))
    if over is not None:
        return f" over {over:g}" + (f", up to {most:g}" if most is not None else "")
    if most is not None:
        return f", {least} to {most}"
    return f", {least} or more" if least is not None else ""


def _at(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = value[name]
    return value


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f"`{value}`" if len(value) <= _LONGEST else "a sentence"
    text = json.dumps(value)
    return f"`{text}`" if len(text) <= _LONGEST else f"{len(value)} entries"
