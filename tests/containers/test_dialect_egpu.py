"""eGPU's variables mean what its document says they mean."""

import pytest

from mpsd.containers.dialects.request import MIB
from tests.containers.dialect_machine import asked, machine, problems, rules, why_off

V100_16_MIB = 16160  # the document's own example: a card of 16 GB has 15.78
SIX = machine(V100_16_MIB, 6)
ON = {"AMP_VGPU_ENABLE": "1", "AMP_USE_HOST_DAEMON": "1"}
ONE = ON | {"NVIDIA_VISIBLE_DEVICES": "0"}


@pytest.mark.parametrize(
    "switch", [{}, {"AMP_VGPU_ENABLE": "0"}, {"AMP_VGPU_ENABLE": ""}, {"AMP_VGPU_ENABLE": "true"}]
)
def test_c1_without_the_main_switch_nothing_is_changed(switch: dict[str, str]) -> None:
    assert why_off(SIX, **switch, GPU_MEM_PER_DEVICE="nonsense").startswith("AMP_VGPU_ENABLE is ")
    if switch:
        off = why_off(SIX, **switch, ALIYUN_COM_GPU_MEM_CONTAINER="5", ALIYUN_COM_GPU_MEM_DEV="16")
        assert off.endswith(", not 1")


def test_c1_the_switch_alone_asks_for_nothing() -> None:
    assert why_off(SIX, **ON) == "AMP_VGPU_ENABLE=1, with no limit of memory and none of compute"


@pytest.mark.parametrize(
    ("devices", "ordinals"),
    [
        ("3,5", [3, 5]),
        (f"{SIX[2].uuid},{SIX[0].uuid}", [2, 0]),
        (f"{SIX[4].uuid},1", [4, 1]),
        ("all", [0, 1, 2, 3, 4, 5]),
    ],
)
def test_c2_devices_are_named_by_index_by_uuid_or_by_both(
    devices: str, ordinals: list[int]
) -> None:
    cards = asked(SIX, **ON, GPU_MEM_PER_DEVICE="5000000000", NVIDIA_VISIBLE_DEVICES=devices)
    assert [card.gpu.ordinal for card in cards] == ordinals


@pytest.mark.parametrize(
    ("devices", "rule"),
    [
        ("void", "devices-none"),
        ("none", "devices-none"),
        ("", "devices-none"),
        ("6", "device-unknown"),
        ("GPU-none-such", "device-unknown"),
        ("0,", "device-unknown"),
        ("1,1", "device-twice"),
        (f"0,{SIX[0].uuid}", "device-twice"),
    ],
)
def test_c2_no_device_an_unknown_one_and_the_same_twice_are_refused(
    devices: str, rule: str
) -> None:
    assert rules(SIX, **ON, GPU_MEM_PER_DEVICE="5000000000", NVIDIA_VISIBLE_DEVICES=devices) == [
        rule
    ]


@pytest.mark.parametrize(
    ("reserved", "kept_mib"), [({}, 10), ({"ALIYUN_COM_GPU_MEM_RESERVED": "0"}, 0)]
)
def test_c3_bytes_are_what_is_written_less_the_reserve_of_10_mb(
    reserved: dict[str, str], kept_mib: int
) -> None:
    (card,) = asked(SIX, **ONE, **reserved, GPU_MEM_PER_DEVICE="2000000000")
    assert card.memory_bytes == 2_000_000_000 - kept_mib * MIB
    assert card.memory_mib == card.memory_bytes // MIB


def test_c3_more_than_the_card_and_less_than_a_context_are_refused() -> None:
    assert rules(SIX, **ONE, GPU_MEM_PER_DEVICE=str((V100_16_MIB + 10) * MIB + 1)) == [
        "memory-over-card"
    ]
    assert rules(SIX, **ONE, GPU_MEM_PER_DEVICE="1000000") == ["memory-below-context"]
    assert rules(SIX, **ONE, GPU_MEM_PER_DEVICE="2G") == ["not-a-number"]


def test_c4_a_proportion_is_exact_to_the_byte() -> None:
    (card,) = asked(SIX, **ONE, ALIYUN_COM_GPU_MEM_CONTAINER="5", ALIYUN_COM_GPU_MEM_DEV="16")
    assert card.memory_bytes == 5_295_308_800 - 10_485_760 == V100_16_MIB * MIB * 5 // 16 - 10 * MIB


def test_c4_container_alone_is_of_the_cards_size_rounded_up_to_whole_gb() -> None:
    alone = asked(SIX, **ONE, ALIYUN_COM_GPU_MEM_CONTAINER="5")
    assert alone == asked(SIX, **ONE, ALIYUN_COM_GPU_MEM_CONTAINER="5", ALIYUN_COM_GPU_MEM_DEV="16")


def test_c4_two_ways_to_say_memory_and_a_card_without_a_part_are_refused() -> None:
    assert rules(SIX, **ONE, GPU_MEM_PER_DEVICE="5000000000", ALIYUN_COM_GPU_MEM_CONTAINER="5") == [
        "memory-twice"
    ]
    found = problems(SIX, **ONE, ALIYUN_COM_GPU_MEM_DEV="16", GPU_UTIL_PER_DEVICE="half")
    assert [problem.rule for problem in found] == ["not-a-number", "share-unsaid"]
    assert rules(SIX, **ONE, ALIYUN_COM_GPU_MEM_CONTAINER="17", ALIYUN_COM_GPU_MEM_DEV="16") == [
        "memory-over-card"
    ]


def test_c6_a_percentage_up_to_95_caps_the_threads() -> None:
    for percent in (1, 33, 95):
        (card,) = asked(
            SIX, **ONE, GPU_UTIL_PER_DEVICE=str(percent), GPU_MEM_PER_DEVICE="5000000000"
        )
        assert card.thread_percent == percent
        assert any("eGPU counts time" in difference for difference in card.differs)


@pytest.mark.parametrize(
    "percent", [{}, {"GPU_UTIL_PER_DEVICE": "0"}, {"GPU_UTIL_PER_DEVICE": "96"}]
)
def test_c6_unset_0_and_over_95_turn_compute_control_off(percent: dict[str, str]) -> None:
    (card,) = asked(SIX, **ONE, **percent, GPU_MEM_PER_DEVICE="5000000000")
    assert card.thread_percent == 100


def test_c6_a_percentage_without_memory_promises_the_whole_card() -> None:
    (card,) = asked(SIX, **ONE, GPU_UTIL_PER_DEVICE="33")
    assert (card.memory_bytes, card.memory_mib) == (V100_16_MIB * MIB, V100_16_MIB - 76)
    assert any("whole card" in difference for difference in card.differs)
