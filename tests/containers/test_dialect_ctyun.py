"""The variable EGPU means what CTyun's test report says it means, and is refused where the report
saw it refused."""

import pytest

from mpsd.containers.dialects.request import MIB
from tests.containers.dialect_machine import V100_MIB, asked, machine, problems, rules

FOUR = machine(V100_MIB, 4)
THREE_SEEN = {"NVIDIA_VISIBLE_DEVICES": "0,1,2"}


def written(
    *cards: tuple[int, int, int], header: str = "POLICY=0,ONLINE=0,TYPE=DOCKER"
) -> dict[str, str]:
    """The variable, for cards of (PGPU, MEM, WEIGHT)."""
    return {
        "EGPU": ":".join(
            [header, *(f"PGPU={gpu},MEM={mem},WEIGHT={weight}" for gpu, mem, weight in cards)]
        )
    }


@pytest.mark.parametrize(
    ("mem", "weight"), [(3276, 10), (8192, 10), (10240, 10), (10240, 50), (10240, 100)]
)
def test_d1_every_published_variable_gives_three_cards_their_mib_and_percent(
    mem: int, weight: int
) -> None:
    cards = asked(FOUR, **THREE_SEEN, **written(*((gpu, mem, weight) for gpu in range(3))))
    assert [card.gpu.ordinal for card in cards] == [0, 1, 2]
    for card in cards:
        assert (card.memory_bytes, card.memory_mib) == (mem * MIB, mem)
        assert (card.thread_percent, card.weight) == (weight, weight)


def test_d1_the_cards_are_those_that_the_container_sees() -> None:
    (card,) = asked(FOUR, **written((3, 3276, 10)))
    assert card.gpu == FOUR[3]
    assert rules(FOUR, **THREE_SEEN, **written((0, 3276, 10), (1, 3276, 10))) == [
        "device-unlimited"
    ]
    assert rules(FOUR, NVIDIA_VISIBLE_DEVICES="0", **written((0, 3276, 10), (1, 3276, 10))) == [
        "device-unseen"
    ]
    assert rules(FOUR, **written((4, 3276, 10))) == ["device-unknown"]
    assert rules(FOUR, **written((1, 3276, 10), (1, 3276, 10))) == ["device-twice"]


def test_d1_different_weights_come_to_the_smallest() -> None:
    first, second = asked(FOUR, **written((0, 3276, 10), (1, 3276, 50)))
    assert [(card.weight, card.thread_percent) for card in (first, second)] == [(10, 10), (50, 10)]
    assert any("gets the smallest, 10 %" in difference for difference in second.differs)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "POLICY=0,ONLINE=0,TYPE=DOCKER",
        "POLICY=0,ONLINE=0,TYPE=DOCKER:",
        "POLICY=0,ONLINE=0:PGPU=0,MEM=1024,WEIGHT=10",
        "POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=1024",
        "POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=1024,MEM=1024,WEIGHT=10",
        "POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=1G,WEIGHT=10",
        "POLICY=1,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=1024,WEIGHT=10",
        "POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM=1024,WEIGHT=10:",
    ],
)
def test_d1_what_is_not_written_as_published_is_refused_with_how_to_write_it(text: str) -> None:
    assert all(problem.remedy for problem in problems(FOUR, EGPU=text))


def test_d4_a_weight_over_100_is_refused_while_parsing_beside_all_else_that_is_wrong() -> None:
    found = rules(FOUR, **THREE_SEEN, **written((0, 20480, 10), (1, 40960, 10), (2, 10240, 110)))
    assert found == ["percent-range", "memory-over-card"]
    assert rules(FOUR, **written((0, 40960, 110))) == ["percent-range", "memory-over-card"]
    (problem,) = problems(
        FOUR, **THREE_SEEN, **written((0, 20480, 10), (1, 20480, 10), (2, 10240, 110))
    )
    assert (problem.where, problem.value) == ("EGPU WEIGHT", '"110"')
