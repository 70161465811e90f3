"""seeds.md B on one T4: cGPU's document, number by number."""

from collections.abc import Iterator

import pytest

from tests.host.host import Host, host_of
from tests.host.published import CARDS, OUT_OF_MEMORY, SUCCESS, results

GPU_TEST1 = {"ALIYUN_COM_GPU_MEM_CONTAINER": "6", "ALIYUN_COM_GPU_MEM_DEV": "15"}
GPU_TEST2 = {"ALIYUN_COM_GPU_MEM_CONTAINER": "8", "ALIYUN_COM_GPU_MEM_DEV": "15"}
PUBLISHED_MIB = 6043  # what nvidia-smi shows in gpu_test1


@pytest.fixture(scope="module")
def serving_host() -> Iterator[Host]:
    yield from host_of("T4-15109", cards=CARDS)


def test_b1_a_program_over_its_share_is_out_of_memory_and_one_below_runs(host: Host) -> None:
    done = host.ran(GPU_TEST1, "sim-cuda", "alloc=5800", "free", "alloc=7000")
    assert results(done) == [SUCCESS, OUT_OF_MEMORY]
    assert done.code == 0


def test_b1_two_containers_share_the_card_as_published_and_the_ledger_says_so(host: Host) -> None:
    first = host.holding(GPU_TEST1, "alloc=5800", name="gpu_test1")
    second = host.holding(GPU_TEST2, "alloc=7800", name="gpu_test2")
    assert host.granted_to(first).memory_mib == PUBLISHED_MIB
    assert host.granted_to(second).memory_mib == 15109 * 8 // 15
    assert host.ledger == {0: (PUBLISHED_MIB + 15109 * 8 // 15, 0)}
    assert first.delete(force=True).code == 0
    assert host.ledger == {0: (15109 * 8 // 15, 0)}  # by the time that delete returns


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
