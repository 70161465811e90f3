"""The objects of docs/queues.md for Kueue, by what its CRDs accept (kueue.yaml), and what their
quotas let pass."""

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
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


# Kueue's arithmetic as its documentation has it (Cluster Queue: resource groups, quotas): it adds
# up what all pods of a Job request, and admits it where each of these resources is covered and its
# sum is within what is left of the quota.


def is_admitted(
    quota: Mapping[str, int], pods: Iterable[Mapping[str, int]], used: Mapping[str, int]
) -> bool:
    asked = Counter[str]()
    for pod in pods:
        asked.update(pod)
    return all(
        name in quota and used.get(name, 0) + amount <= quota[name]
        for name, amount in asked.items()
    )


QUOTA = {one["name"]: one["nominalQuota"] for one in GROUP["flavors"][0]["resources"]}
FREE = (3, 7)  # GiB of two GPUs, beside the pods of others
OTHERS = {MEMORY: QUOTA[MEMORY] - sum(FREE)}


def test_the_quota_is_what_two_h200_offer() -> None:
    card = load_limits(None).facts.card("H200")
    assert card
    units = card.memory_mib // POLICY.resources.memory_unit_mib
    assert (QUOTA[MEMORY], QUOTA[PERCENT]) == (2 * units, 2 * 100)


@pytest.mark.parametrize(
    ("pods", "admitted", "holds"),
    [
        # the page's; tests/scheduler/test_node_filter.py has what mpsd says
        ([{MEMORY: 5}, {MEMORY: 5}], True, False),
        ([{MEMORY: 8}], True, False),
        ([{MEMORY: 7}, {MEMORY: 3}], True, True),
        ([{MEMORY: 6}, {MEMORY: 5}], False, False),
        ([{MEMORY: 1, PERCENT: 100}, {MEMORY: 1, PERCENT: 105}], False, True),
        ([{MEMORY: 1, "cpu": 1}], False, True),  # which the queue of the page does not cover
    ],
    ids=str,
)
def test_a_sum_within_the_quota_is_admitted_whether_or_not_a_gpu_holds_each_pod(
    pods: list[dict[str, int]], admitted: bool, holds: bool
) -> None:
    assert is_admitted(QUOTA, pods, OTHERS) is admitted
    ways = product(range(len(FREE)), repeat=len(pods))
    assert (
        any(all(sum(_on(way, gpu, pods)) <= left for gpu, left in enumerate(FREE)) for way in ways)
        is holds
    )


def _on(way: Sequence[int], gpu: int, pods: Sequence[Mapping[str, int]]) -> Iterator[int]:
    return (pod[MEMORY] for pod, own in zip(pods, way, strict=True) if own == gpu)
