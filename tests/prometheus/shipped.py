"""The rules and the Grafana board as they are shipped, read for tests and for the tables of the
documentation."""

import json
import re
from typing import Any

import yaml

from mpsd.model.metrics import Exporter
from tests.docs.pages import ROOT

# Added by Prometheus; instance: the name of the node or pod in our scrape configurations.
JOB = "job"
INSTANCE = "instance"
DOCS, _FILES = ROOT / "docs/prometheus", ROOT / "manifests/chart/files"
RULES, BOARD = _FILES / "rules.yaml", _FILES / "board.json"

Json = dict[str, Any]

GROUPS: list[Json] = yaml.safe_load(RULES.read_text())["groups"]
_RULES: list[Json] = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = [rule for rule in _RULES if "alert" in rule]
RECORDED: dict[str, str] = {rule["record"]: rule["expr"] for rule in _RULES if "record" in rule}
NAMES: list[str] = [rule["alert"] for rule in ALERTS]
PANELS: list[Json] = json.loads(BOARD.read_text())["panels"]

_THRESHOLD = re.compile(r"(.+) (?:==|[<>]) [\d.* ]+")
_WINDOW = re.compile(r"\[\w+\]")
# what stands for it: alerts that count in it want several faults, however busy the machine
_AN_HOUR = "30s"


def job_of(exporter: Exporter) -> str:
    return f"mpsd-{exporter.value}"


def measured(expression: str) -> str:
    """What an alert compares with its threshold: it has a value while all is well too."""
    match = _THRESHOLD.fullmatch(expression)
    assert match, expression
    return match[1]


def in_window(expression: str, window: str) -> str:
    return _WINDOW.sub(f"[{window}]", expression)


def hurried(window: str) -> Json:
    """The file of rules for rehearsals, which cannot wait for hours: every range this long, or 30 s
    for an hour, every wait 1 s."""
    return {
        "groups": [
            {**group, "rules": [{**rule, **_hurried(rule, window)} for rule in group["rules"]]}
            for group in GROUPS
        ]
    }


def _hurried(rule: Json, window: str) -> Json:
    if "[1h]" in rule["expr"]:
        window = _AN_HOUR
    expression = {"expr": in_window(rule["expr"], window)}
    return (
        expression
        if "record" in rule
        else expression | {"for": rule["for"] if rule["for"] == "0s" else "1s"}
    )
