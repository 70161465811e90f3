"""What the ledger is asked for is what was asked of each card, and its user hears what MPS does
differently."""

import pytest

from mpsd.containers.dialects.parsing import read_dialect
from mpsd.containers.dialects.request import DialectRequest, cards_request, messages
from mpsd.model.grants import Gpu
from mpsd.model.policy import Compute
from tests.containers.dialect_machine import A10_MIB, NATIVE, T4_MIB, V100_MIB, every, machine

FOUR_A10 = machine(A10_MIB, 4)
THREE_V100 = machine(V100_MIB, 3)
ONE_T4 = machine(T4_MIB)
LIST = {
    "ALIYUN_COM_GPU_MEM_CONTAINER": "3,4,5,6",
    "ALIYUN_COM_GPU_MEM_DEV": "23",
    "NVIDIA_VISIBLE_DEVICES": "0,1,2,3",
}
SHARE = {"ALIYUN_COM_GPU_MEM_CONTAINER": "6", "ALIYUN_COM_GPU_MEM_DEV": "15"}
EGPU = {
    "EGPU": "POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=20480,WEIGHT=25:PGPU=1,MEM=10240,WEIGHT=50"
}


def request(
    gpus: tuple[Gpu, ...], environment: dict[str, str], compute: Compute = NATIVE
) -> DialectRequest:
    reading = read_dialect(environment, gpus, compute)
    assert isinstance(reading, DialectRequest), reading
    return reading


def test_b1_a_list_holds_of_each_card_its_own_and_says_that_mps_has_one_limit() -> None:
    asked = request(FOUR_A10, LIST)
    parts = cards_request(asked).parts
    assert [part.memory_mib for part in parts] == [A10_MIB * gib // 23 for gib in (3, 4, 5, 6)]
    assert [part.gpu for part in parts] == [gpu.uuid for gpu in FOUR_A10]
    largest = A10_MIB * 6 // 23
    assert cards_request(asked).memory_mib == largest
    said = [message for message in messages(asked) if f"gets the largest, {largest} MiB" in message]
    assert [message.split(":")[0] for message in said] == ["gpu0", "gpu1", "gpu2"]
    assert f"ends what uses more than {A10_MIB * 3 // 23} MiB here" in said[0]


def test_d1_egpu_reserves_every_weight_and_gives_mps_the_smallest() -> None:
    asked = request(THREE_V100, EGPU)
    cards = cards_request(asked)
    assert [(part.memory_mib, part.reserved_percent) for part in cards.parts] == [
        (20480, 25),
        (10240, 50),
    ]
    assert cards.thread_percent == 25
    assert any(
        message.startswith("gpu1: ") and "gets the smallest, 25 %" in message
        for message in messages(asked)
    )


@pytest.mark.parametrize(("policy", "reserved"), [(0, 5), (1, 0), (2, 0), (3, 5), (4, 0), (5, 0)])
def test_b2_a_policy_that_gives_a_share_reserves_it_and_no_other_does(
    policy: int, reserved: int
) -> None:
    (part,) = cards_request(request(ONE_T4, SHARE, every(policy, 20))).parts
    assert part.reserved_percent == reserved


def test_b3_a_container_has_a_weight_of_1_where_none_is_written_and_only_cgpus_counts() -> None:
    weighted = request(ONE_T4, SHARE | {"ALIYUN_COM_GPU_SCHD_WEIGHT": "4"})
    assert [
        cards_request(asked).parts[0].weight for asked in (request(ONE_T4, SHARE), weighted)
    ] == [1, 4]
    assert [part.weight for part in cards_request(request(THREE_V100, EGPU)).parts] == [None, None]
