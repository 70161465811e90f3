"""seeds.md B on one T4: cGPU's document, number by number."""

from collections.abc import Iterator

import pytest

from tests.host.host import Host, host_of
from tests.host.published import CARDS

GPU_TEST1 = {"ALIYUN_COM_GPU_MEM_CONTAINER": "6", "ALIYUN_COM_GPU_MEM_DEV": "15"}
PUBLISHED_MIB = 6043  # what nvidia-smi shows in gpu_test1


@pytest.fixture(scope="module")
def serving_host() -> Iterator[Host]:
    yield from host_of("T4-15109", cards=CARDS)


@pytest.mark.parametrize("container", ["unset", "0", "1,0,0"])
def test_b1_unset_and_0_and_1_0_0_leave_the_container_exactly_as_it_was(
    host: Host, container: str
) -> None:
    environment = {"ALIYUN_COM_GPU_MEM_DEV": "15", "NVIDIA_VISIBLE_DEVICES": "0"}
    if container != "unset":
        environment["ALIYUN_COM_GPU_MEM_CONTAINER"] = container
    host.ran_as_it_was(environment)


def test_b4_status_says_of_each_container_its_id_limit_memory_used_and_granted(host: Host) -> None:
    made = host.holding(GPU_TEST1, "alloc=3000", name="gpu_test1")
    (grant,) = host.status()["grants"]
    assert grant["container"] == made.name
    assert (grant["memoryMiB"], grant["threadPercent"], grant["clients"]) == (PUBLISHED_MIB, 100, 1)
    assert 3000 < grant["usedMiB"] <= PUBLISHED_MIB
