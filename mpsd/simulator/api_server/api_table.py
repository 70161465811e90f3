"""Objects as the table that `kubectl get` shows.

One rule: a custom resource has the columns of its definition, whose JSON paths are read as far as mpsd uses them; every
other kind has what kubectl would make of it by itself, pods excepted, whose state is all that people look at.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from mpsd.simulator.api_server.api_kinds import PODS, Kind, Object

_STEP = re.compile(r"\.(?P<field>[A-Za-z0-9]+)(?:\[\?\(@\.(?P<key>\w+)==\"(?P<value>[^\"]*)\"\)\])?")
_AGE = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
_POD_COLUMNS = (
    {"name": "Status", "type": "string", "jsonPath": ".status.phase"},
    {"name": "Reason", "type": "string", "jsonPath": ".status.reason"},
    {"name": "Node", "type": "string", "jsonPath": ".spec.nodeName"},
    _AGE,
)


def is_wanted(accept: str) -> bool:
    """Whether a client would rather have a table."""
    return "as=Table" in accept


def table(kind: Kind, things: Iterable[Object], metadata: Object) -> Object | None:
    """None for a kind that kubectl makes its own table of."""
    columns = _POD_COLUMNS if kind is PODS else kind.columns
    if not columns:
        return None
    name = {"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0}
    described = [
        {"format": "", "description": "", "priority": 0}
        | {key: value for key, value in column.items() if key != "jsonPath"}
        for column in columns
    ]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [name, *described],
        "rows": [{"cells": _cells(thing, columns), "object": _partial(thing)} for thing in things],
    }


def _cells(thing: Object, columns: Iterable[Object]) -> list[Any]:
    return [thing["metadata"]["name"], *(_cell(thing, column) for column in columns)]


def _cell(thing: Object, column: Object) -> Any:
    """What is at the column's path; None, which kubectl leaves blank, where there is nothing."""
    found: Any = thing
    for step in _STEP.finditer(column["jsonPath"]):
        found = found.get(step["field"]) if isinstance(found, dict) else None
        if step["key"] and isinstance(found, list):
            found = next((one for one in found if one.get(step["key"]) == step["value"]), None)
    if column["type"] == "date" and found:
        return _age(str(found))
    return str(found) if isinstance(found, list | dict) else found


def _age(time: str) -> str:
    """How long ago that was, in kubectl's short way."""
    seconds = int((datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds())
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{max(0, seconds)}s"


def _partial(thing: Object) -> Object:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": thing["metadata"]}
