"""What `kubectl mps doctor` asks about is what the manifests give, right by right."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from mpsd.operations.doctor.rules.components import RIGHTS

_MANIFESTS = Path(__file__).parents[2] / "manifests"
_FILES = {
    "mpsd-agent": "base/agent/rights.yaml",
    "mpsd-webhook": "base/webhook/rights.yaml",
    "mpsd-scheduler": "components/scheduler-account/rights.yaml",
}
_PATCHES = {"mpsd-agent": "components/dra/rights.yaml", "mpsd-webhook": "components/dra/webhook-rights.yaml"}


def given(component: str) -> Iterator[tuple[Any, ...]]:
    things = [*yaml.safe_load_all((_MANIFESTS / _FILES[component]).read_text())]
    if component in _PATCHES:
        patch = yaml.safe_load((_MANIFESTS / _PATCHES[component]).read_text())
        things.append({"kind": "ClusterRole", "rules": [one["value"] for one in patch]})
    for thing in things:
        namespace = "mpsd-system" if thing["kind"] == "Role" else ""
        for rule in thing.get("rules") or ():
            for group in rule.get("apiGroups") or ():
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        yield component, verb, group, resource, tuple(rule.get("resourceNames") or ()), namespace


def test_every_right_in_the_manifests_is_asked_about_and_no_other() -> None:
    asked = {(one.component, one.verb, one.group, one.resource, one.names, one.namespace) for one in RIGHTS}
    assert asked == {right for component in _FILES for right in given(component)}
