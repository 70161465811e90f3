"""The objects of docs/queues.md for Kueue, by what its CRDs accept (kueue.yaml)."""

from pathlib import Path
from typing import Any

import jsonschema
import yaml

from mpsd.platform.limits_files import load_limits
from mpsd.platform.rules.kubernetes_objects import LABELS
from tests.docs.pages import page
from tests.model.manifests import POLICY

Object = dict[str, Any]

CRDS: Object = yaml.safe_load(Path(__file__).with_name("kueue.yaml").read_text())
(_FENCE,) = [one.text for one in page("docs/queues.md").fences if "kueue.x-k8s.io" in one.text]
THINGS: dict[str, Object] = {one["kind"]: one for one in yaml.safe_load_all(_FENCE)}
MEMORY, PERCENT = POLICY.resources.memory, POLICY.resources.percent
(GROUP,) = THINGS["ClusterQueue"]["spec"]["resourceGroups"]


def check(kind: str, spec: Object) -> None:
    jsonschema.validate(spec, {"$defs": CRDS["$defs"], **CRDS[kind]})


def test_the_objects_for_kueue_are_what_its_crds_accept() -> None:
    assert THINGS.keys() == CRDS.keys() - {"$defs"}
    for kind, thing in THINGS.items():
        assert thing["apiVersion"] == "kueue.x-k8s.io/v1beta2"
        check(kind, thing["spec"])
    for flavor in GROUP["flavors"]:
        assert [one["name"] for one in flavor["resources"]] == GROUP["coveredResources"], (
            "the same, in this order"
        )
        assert flavor["name"] == THINGS["ResourceFlavor"]["metadata"]["name"]
    assert GROUP["coveredResources"] == [MEMORY, PERCENT]
    assert (
        THINGS["LocalQueue"]["spec"]["clusterQueue"] == THINGS["ClusterQueue"]["metadata"]["name"]
    )
    (label,) = THINGS["ResourceFlavor"]["spec"]["nodeLabels"].items()
    assert "=".join(label) in LABELS


QUOTA = {one["name"]: one["nominalQuota"] for one in GROUP["flavors"][0]["resources"]}


def test_the_quota_is_what_two_h200_offer() -> None:
    card = load_limits(None).facts.card("H200")
    assert card
    units = card.memory_mib // POLICY.resources.memory_unit_mib
    assert (QUOTA[MEMORY], QUOTA[PERCENT]) == (2 * units, 2 * 100)
