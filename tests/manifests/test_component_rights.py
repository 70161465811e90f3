"""What `kubectl mps doctor` asks about is what the chart gives, right by right."""

from collections.abc import Iterator
from typing import Any

from mpsd.operations.doctor.rules.components import RIGHTS
from tests.manifests.rendering import of_kind

_PLACE = "dra+scheduler"


def given(component: str) -> Iterator[tuple[Any, ...]]:
    """Those of `mpsd scheduler`, without those of the kube-scheduler beside it."""
    roles = of_kind(_PLACE, "ClusterRole")
    if component != "mpsd-scheduler":
        roles = [*roles, *of_kind(_PLACE, "Role")]
    for role in roles:
        if role["metadata"]["name"] != component:
            continue
        namespace = role["metadata"].get("namespace", "")
        for rule in role["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        yield component, verb, group, resource, tuple(rule.get("resourceNames", ())), namespace


def test_every_right_in_the_manifests_is_asked_about_and_no_other() -> None:
    components = ("mpsd-agent", "mpsd-webhook", "mpsd-scheduler")
    wanted = {right for component in components for right in given(component)}
    asked = [(one.component, one.verb, one.group, one.resource, one.names, one.namespace) for one in RIGHTS]
    assert len(asked) == len(set(asked))
    assert set(asked) == wanted
