"""What a container is told to get for its devices."""

from dataclasses import replace

import pytest

from mpsd.kubelet.rules.allocation import Allocation, DeviceListStrategy, NodeConditions, memory_answer, percent_answer
from mpsd.kubelet.rules.messages import DeviceNode, HostMount

ONE = Allocation("gpu0", ("GPU-a",), 7168, 100)
TWO = Allocation("gpu2-3", ("GPU-c", "GPU-d"), 3072, 50)
REAL = NodeConditions("/run/mpsd", DeviceListStrategy.ENVVAR, {})


def test_a_container_gets_its_limits_in_the_one_form_that_holds() -> None:
    assert memory_answer(ONE, REAL).environment == {
        "CUDA_MPS_PIPE_DIRECTORY": "/run/mpsd/client",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=7168M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100",
        "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING": "0",
        "NVIDIA_VISIBLE_DEVICES": "GPU-a",
    }


def test_the_memory_says_nothing_of_threads_where_the_percent_does() -> None:
    """Kubelet takes the answers in any order and keeps the first of two that differ."""
    memory = memory_answer(replace(ONE, thread_percent=None), REAL).environment
    percent = percent_answer(30).environment
    assert percent == {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"}
    assert not memory.keys() & percent.keys()


def test_all_that_is_mounted_is_the_clients_folder_and_nobody_writes_there() -> None:
    assert memory_answer(ONE, REAL).mounts == (HostMount("/run/mpsd/gpu0/client", "/run/mpsd/client", read_only=True),)


def test_no_container_starts_without_the_gate_of_its_domain() -> None:
    assert memory_answer(TWO, REAL).devices == (DeviceNode("/run/mpsd/gpu2-3/gate", "/dev/mpsd-gate", "r"),)


@pytest.mark.parametrize("strategy", DeviceListStrategy)
def test_an_image_cannot_choose_its_devices_however_they_are_given(strategy: DeviceListStrategy) -> None:
    assert "NVIDIA_VISIBLE_DEVICES" in memory_answer(TWO, replace(REAL, strategy=strategy)).environment


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
    assert by_annotation.annotations == {"cdi.k8s.io/mpsd": "nvidia.com/gpu=GPU-c,nvidia.com/gpu=GPU-d"}


def test_simulated_gpus_bring_their_folder_and_their_list_of_devices() -> None:
    around = replace(REAL, extra={"SIM": "/sim"}, shared=("/sim",), device_lists=("SIM_DEVICES",))
    answer = memory_answer(TWO, around)
    assert answer.environment.items() >= {"SIM": "/sim", "SIM_DEVICES": "GPU-c,GPU-d"}.items()
    assert HostMount("/sim", "/sim", read_only=False) in answer.mounts
