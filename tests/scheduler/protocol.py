"""The extender protocol as data: what a real kube-scheduler asked, and the schema of what both
sides may say."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

Object = dict[str, Any]

VERBS = ("filter", "prioritize", "bind", "preempt")
_DATA = Path(__file__).parents[1] / "data" / "extender"
RECORDED = tuple(sorted(_DATA.glob("*/names/*.json")))
WHOLE_NODES = _DATA / "1.20.2" / "nodes" / "filter-one.json"  # asked without nodeCacheCapable


def named(file: Path) -> str:
    """As a test names it: names/filter-one."""
    return f"{file.parent.name}/{file.stem}"


def verb_of(file: Path) -> str:
    return file.name.partition("-")[0]


def request(file: Path) -> Object:
    found: Object = json.loads(file.read_text())
    return found


@cache
def _schema() -> Object:
    found: Object = json.loads((_DATA / "schema.json").read_text())
    return found


@cache
def _validator(part: str) -> Draft202012Validator:
    """part: VERB.request or VERB.answer."""
    return Draft202012Validator(_schema() | {"$ref": f"#/$defs/{part}"})


def problems(part: str, said: object) -> list[str]:
    """What is wrong with something said, by the schema; empty for nothing."""
    return [f"{error.json_path}: {error.message}" for error in _validator(part).iter_errors(said)]
