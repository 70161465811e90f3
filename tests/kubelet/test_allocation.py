"""What a container gets for its devices, and what no container can have."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.kubelet.rules.allocation import Allocation, Asking, JournalEntry, allocate_memory, allocate_percent
from mpsd.model.domain import Domain
from mpsd.model.problem import InvalidInput
from tests.model.worlds import POLICY, UUIDS
from tests.status.node_worlds import container, entry, mem_ids, named, node_pod, percent_ids

APART = (Domain("gpu0", UUIDS[:1]), Domain("gpu1", UUIDS[1:]))
TOGETHER = (Domain("gpu0-1", UUIDS),)


def asking(mem: int, percent: int | None = None, gpus: int | None = None) -> Asking:
    pod = node_pod("train-0", container(mem=mem, percent=percent), gpus=gpus)
    return pod, pod.requests[0]


def rules(ids: Sequence[str], pod: Asking | None = None, domains: Sequence[Domain] = APART) -> list[str]:
    """The rules by which these devices are refused."""
    with pytest.raises(InvalidInput) as caught:
        allocate_memory(ids, pod, domains, POLICY)
    return [problem.rule for problem in caught.value.problems]


def test_the_devices_alone_say_which_gpu_and_how_much() -> None:
    for pod in (None, asking(7), asking(99)):
        assert allocate_memory(mem_ids(7, gpu=1), pod, APART, POLICY) == Allocation("gpu1", UUIDS[1:], 7168, 100)


def test_who_asks_for_percent_gets_the_cap_from_that_resource() -> None:
    assert allocate_memory(mem_ids(7), asking(7, percent=30), APART, POLICY).thread_percent is None


def test_who_asks_for_none_gets_the_policy_s_cap_so_that_no_image_chooses() -> None:
    half = replace(POLICY, requests=replace(POLICY.requests, default_thread_percent=50))
    assert allocate_memory(mem_ids(7), asking(7), APART, half).thread_percent == 50
    assert allocate_memory(mem_ids(7), None, APART, half).thread_percent == 50


def test_two_gpus_of_one_domain_are_shared_evenly_where_the_label_says_two() -> None:
    ids = (*mem_ids(4, gpu=1), *mem_ids(4, gpu=0))
    assert allocate_memory(ids, asking(8, gpus=2), TOGETHER, POLICY) == Allocation("gpu0-1", UUIDS, 4096, 100)


def test_two_gpus_are_refused_where_nobody_asks_for_two() -> None:
    ids = (*mem_ids(4, gpu=1), *mem_ids(4, gpu=0))
    assert rules(ids, None, TOGETHER) == ["gpu-count"]
    assert rules(ids, asking(8), TOGETHER) == ["gpu-count"]


@pytest.mark.parametrize("ids", [mem_ids(4), (*mem_ids(3), *mem_ids(1, gpu=1))])
def test_what_kubelet_takes_of_an_init_container_is_said_to_be_its_choice(ids: tuple[str, ...]) -> None:
    pod = node_pod("train-0", container(mem=4), init=(container("first", mem=8),), gpus=2)
    with pytest.raises(InvalidInput, match="of an init container's devices kubelet gives the next container any"):
        allocate_memory(ids, (pod, pod.requests[1]), TOGETHER, POLICY)
    with pytest.raises(InvalidInput, match="no single GPU here has so much left"):
        allocate_memory(ids, asking(4, gpus=2), TOGETHER, POLICY)


def test_one_gpu_is_refused_to_a_pod_that_asks_for_two() -> None:
    assert rules(mem_ids(8), asking(8, gpus=2)) == ["gpu-count"]


def test_every_reason_is_given_at_once() -> None:
    ids = (*mem_ids(2), *mem_ids(1, gpu=1), *mem_ids(1), "x", "GPU-gone/3")
    assert rules(ids, None) == [
        "device-unknown",
        "device-twice",
        "device-gone",
        "devices-of-domains",
        "devices-uneven",
        "gpu-count",
    ]
    assert rules(()) == ["no-devices"]


def test_a_refusal_names_the_container_what_was_taken_and_what_to_do() -> None:
    with pytest.raises(InvalidInput) as caught:
        allocate_memory((*mem_ids(5), *mem_ids(3, gpu=1)), asking(8), APART, POLICY)
    assert str(caught.value) == (
        "pod default/train-0, container main: aliyun.com/gpu-mem: "
        f"kubelet took 5 of {UUIDS[0]} and 3 of {UUIDS[1]}, and the pod asks for 1 GPU; no single GPU here has so much "
        "left: ask for less, or wait until one has, or change the label aliyun.com/gpu-count"
    )


def test_devices_of_two_domains_are_refused_to_a_pod_that_asks_for_two_gpus() -> None:
    ids = (*mem_ids(5), *mem_ids(3, gpu=1))
    assert rules(ids, asking(8, gpus=2), APART) == ["devices-of-domains", "devices-uneven"]


def test_percent_is_of_each_gpu() -> None:
    assert allocate_percent(percent_ids(30), None, POLICY) == 30
    assert allocate_percent(percent_ids(30), asking(7, percent=30), POLICY) == 30
    assert allocate_percent(percent_ids(60), asking(8, percent=60, gpus=2), POLICY) == 30


@pytest.mark.parametrize(("count", "gpus"), [(0, None), (101, None), (1, 2), (31, 2), (202, 2)])
def test_a_percent_that_no_gpu_has_is_refused(count: int, gpus: int | None) -> None:
    with pytest.raises(InvalidInput, match="no share of a GPU's threads"):
        allocate_percent(percent_ids(count), asking(8, gpus=gpus) if gpus else None, POLICY)


def test_memory_is_no_percent() -> None:
    with pytest.raises(InvalidInput, match="no device of this resource"):
        allocate_percent(mem_ids(30), None, POLICY)
    assert rules(percent_ids(3)) == ["device-unknown"]


def test_the_journal_survives_being_written_down() -> None:
    for held in (entry(mem_ids(2), named(), None, 3.5, "a-uid"), entry(percent_ids(3))):
        assert msgspec.json.decode(msgspec.json.encode(held), type=JournalEntry) == held


IDS = st.builds("{}/{}".format, st.sampled_from([*UUIDS, "GPU-2", "GPU-3", "GPU-gone", "percent"]), st.integers(0, 9))
DOMAINS = st.sampled_from(
    [APART, TOGETHER, (*APART, Domain("gpu2-3", ("GPU-2", "GPU-3"))), (Domain("gpu0-2", (*UUIDS, "GPU-2")),), ()]
)
PODS = st.none() | st.builds(asking, st.integers(1, 12), st.none() | st.integers(1, 99), st.none() | st.integers(1, 4))


@given(st.lists(IDS | st.text(max_size=5), max_size=12), PODS, DOMAINS)
def test_any_devices_fit_one_domain_evenly_or_are_refused(
    ids: list[str], pod: Asking | None, domains: tuple[Domain, ...]
) -> None:
    try:
        allocation = allocate_memory(ids, pod, domains, POLICY)
    except InvalidInput:
        return
    (domain,) = (domain for domain in domains if domain.name == allocation.domain)
    assert set(allocation.gpus) <= set(domain.gpus)
    assert allocation.memory_mib * len(allocation.gpus) == len(set(ids)) * 1024
    assert len(allocation.gpus) == (pod[1].gpus if pod else 1)
    for uuid in allocation.gpus:
        assert sum(one.startswith(uuid) for one in ids) * 1024 == allocation.memory_mib


@given(st.lists(st.integers(0, 300).map("percent/{}".format) | st.text(max_size=5), max_size=210), PODS)
def test_any_percent_is_a_percentage_or_refused(ids: list[str], pod: Asking | None) -> None:
    try:
        assert 1 <= allocate_percent(ids, pod, POLICY) <= 100
    except InvalidInput:
        return
