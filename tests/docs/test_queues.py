"""The objects of docs/queues.md for Kueue, by what its CRDs accept (kueue.yaml)."""

import copy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
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


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("cohort",), "all"),  # its name in v1beta1
        (("queueingStrategy",), "FIFO"),
        (("resourceGroups", 0, "coveredResources"), []),
        (("resourceGroups", 0, "flavors", 0, "name"), "gpu shares"),
        (("resourceGroups", 0, "flavors", 0, "resources", 0), {"name": MEMORY}),
        (("resourceGroups", 0, "flavors", 0, "resources", 0, "nominalQuota"), -1),
        (("resourceGroups", 0, "flavors", 0, "resources", 0, "quota"), 3),
    ],
    ids=str,
)
def test_a_queue_that_the_crd_does_not_accept_is_found(
    path: tuple[Any, ...], value: object
) -> None:
    spec = copy.deepcopy(THINGS["ClusterQueue"]["spec"])
    *parents, last = path
    place = spec
    for step in parents:
        place = place[step]
    place[last] = value
    with pytest.raises(jsonschema.ValidationError):
        check("ClusterQueue", spec)


QUOTA = {one["name"]: one["nominalQuota"] for one in GROUP["flavors"][0]["resources"]}


def test_the_quota_is_what_two_h200_offer() -> None:
    card = load_limits(None).facts.card("H200")
    assert card
    units = card.memory_mib // POLICY.resources.memory_unit_mib
    assert (QUOTA[MEMORY], QUOTA[PERCENT]) == (2 * units, 2 * 100)
