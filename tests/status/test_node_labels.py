"""The labels of a Node: always ones that Kubernetes takes, none about what is not known or not the
same of all GPUs."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.status.rules.mpsnode import NODE_LABELS, label_value, labels_patch, node_labels
from tests.model.worlds import CAPABILITY, GPUS, POLICY, UUIDS

# https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
VALID = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?", re.ASCII)
OURS = {
    "mpsd.io/gpu.product": "NVIDIA-A30",
    "mpsd.io/gpu.memory": "23",
    "mpsd.io/gpu.count": "2",
    "mpsd.io/sharing": "mps",
}
labels = st.dictionaries(st.sampled_from([*NODE_LABELS, "team"]), st.sampled_from(["", "1", "mps"]))


@given(
    st.lists(st.text(max_size=90), max_size=3),
    st.lists(st.integers(0, 10**6), min_size=3, max_size=3),
)
def test_whatever_the_driver_says_each_label_is_one_that_kubernetes_takes(
    names: list[str], sizes: list[int]
) -> None:
    gpus = [
        replace(GPUS[0], name=name, memory_mib=mib) for name, mib in zip(names, sizes, strict=False)
    ]
    found = node_labels(gpus, POLICY)
    assert found.keys() <= set(NODE_LABELS)
    assert all(value and VALID.fullmatch(value) for value in found.values()), found
    assert bool(found) is bool(gpus)


@given(labels, labels)
def test_after_its_patch_a_node_has_the_wanted_labels_of_ours_and_all_others_as_before(
    before: dict[str, str], wanted: dict[str, str]
) -> None:
    wanted = {name: value for name, value in wanted.items() if name in NODE_LABELS}
    patch = labels_patch(before, wanted)
    merged = before | (patch["metadata"]["labels"] if patch else {})
    after = {name: value for name, value in merged.items() if value is not None}
    others = {name: value for name, value in before.items() if name not in NODE_LABELS}
    assert after == others | wanted
    assert labels_patch(after, wanted) is None


def test_a_node_is_labelled_with_what_its_gpus_have_in_common() -> None:
    assert node_labels(GPUS, POLICY) == OURS
    mixed = (GPUS[0], replace(GPUS[1], name="NVIDIA A40", memory_mib=GPUS[0].memory_mib * 2))
    assert node_labels(mixed, POLICY) == {"mpsd.io/gpu.count": "2", "mpsd.io/sharing": "mps"}
    assert node_labels((), POLICY) == {}


@pytest.mark.parametrize(
    ("unit_mib", "memory_percent", "gib"),
    [(1024, 100, 23), (256, 100, 23), (4096, 100, 20), (1024, 150, 34)],
)
def test_memory_is_the_gib_that_can_be_requested_of_one_gpu(
    unit_mib: int, memory_percent: int, gib: int
) -> None:
    """In whole units of the resource, of what the policy lets a GPU promise."""
    resources = replace(POLICY.resources, memory_unit_mib=unit_mib)
    shares = replace(POLICY.oversubscription, memory_percent=memory_percent)
    found = node_labels(GPUS, replace(POLICY, resources=resources, oversubscription=shares))
    assert found["mpsd.io/gpu.memory"] == str(gib)


def test_gpus_that_differ_by_less_than_can_be_requested_are_alike() -> None:
    smaller = replace(GPUS[1], uuid=UUIDS[1], memory_mib=23 * 1024 + CAPABILITY.server_mib + 1)
    assert node_labels((GPUS[0], smaller), POLICY) == OURS


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NVIDIA H200", "NVIDIA-H200"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA-A100-SXM4-80GB"),
        (
            "NVIDIA RTX PRO 6000 Blackwell (Server Edition)",
            "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition",
        ),
        ("  .-_ ", ""),
        ("a" * 62 + " b", "a" * 62),
    ],
)
def test_a_product_is_written_as_nvidias_discovery_writes_it(name: str, value: str) -> None:
    assert label_value(name) == value
