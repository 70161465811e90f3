"""Containers get the very cards that they name, all of them or none, and no card is promised beyond
its size."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.agent.rules.decide import Refuse
from mpsd.model.domain import State
from mpsd.model.grants import Grant, promised_mib, rooms
from mpsd.model.policy import CardCompute, Compute
from tests.containers.dialect_machine import T4_MIB, V100_MIB
from tests.grants.card_worlds import Node, apart, cards, egpu, one_domain
from tests.model.worlds import POLICY

FIRST = egpu((0, 20480, 10), (1, 20480, 10), (2, 10240, 10))
SECOND = egpu((0, 10240, 10), (1, 10240, 10), (2, 20480, 10))


def refused(node: Node, environment: dict[str, str]) -> Refuse:
    answer = node.ask(environment)
    assert isinstance(answer, Refuse), answer
    return answer


def granted(node: Node, environment: dict[str, str]) -> Grant:
    answer = node.ask(environment)
    assert isinstance(answer, Grant), answer
    return answer


def test_d4_the_fourth_container_is_refused_and_nothing_stays_reserved() -> None:
    node = Node(cards())
    for environment in (FIRST, SECOND, egpu(*((gpu, 2048, 10) for gpu in range(3)))):
        granted(node, environment)
    answer = refused(node, egpu(*((gpu, 1024, 10) for gpu in range(3))))
    assert all(f"gpu{n} has 0 of 32768 MiB" in answer.reason for n in range(3))
    assert not answer.for_ever
    assert len(node.grants) == 3


def test_d4_the_sum_of_weights_over_100_is_refused_on_every_card_that_lacks_it() -> None:
    node = Node(cards())
    granted(node, egpu((0, 20480, 25), (1, 20480, 25), (2, 10240, 25)))
    granted(node, egpu((0, 10240, 25), (1, 10240, 25), (2, 20480, 25)))
    granted(node, egpu(*((gpu, 1024, 50) for gpu in range(3))))
    answer = refused(node, egpu(*((gpu, 1024, 10) for gpu in range(3))))
    assert all(f"gpu{n} has 0 % of its threads" in answer.reason for n in range(3))
    assert not answer.for_ever


def test_d4_a_card_is_filled_to_the_last_mib_and_percent_and_not_beyond() -> None:
    node = Node(cards())
    granted(node, egpu((0, 20480, 40)))
    assert "gpu0 has 12288 of 32768 MiB" in refused(node, egpu((0, 12289, 10))).reason
    assert "gpu0 has 60 % of its threads" in refused(node, egpu((0, 12288, 61))).reason
    granted(node, egpu((0, 12288, 60)))


def test_what_has_ended_is_free_again_for_the_same_container() -> None:
    node = Node(cards())
    first = granted(node, FIRST)
    assert isinstance(node.ask(FIRST), Refuse)
    node.end(first)
    assert granted(node, FIRST).gpus == first.gpus


def test_b2_shares_of_1_in_max_inst_are_reserved_and_one_container_too_many_is_refused() -> None:
    (t4,) = cards(T4_MIB, 1)
    node = Node((t4,), policy=replace(POLICY, compute=Compute(0, 3, {})))
    share = {"ALIYUN_COM_GPU_MEM_CONTAINER": "1", "ALIYUN_COM_GPU_MEM_DEV": "15"}
    assert [granted(node, share).reserved_percent for _ in range(3)] == [33, 33, 33]
    answer = refused(node, share)
    assert "gpu0 has a weight of 0 of 3" in answer.reason
    assert "gpu0 has 1 % of its threads" in answer.reason


def test_b3_weights_never_exceed_max_inst_whatever_the_policy() -> None:
    (t4,) = cards(T4_MIB, 1)
    share = {
        "ALIYUN_COM_GPU_MEM_CONTAINER": "1",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
        "ALIYUN_COM_GPU_SCHD_WEIGHT": "8",
    }
    bound = Node((t4,), policy=replace(POLICY, compute=Compute(5, None, {"0": CardCompute(1, 10)})))
    granted(bound, share)
    assert "gpu0 has a weight of 2 of 10" in refused(bound, share).reason
    unbound = Node((t4,))
    assert [granted(unbound, share).reserved_percent for _ in range(4)] == [0, 0, 0, 0]


def test_cards_of_different_domains_are_refused_for_ever_with_what_to_write_into_the_policy() -> (
    None
):
    gpus = cards()
    node = Node(gpus, apart(gpus))
    answer = refused(node, FIRST)
    assert "[0, 1, 2]" in answer.reason
    assert answer.for_ever
    assert not node.grants
    assert granted(node, egpu((1, 20480, 10))).domain == "gpu1"


@pytest.mark.parametrize("state", [State.STARTING, State.DRAINED, State.FAULT])
def test_cards_whose_domain_does_not_serve_are_named_with_why_and_others_are_not(
    state: State,
) -> None:
    gpus = cards()
    serving, away = (
        one_domain(gpus[:2]),
        replace(one_domain(gpus[2:], state, "a reason"), domain="gpu2"),
    )
    node = Node(gpus, (serving, away))
    answer = refused(node, egpu((2, 1024, 10)))
    assert answer.reason.startswith("gpu2 ")
    assert answer.reason.endswith(": a reason")
    assert not answer.for_ever
    granted(node, egpu((0, 20480, 60)))
    assert "gpu2" not in refused(node, egpu((0, 20480, 60))).reason


ORDINALS = st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=3, unique=True)
AMOUNTS = st.tuples(st.integers(600, V100_MIB), st.integers(1, 100))
EGPUS = ORDINALS.flatmap(
    lambda ordinals: st.lists(AMOUNTS, min_size=len(ordinals), max_size=len(ordinals)).map(
        lambda amounts: egpu(*((n, *amount) for n, amount in zip(ordinals, amounts, strict=True)))
    )
)
CGPUS = st.builds(
    lambda ordinals, gib, weight: {
        "ALIYUN_COM_GPU_MEM_CONTAINER": ",".join(map(str, gib[: len(ordinals)])),
        "ALIYUN_COM_GPU_MEM_DEV": "32",
        "ALIYUN_COM_GPU_SCHD_WEIGHT": str(weight),
        "NVIDIA_VISIBLE_DEVICES": ",".join(map(str, ordinals)),
    },
    ORDINALS,
    st.lists(st.integers(1, 31), min_size=1, max_size=3),
    st.integers(1, 10),
)
ENDS = st.integers(0, 5)
COMPUTES = st.sampled_from(
    [Compute(5, None, {}), Compute(3, 10, {}), Compute(0, 20, {"1": CardCompute(3, 12)})]
)


@given(st.lists(EGPUS | CGPUS | ENDS, max_size=20), COMPUTES)
def test_whatever_comes_and_goes_no_card_is_promised_beyond_its_size_and_each_has_what_it_named(
    steps: list[dict[str, str] | int], compute: Compute
) -> None:
    node = Node(cards(), policy=replace(POLICY, compute=compute))
    for step in steps:
        before = node.grants
        if isinstance(step, int):
            if before:
                node.end(before[step % len(before)])
                assert len(node.grants) == len(before) - 1
            continue
        answer = node.ask(step)
        named = [
            gpu.uuid
            for n in step["NVIDIA_VISIBLE_DEVICES"].split(",")
            for gpu in node.gpus
            if gpu.label == f"gpu{n}"
        ]
        if isinstance(answer, Grant):
            assert list(answer.gpus) == named
        else:
            assert node.grants == before
        left = rooms(
            node.gpus,
            dict.fromkeys((gpu.uuid for gpu in node.gpus), "all"),
            node.grants,
            node.policy,
        )
        for room, gpu in zip(left, node.gpus, strict=True):
            held = [grant.part_of(gpu.uuid) for grant in node.grants]
            assert (
                sum(part.memory_mib for part in held)
                <= promised_mib(gpu, node.policy)
                <= gpu.memory_mib
            )
            assert sum(part.reserved_percent for part in held) <= 100
            assert min(room.memory_mib, room.thread_percent, room.clients) >= 0
            assert room.weight is None or room.weight >= 0
