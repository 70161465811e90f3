"""Taking GPUs out of use and putting them back: what `spec.cordoned` is to be, and what is said of
it."""

from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from mpsd.model.cluster_status import ClusterNode
from mpsd.model.domain import Domain, drains
from mpsd.model.mpsnode import read_mpsnode
from mpsd.model.problem import InvalidInput
from mpsd.status.rules.cordon import cordon_change, effects, merge_patch
from tests.mpsnodes import NOW, mpsnode
from tests.status.test_mpsnode import _VERSION as DEFINITION


def node(name: str = "gpu-a2", *cordoned: str) -> ClusterNode:
    """cordoned: by label, or as it stands in the spec."""
    thing = mpsnode(name)
    by_label = {gpu["label"]: gpu["uuid"] for gpu in thing["status"]["gpus"]}
    thing["spec"] = {"cordoned": [by_label.get(one, one) for one in cordoned]}
    return read_mpsnode(thing, NOW)


def labels(of: ClusterNode, cordoned: tuple[str, ...]) -> list[str]:
    return sorted(of.labels.get(one, one) for one in cordoned)


def test_a_label_and_a_uuid_name_the_same_gpu_and_the_others_stay() -> None:
    before = node("gpu-a2", "gpu0")
    by_label = cordon_change(before, ["gpu1"], cordon=True)
    assert labels(before, by_label.cordoned) == ["gpu0", "gpu1"]
    assert cordon_change(before, [before.gpus[1].uuid], cordon=True) == by_label
    assert labels(before, cordon_change(before, ["gpu0"], cordon=False).cordoned) == []


@pytest.mark.parametrize("named", [[], ["all"], ["gpu1", "all"]])
def test_nothing_named_is_the_whole_node(named: list[str]) -> None:
    before = node("gpu-a2", "gpu0")
    assert cordon_change(before, named, cordon=True).cordoned == ("all",)
    assert cordon_change(before, named, cordon=False).cordoned == ()


def test_one_gpu_is_put_back_of_a_node_that_is_cordoned_whole() -> None:
    before = node("gpu-a2", "all")
    change = cordon_change(before, ["gpu1"], cordon=False)
    assert labels(before, change.cordoned) == ["gpu0", "gpu2", "gpu3"]
    assert not cordon_change(before, ["gpu1"], cordon=True).changes
    with_one_gone = node("gpu-a2", "all", "GPU-gone")
    assert cordon_change(with_one_gone, ["gpu1"], cordon=False).cordoned == change.cordoned


def test_the_gpus_of_a_domain_go_together() -> None:
    before = node("gpu-a2")
    for of, cordon in ((before, True), (node("gpu-a2", "gpu2"), False)):
        change = cordon_change(of, ["gpu2"], cordon=cordon)
        found = labels(of, change.gpus), labels(of, change.along), change.kept
        assert found == (["gpu2"], ["gpu3"], ())


def test_a_gpu_whose_mate_is_cordoned_stays_out_of_use_and_that_is_said() -> None:
    both = node("gpu-a2", "gpu2", "gpu3")
    change = cordon_change(both, ["gpu2"], cordon=False)
    assert (change.changes, labels(both, change.kept)) == (True, ["gpu2"])
    (why,) = effects(both, change)
    mate = node("gpu-a2", "gpu3")
    again = cordon_change(mate, ["gpu2"], cordon=False)
    assert (again.changes, labels(mate, again.kept)) == (False, ["gpu2"])
    assert [*effects(mate, again)][1:] == [why]


def test_every_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidInput) as wrong:
        cordon_change(node("gpu-a1"), ["gpu7", "gpu0", "GPU-x"], cordon=True)
    assert [problem.where for problem in wrong.value.problems] == ["gpu7", "GPU-x"]


def test_what_was_cordoned_by_mistake_can_be_put_back() -> None:
    before = node("gpu-a1", "GPU-mistyped")
    assert cordon_change(before, ["GPU-mistyped"], cordon=False).cordoned == ()


everything = ["all", "gpu0", "gpu1", "gpu2", "gpu3"]


@given(
    st.lists(st.sampled_from([*everything, "GPU-mistyped"]), max_size=4),
    st.lists(st.sampled_from(everything), max_size=3),
    st.booleans(),
)
def test_only_what_was_named_changes_its_place(
    cordoned: list[str], named: list[str], cordon: bool
) -> None:
    before = node("gpu-a2", *cordoned)
    change = cordon_change(before, named, cordon=cordon)
    domains = [Domain(domain.name, domain.gpus) for domain in before.domains]

    def out_of_use(spec: tuple[str, ...]) -> set[str]:
        names = drains(frozenset(spec), domains)
        return {uuid for domain in domains if domain.name in names for uuid in domain.gpus}

    was, now = out_of_use(before.cordoned), out_of_use(change.cordoned)
    touched = {*change.gpus, *change.along}
    assert was - touched == now - touched
    if cordon:
        assert now >= {*change.gpus} | was
    else:
        assert now.intersection(change.gpus) == set(change.kept)
    assert (
        cordon_change(changed(before, cordoned=change.cordoned), named, cordon=cordon).changes
        is False
    )
    assert list(effects(before, change))
    spec: Any = DEFINITION["schema"]["openAPIV3Schema"]["properties"]["spec"]
    patch: Any = merge_patch(change, "7")
    jsonschema.validate(yaml.safe_load(yaml.safe_dump(patch["spec"])), spec)
    assert len(set(patch["spec"]["cordoned"])) == len(patch["spec"]["cordoned"])
