"""Label and field selectors of the simulated API server.

One rule: a selector that Kubernetes would refuse is refused, so that nothing works here alone.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from mpsd.simulator.api_server.kinds import EVENTS, NODES, PODS, Object, ObjectKind
from mpsd.simulator.api_server.refusals import bad_request

Test = Callable[[Object], bool]

_FIELDS = {
    PODS.plural: {"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "status.phase", "status.podIP"},
    NODES.plural: {"spec.unschedulable"},
    EVENTS.plural: {
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "reason",
        "type",
        "source",
    },
}
_ELSEWHERE = {(EVENTS.plural, "source"): "source.component"}  # a selector's field that is not where its name says
_TERM = re.compile(r"(?P<key>[^=!]+)(?P<operator>==|!=|=)(?P<value>.*)")
_SET = re.compile(r"(?P<key>\S+)\s+(?P<operator>in|notin)\s+\((?P<values>[^)]*)\)")
_COMMAS = re.compile(r",(?![^(]*\))")  # those that are not inside brackets


def selected(kind: ObjectKind, fields: str, labels: str) -> Test:
    """Whether an object is selected by both. Refused for what cannot be read, or a field that cannot be asked for."""
    tests = [_field(kind, term) for term in fields.split(",") if term]
    tests += [_label(term.strip()) for term in _COMMAS.split(labels) if term.strip()]
    return lambda thing: all(test(thing) for test in tests)


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """A selector as objects hold it: matchLabels and matchExpressions. An empty one matches everything."""
    if not (selector.get("matchLabels") or {}).items() <= labels.items():
        return False
    return all(_expressed(expression, labels) for expression in selector.get("matchExpressions") or [])


def at(thing: Object, path: str) -> str:
    """The field at a path such as spec.nodeName; empty where there is none."""
    found: Any = thing
    for step in path.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    return "" if found is None else str(found).lower() if isinstance(found, bool) else str(found)


def labels_of(thing: Object) -> dict[str, str]:
    return (thing.get("metadata") or {}).get("labels") or {}


def _field(kind: ObjectKind, term: str) -> Test:
    match = _TERM.fullmatch(term)
    if not match:
        raise bad_request(f"invalid field selector: {term!r}")
    key, operator, value = match["key"], match["operator"], match["value"]
    if key not in {"metadata.name", "metadata.namespace"} | _FIELDS.get(kind.plural, set()):
        raise bad_request(f'field label not supported: {key} (kind "{kind.name}")')
    path = _ELSEWHERE.get((kind.plural, key), key)
    return lambda thing: (at(thing, path) == value) is not (operator == "!=")


def _label(term: str) -> Test:
    if match := _SET.fullmatch(term):
        key, values = match["key"], {value.strip() for value in match["values"].split(",")}
        wanted = match["operator"] == "in"
        return lambda thing: (labels_of(thing).get(key) in values) is wanted
    if match := _TERM.fullmatch(term):
        key, value, differs = match["key"].strip(), match["value"].strip(), match["operator"] == "!="
        return lambda thing: (labels_of(thing).get(key) == value) is not differs
    if term.startswith("!"):
        return lambda thing: term[1:].strip() not in labels_of(thing)
    if re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?", term):
        return lambda thing: term in labels_of(thing)
    raise bad_request(f"unable to parse requirement: {term!r}")


def _expressed(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or []
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case other:
            raise bad_request(f'"{other}" is not a valid label selector operator')
