"""cGPU's variables mean what its document says they mean."""

import pytest

from mpsd.containers.dialects.request import MIB
from mpsd.model.cgpu_policies import POLICIES
from mpsd.model.policy import CardCompute, Compute
from tests.containers.dialect_machine import (
    A10_MIB,
    T4_MIB,
    asked,
    every,
    machine,
    problems,
    rules,
    why_off,
)

FOUR = machine(A10_MIB, 4)
ALL_FOUR = {"NVIDIA_VISIBLE_DEVICES": "0,1,2,3", "ALIYUN_COM_GPU_MEM_DEV": "23"}


def each_gib(container: str) -> list[float]:
    """What the four cards are asked for, in the unit of ALIYUN_COM_GPU_MEM_DEV."""
    cards = asked(FOUR, ALIYUN_COM_GPU_MEM_CONTAINER=container, **ALL_FOUR)
    return [round(card.memory_bytes * 23 / (A10_MIB * MIB), 6) for card in cards]


def test_b1_six_of_fifteen_gib_of_a_t4_are_the_published_6043_mib() -> None:
    (card,) = asked(machine(T4_MIB), ALIYUN_COM_GPU_MEM_CONTAINER="6", ALIYUN_COM_GPU_MEM_DEV="15")
    assert (card.memory_bytes, card.memory_mib, card.thread_percent) == (
        T4_MIB * MIB * 6 // 15,
        6043,
        100,
    )
    assert any("whole MiB" in difference for difference in card.differs)


@pytest.mark.parametrize(
    ("container", "gib"), [("3", [3, 3, 3, 3]), ("3,1", [3, 1, 1, 1]), ("3,4,5,6", [3, 4, 5, 6])]
)
def test_b1_a_list_is_for_the_cards_in_turn_and_its_last_value_for_the_others(
    container: str, gib: list[int]
) -> None:
    assert each_gib(container) == gib


def test_b1_unset_and_0_and_1_0_0_turn_isolation_off() -> None:
    assert why_off(FOUR, **ALL_FOUR) == "ALIYUN_COM_GPU_MEM_CONTAINER is not set"
    for container in ("0", "1,0,0"):
        off = why_off(FOUR, ALIYUN_COM_GPU_MEM_CONTAINER=container, **ALL_FOUR)
        assert off == f"ALIYUN_COM_GPU_MEM_CONTAINER={container} turns cGPU off"
    assert why_off(FOUR) == "no variable of cGPU, eGPU or EGPU is set"


def test_b1_more_values_than_cards_and_everything_else_that_is_wrong_are_said_at_once() -> None:
    wrong = {
        "ALIYUN_COM_GPU_MEM_DEV": "15G",
        "ALIYUN_COM_GPU_SCHD_WEIGHT": "0",
        "NVIDIA_VISIBLE_DEVICES": "0,9",
    }
    found = problems(FOUR, ALIYUN_COM_GPU_MEM_CONTAINER="3,4", **wrong)
    assert {problem.where for problem in found} == {*wrong, "ALIYUN_COM_GPU_MEM_CONTAINER"}
    assert all(problem.message and problem.remedy for problem in found)
    assert rules(FOUR, ALIYUN_COM_GPU_MEM_CONTAINER="", **ALL_FOUR) == ["not-a-number"]
    over = {"ALIYUN_COM_GPU_MEM_CONTAINER": "24,3", "ALIYUN_COM_GPU_SCHD_WEIGHT": "-1"}
    assert rules(FOUR, **ALL_FOUR, **over) == ["not-a-number", "memory-over-card"]


def test_b2_a_weight_over_1_is_weighted_and_mps_is_said_to_have_none() -> None:
    share = {
        "ALIYUN_COM_GPU_MEM_CONTAINER": "6",
        "ALIYUN_COM_GPU_MEM_DEV": "23",
        "NVIDIA_VISIBLE_DEVICES": "0",
    }
    (plain,) = asked(FOUR, **share, ALIYUN_COM_GPU_SCHD_WEIGHT="1")
    (weighted,) = asked(FOUR, **share, ALIYUN_COM_GPU_SCHD_WEIGHT="2")
    assert (plain.policy, plain.weight) == (5, 1)
    assert (weighted.policy, weighted.weight, weighted.thread_percent) == (2, 2, 100)
    assert any("MPS has no weights" in difference for difference in weighted.differs)


@pytest.mark.parametrize(
    ("policy", "percent"), [(0, 5), (1, 100), (2, 100), (3, 5), (4, 100), (5, 100)]
)
def test_b2_every_policy_of_a_card_has_a_row_and_a_cap(policy: int, percent: int) -> None:
    (card,) = asked(machine(T4_MIB), every(policy, 20), ALIYUN_COM_GPU_MEM_CONTAINER="6")
    assert (card.policy, card.thread_percent) == (policy, percent)
    assert card.differs[0] == f"policy {policy}, {POLICIES[policy].name}: {POLICIES[policy].on_mps}"


def test_b2_a_fixed_share_is_weight_of_max_inst_and_never_more_than_a_card() -> None:
    share = {"ALIYUN_COM_GPU_MEM_CONTAINER": "6", "ALIYUN_COM_GPU_MEM_DEV": "15"}
    (card,) = asked(machine(T4_MIB), every(3, 20), **share, ALIYUN_COM_GPU_SCHD_WEIGHT="7")
    assert (card.policy, card.thread_percent) == (3, 35)
    over = rules(machine(T4_MIB), every(3, 20), **share, ALIYUN_COM_GPU_SCHD_WEIGHT="21")
    assert over == ["weight-over-card"]


def test_b2_a_container_of_several_cards_gets_the_smallest_cap() -> None:
    compute = Compute(5, None, {"1": CardCompute(3, 20), "2": CardCompute(0, 4)})
    cards = asked(
        FOUR, compute, **ALL_FOUR, ALIYUN_COM_GPU_MEM_CONTAINER="3", ALIYUN_COM_GPU_SCHD_WEIGHT="1"
    )
    assert [card.policy for card in cards] == [5, 3, 0, 5]
    assert [card.reserved_percent for card in cards] == [0, 5, 25, 0]
    assert {card.thread_percent for card in cards} == {5}
    assert any(
        "smallest, 5 %; 25 % are requested here" in difference for difference in cards[2].differs
    )


def test_b2_a_share_of_fewer_sms_than_mps_gives_says_how_many_it_gives() -> None:
    share = {"ALIYUN_COM_GPU_MEM_CONTAINER": "6", "ALIYUN_COM_GPU_MEM_DEV": "15"}
    (small,) = asked(machine(T4_MIB), every(0, 20), **share)
    assert "MPS gives a program no fewer than 8 SMs, which are 10 % of this card" in small.differs
    (enough,) = asked(machine(T4_MIB), every(0, 10), **share)
    assert not any("no fewer" in difference for difference in enough.differs)
