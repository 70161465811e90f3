"""What a container gets for its devices, and what no container can have."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.kubelet.rules.allocation import (
    Allocation,
    DeviceListStrategy,
    NodeConditions,
    allocate_memory,
    allocate_percent,
    gpu_of,
    healthy,
    is_percent,
    memory_answer,
    memory_devices,
    number_of,
    percent_answer,
    percent_devices,
    units_by_gpu,
)
from mpsd.kubelet.rules.node_pods import RequestingContainer
from mpsd.model.domain import Domain, State
from mpsd.model.grants import DeviceNode, Gpu, HostMount, promised_mib
from mpsd.model.policy import GpuPriority
from mpsd.model.problem import InvalidInput
from tests.model.worlds import CAPABILITY, GPUS, POLICY, UUIDS
from tests.status.node_worlds import container, mem_ids, node_pod, percent_ids

APART = (Domain("gpu0", UUIDS[:1]), Domain("gpu1", UUIDS[1:]))
TOGETHER = (Domain("gpu0-1", UUIDS),)


def asking(mem: int, percent: int | None = None, gpus: int | None = None) -> RequestingContainer:
    pod = node_pod("train-0", container(mem=mem, percent=percent), gpus=gpus)
    return RequestingContainer(pod, pod.requests[0])


def rules(
    ids: Sequence[str], pod: RequestingContainer | None = None, domains: Sequence[Domain] = APART
) -> list[str]:
    """The rules by which these devices are refused."""
    with pytest.raises(InvalidInput) as caught:
        allocate_memory(ids, pod, domains, POLICY)
    return [problem.rule for problem in caught.value.problems]


def test_the_devices_alone_say_which_gpu_and_how_much() -> None:
    for pod in (None, asking(7), asking(99)):
        assert allocate_memory(mem_ids(7, gpu=1), pod, APART, POLICY) == Allocation(
            "gpu1", UUIDS[1:], 7168, 100
        )


def test_who_asks_for_percent_gets_the_cap_from_that_resource() -> None:
    assert allocate_memory(mem_ids(7), asking(7, percent=30), APART, POLICY).thread_percent is None


def test_who_asks_for_none_gets_the_policy_s_cap_so_that_no_image_chooses() -> None:
    half = replace(POLICY, requests=replace(POLICY.requests, default_thread_percent=50))
    assert allocate_memory(mem_ids(7), asking(7), APART, half).thread_percent == 50
    assert allocate_memory(mem_ids(7), None, APART, half).thread_percent == 50


def test_two_gpus_of_one_domain_are_shared_evenly_where_the_label_says_two() -> None:
    ids = (*mem_ids(4, gpu=1), *mem_ids(4, gpu=0))
    assert allocate_memory(ids, asking(8, gpus=2), TOGETHER, POLICY) == Allocation(
        "gpu0-1", UUIDS, 4096, 100
    )


def test_two_gpus_are_refused_where_nobody_asks_for_two() -> None:
    ids = (*mem_ids(4, gpu=1), *mem_ids(4, gpu=0))
    assert rules(ids, None, TOGETHER) == ["gpu-count"]
    assert rules(ids, asking(8), TOGETHER) == ["gpu-count"]


@pytest.mark.parametrize("ids", [mem_ids(4), (*mem_ids(3), *mem_ids(1, gpu=1))])
def test_devices_of_an_init_container_are_kubelets_choice(ids: tuple[str, ...]) -> None:
    pod = node_pod("train-0", container(mem=4), init=(container("first", mem=8),), gpus=2)
    with pytest.raises(InvalidInput, match="kubelet reuses any of an init container's devices"):
        allocate_memory(ids, RequestingContainer(pod, pod.requests[1]), TOGETHER, POLICY)
    with pytest.raises(InvalidInput, match="no 2 GPUs of one domain have that much left"):
        allocate_memory(ids, asking(4, gpus=2), TOGETHER, POLICY)


def test_one_gpu_is_refused_to_a_pod_that_asks_for_two() -> None:
    assert rules(mem_ids(8), asking(8, gpus=2)) == ["gpu-count"]


def test_every_reason_is_given_at_once() -> None:
    ids = (*mem_ids(2), *mem_ids(1, gpu=1), *mem_ids(1), "x", "GPU-gone/3")
    assert rules((*mem_ids(5), *mem_ids(3, gpu=1)), asking(8, gpus=2)) == [
        "devices-of-domains",
        "devices-uneven",
    ]
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
    assert caught.value.subject == "pod default/train-0, container main"
    (problem,) = caught.value.problems
    assert (problem.rule, problem.where) == ("gpu-count", "aliyun.com/gpu-mem")
    assert f"5 of {UUIDS[0]} and 3 of {UUIDS[1]}" in problem.message
    assert "aliyun.com/gpu-count" in problem.remedy


def test_percent_is_of_each_gpu() -> None:
    assert allocate_percent(percent_ids(30), None, POLICY) == 30
    assert allocate_percent(percent_ids(1), None, POLICY) == 1
    assert allocate_percent(percent_ids(30), asking(7, percent=30), POLICY) == 30
    assert allocate_percent(percent_ids(60), asking(8, percent=60, gpus=2), POLICY) == 30


@pytest.mark.parametrize(("count", "gpus"), [(0, None), (101, None), (1, 2), (31, 2), (202, 2)])
def test_a_percent_that_no_gpu_has_is_refused(count: int, gpus: int | None) -> None:
    with pytest.raises(InvalidInput, match="is not a valid share"):
        allocate_percent(percent_ids(count), asking(8, gpus=gpus) if gpus else None, POLICY)


def test_memory_is_no_percent() -> None:
    with pytest.raises(InvalidInput, match="this resource has no such device"):
        allocate_percent(mem_ids(30), None, POLICY)
    assert rules(percent_ids(3)) == ["device-unknown"]


IDS = st.builds(
    "{}/{}".format,
    st.sampled_from([*UUIDS, "GPU-2", "GPU-3", "GPU-gone", "percent"]),
    st.integers(0, 9),
)
DOMAINS = st.sampled_from(
    [
        APART,
        TOGETHER,
        (*APART, Domain("gpu2-3", ("GPU-2", "GPU-3"))),
        (Domain("gpu0-2", (*UUIDS, "GPU-2")),),
        (),
    ]
)
PODS = st.none() | st.builds(
    asking, st.integers(1, 12), st.none() | st.integers(1, 99), st.none() | st.integers(1, 4)
)


@given(st.lists(IDS | st.text(max_size=5), max_size=12), PODS, DOMAINS)
def test_any_devices_fit_one_domain_evenly_or_are_refused(
    ids: list[str], pod: RequestingContainer | None, domains: tuple[Domain, ...]
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


@given(
    st.lists(st.integers(0, 300).map("percent/{}".format) | st.text(max_size=5), max_size=210), PODS
)
def test_any_percent_is_one_or_refused(ids: list[str], pod: RequestingContainer | None) -> None:
    try:
        assert 1 <= allocate_percent(ids, pod, POLICY) <= 100
    except InvalidInput:
        return


# What a container is told to get for its devices.

ONE = Allocation("gpu0", ("GPU-a",), 7168, 100)
TWO = Allocation("gpu2-3", ("GPU-c", "GPU-d"), 3072, 50)
REAL = NodeConditions("/run/mpsd", DeviceListStrategy.ENVVAR, {})


def test_a_container_gets_its_limits_in_the_one_form_that_holds() -> None:
    answer = memory_answer(ONE, REAL)
    client, gate = "/run/mpsd/gpu0/client", "/run/mpsd/gpu0/gate"
    assert answer.mounts == (HostMount(client, "/run/mpsd/client", read_only=True),)
    assert answer.devices == (DeviceNode(gate, gate, "r"),)
    assert answer.environment == {
        "CUDA_MPS_PIPE_DIRECTORY": "/run/mpsd/client",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=7168M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100",
        "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING": "0",
        "NVIDIA_VISIBLE_DEVICES": "GPU-a",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    }


def test_the_memory_says_nothing_of_threads_where_the_percent_does() -> None:
    """Kubelet takes the answers in any order and keeps the first of two that differ."""
    memory = memory_answer(replace(ONE, thread_percent=None), REAL).environment
    percent = percent_answer(30).environment
    assert percent == {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"}
    assert not memory.keys() & percent.keys()


@pytest.mark.parametrize("by", ["none", "annotation"])
def test_a_priority_is_answered_always_or_never(by: Any) -> None:
    policy = replace(POLICY, gpu_priority=GpuPriority(by))
    for annotations, value in (
        ({}, "0"),
        ({"mpsd.io/gpu-priority": "below-normal"}, "1"),
        (None, "0"),
    ):
        pod = None if annotations is None else node_pod(annotations=annotations)
        container = pod and RequestingContainer(pod, pod.requests[0])
        given = allocate_memory(mem_ids(7), container, APART, policy)
        expected = None if by == "none" else value
        assert memory_answer(given, REAL).environment.get("CUDA_MPS_CLIENT_PRIORITY") == expected


@pytest.mark.parametrize("strategy", DeviceListStrategy)
def test_an_image_never_chooses_its_devices(strategy: DeviceListStrategy) -> None:
    assert (
        "NVIDIA_VISIBLE_DEVICES" in memory_answer(TWO, replace(REAL, strategy=strategy)).environment
    )


def test_devices_can_be_given_as_mounts_that_no_user_of_the_api_can_make() -> None:
    answer = memory_answer(TWO, replace(REAL, strategy=DeviceListStrategy.VOLUME_MOUNTS))
    assert answer.environment["NVIDIA_VISIBLE_DEVICES"] == "/var/run/nvidia-container-devices"
    assert answer.mounts[1:] == (
        HostMount("/dev/null", "/var/run/nvidia-container-devices/GPU-c", read_only=True),
        HostMount("/dev/null", "/var/run/nvidia-container-devices/GPU-d", read_only=True),
    )


def test_devices_can_be_given_by_their_cdi_names() -> None:
    by_cri = memory_answer(TWO, replace(REAL, strategy=DeviceListStrategy.CDI_CRI))
    by_annotation = memory_answer(TWO, replace(REAL, strategy=DeviceListStrategy.CDI_ANNOTATIONS))
    assert by_cri.cdi == ("nvidia.com/gpu=GPU-c", "nvidia.com/gpu=GPU-d")
    assert by_annotation.annotations == {
        "cdi.k8s.io/mpsd": "nvidia.com/gpu=GPU-c,nvidia.com/gpu=GPU-d"
    }


def test_simulated_gpus_bring_their_folder_and_their_list_of_devices() -> None:
    around = replace(REAL, extra={"SIM": "/sim"}, shared=("/sim",), device_lists=("SIM_DEVICES",))
    answer = memory_answer(TWO, around)
    assert answer.environment.items() >= {"SIM": "/sim", "SIM_DEVICES": "GPU-c,GPU-d"}.items()
    assert HostMount("/sim", "/sim", read_only=False) in answer.mounts


# The devices of a node: as many as there are whole units, with names that say the same after every
# restart.

H200 = Gpu("GPU-aa3b8f7e-9d2c-4f7a-8f3e-5b1c2d3e4f50", 0, "NVIDIA H200", 143155, 132, CAPABILITY)


def test_what_may_be_promised_more_than_once_has_more_devices() -> None:
    twice = replace(
        POLICY,
        oversubscription=replace(POLICY.oversubscription, memory_percent=200, thread_percent=200),
    )
    assert len(memory_devices(GPUS, twice)) == 2 * len(memory_devices(GPUS, POLICY))
    assert len(percent_devices(GPUS, twice)) == 400


@given(
    st.integers(0, 400_000),
    st.integers(1, 100_000),
    st.integers(1, 300),
    st.text(min_size=1).filter(lambda uuid: uuid != "percent"),
)
def test_every_id_parses_back_and_no_unit_is_promised_that_is_not_there(
    memory_mib: int, unit_mib: int, percent: int, uuid: str
) -> None:
    policy = replace(
        POLICY,
        resources=replace(POLICY.resources, memory_unit_mib=unit_mib),
        oversubscription=replace(POLICY.oversubscription, memory_percent=percent),
    )
    gpu = replace(H200, uuid=uuid, memory_mib=min(memory_mib, unit_mib * 200))
    devices = memory_devices([gpu], policy)
    assert (
        len(devices) * unit_mib <= max(0, promised_mib(gpu, policy)) < (len(devices) + 1) * unit_mib
    )
    assert [gpu_of(device) for device in devices] == [uuid] * len(devices)
    assert [number_of(device) for device in devices] == list(range(len(devices)))
    assert units_by_gpu(devices) == ({uuid: len(devices)} if devices else {})


@given(st.text())
def test_no_name_whatever_is_taken_for_two_kinds(device_id: str) -> None:
    assert not (is_percent(device_id) and gpu_of(device_id))
    assert number_of(device_id) >= 0


@pytest.mark.parametrize(
    "device_id", ["", "/", "GPU-1", "GPU-1/", "/3", "GPU-1/-1", "GPU-1/01", "GPU-1/1 ", "GPU-1/٣"]
)
def test_other_names_are_no_devices_of_ours(device_id: str) -> None:
    assert not gpu_of(device_id)
    with pytest.raises(InvalidInput, match="this resource has no such device"):
        units_by_gpu([f"{UUIDS[0]}/1", device_id])


HEALTHY = {
    State.STARTING: (False, True),
    State.READY: (True, True),
    State.FAULT: (False, True),
    State.WEDGED: (False, False),
    State.DOWN: (False, True),
    State.DRAINING: (False, False),
    State.DRAINED: (False, False),
    State.REFUSED: (False, False),
    None: (False, False),
}


@pytest.mark.parametrize("state", [*State, None])
def test_a_domain_that_comes_back_keeps_its_devices(state: State | None) -> None:
    """The pair: before it was ever ready, and after."""
    assert (healthy(state, was_ready=False), healthy(state, was_ready=True)) == HEALTHY[state]
