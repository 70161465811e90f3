"""The objects of docs/queues.md for Kueue, by what its CRDs say of the fields that they use."""

import jsonschema
import yaml

from mpsd.platform.rules.kubernetes_objects import LABELS
from tests.docs.pages import page
from tests.model.manifests import POLICY

_NAME = {
    "type": "string",
    "maxLength": 253,
    "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
}


def _only(**properties: object) -> dict[str, object]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _list(items: object) -> dict[str, object]:
    return {"type": "array", "items": items, "minItems": 1, "maxItems": 16}


_QUOTA = _only(name={"type": "string"}, nominalQuota={"type": "integer", "minimum": 0})
_GROUP = _only(coveredResources=_list({"type": "string"}), flavors=_list(_only(name=_NAME, resources=_list(_QUOTA))))
SPECS = {
    "ResourceFlavor": _only(nodeLabels={"type": "object", "maxProperties": 8}),
    "ClusterQueue": _only(namespaceSelector={"type": "object"}, resourceGroups=_list(_GROUP)),
    "LocalQueue": _only(clusterQueue=_NAME),
}


def test_the_objects_for_kueue_have_the_fields_of_its_crds() -> None:
    (fence,) = [one.text for one in page("docs/queues.md").fences if "kueue.x-k8s.io" in one.text]
    things = {one["kind"]: one for one in yaml.safe_load_all(fence)}
    assert things.keys() == SPECS.keys()
    for kind, thing in things.items():
        assert thing["apiVersion"] == "kueue.x-k8s.io/v1beta2"
        jsonschema.validate(thing["spec"], SPECS[kind])
    queue = things["ClusterQueue"]["spec"]
    (group,) = queue["resourceGroups"]
    for flavor in group["flavors"]:
        assert [one["name"] for one in flavor["resources"]] == group["coveredResources"], "the same, in this order"
        assert flavor["name"] == things["ResourceFlavor"]["metadata"]["name"]
    assert group["coveredResources"] == [POLICY.resources.memory, POLICY.resources.percent]
    assert things["LocalQueue"]["spec"]["clusterQueue"] == things["ClusterQueue"]["metadata"]["name"]
    (label,) = things["ResourceFlavor"]["spec"]["nodeLabels"].items()
    assert "=".join(label) in LABELS
