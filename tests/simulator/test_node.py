"""Making a machine, and reading which GPUs it shall have."""

import subprocess
from pathlib import Path

import pytest

from mpsd.model.problem import InvalidInput
from mpsd.simulator.gpus import card_path, present_gpus, visible_gpus
from mpsd.simulator.node import (
    MOST_GPUS,
    DividedCard,
    SimulatedNode,
    cards_asked,
    create_node,
    open_node,
)
from tests.contract.gpus import facts

FACTS = facts()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("H200", ["H200"]),
        ("H200×2", ["H200", "H200"]),
        ("H200x2", ["H200", "H200"]),
        ("a30×2, T4", ["A30", "A30", "T4"]),
        ("T4*1,L4", ["T4", "L4"]),
    ],
)
def test_cards_are_named_with_or_without_a_count(text: str, names: list[str]) -> None:
    assert [card.short for card in cards_asked(text, FACTS)] == names


@pytest.mark.parametrize("text", ["", "H200×0", "H200××2", "2×H200,", "H200 2"])
def test_what_is_no_card_and_count_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"H200×2|one of"):
        cards_asked(text, FACTS)


def test_unknown_cards_are_refused_with_the_known_names_all_at_once() -> None:
    with pytest.raises(InvalidInput) as refused:
        cards_asked("H300,T4,RTX×2", FACTS)
    assert [problem.value for problem in refused.value.problems] == ['"H300"', '"RTX"']
    for card in FACTS.cards:
        assert card.short in refused.value.problems[0].remedy


@pytest.mark.parametrize(
    "text", [f"T4×{MOST_GPUS + 1}", "H200x1000", "T4×8,H200×9", "T4×999999999"]
)
def test_more_gpus_than_a_machine_has_places_are_refused_with_the_limit(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        cards_asked(text, FACTS)
    (problem,) = refused.value.problems
    assert (problem.rule, problem.remedy) == ("too-many-gpus", f"ask for {MOST_GPUS} or fewer")
    assert f"at most {MOST_GPUS}" in problem.message


@pytest.mark.parametrize(
    ("text", "profiles"),
    [
        ("A100:3g.40gb×2,H200", [["3g.40gb", "3g.40gb"], []]),
        ("a100:1g.10gbx7", [["1g.10gb"] * 7]),
        ("H200×2, H100:4g.40gb+1g.10gb*3", [[], [], ["4g.40gb", *["1g.10gb"] * 3]]),
    ],
)
def test_a_card_is_divided_into_the_mig_instances_after_it(
    text: str, profiles: list[list[str]]
) -> None:
    cards = cards_asked(text, FACTS)
    divided = [
        [row.profile for row in card.profiles] if isinstance(card, DividedCard) else []
        for card in cards
    ]
    assert divided == profiles


@pytest.mark.parametrize(
    ("text", "rule", "words"),
    [
        ("T4:1g.5gb", "mig-unknown", "write one of A100, H100, H200"),
        ("A100:9g.80gb", "mig-unknown", "1g.10gb, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb"),
        ("A100:1g.10gb×0", "mig-unknown", "such as A100:1g.10gb×2"),
        ("A100:3g.40gb×3", "mig-too-large", "3/7 + 3/7 + 3/7 of its SMs"),
        ("A100:1g.20gb×5", "mig-too-large", "of its memory"),
        ("A100:", "gpus-unreadable", "H200×2"),
    ],
)
def test_instances_that_cannot_be_are_refused_with_those_that_can(
    text: str, rule: str, words: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        cards_asked(text, FACTS)
    (problem,) = refused.value.problems
    assert problem.rule == rule
    assert words in str(problem)


def test_an_instance_has_a_place_of_its_own_and_the_same_uuid_in_the_same_layout(
    tmp_path: Path,
) -> None:
    made = create_node(
        tmp_path / "node", cards_asked("A100:3g.40gb×2,H200", FACTS), FACTS.capabilities
    )
    assert open_node(tmp_path / "node") == made
    parts = [gpu for gpu in made.gpus if gpu.parent]
    assert [gpu.ordinal for gpu in made.gpus] == [0, 1, 0, 0]
    assert [(gpu.gpu_instance, gpu.compute_instance) for gpu in parts] == [(1, 0), (2, 0)]
    assert (
        len(
            {gpu.uuid for gpu in made.gpus}
            | {str(card_path(made.folder, gpu)) for gpu in made.gpus}
        )
        == 8
    )
    assert all(gpu.uuid.startswith("MIG-") and gpu.parent == made.gpus[0].uuid for gpu in parts)


def test_a_process_sees_one_instance_and_then_no_whole_gpu(tmp_path: Path) -> None:
    """The MIG user guide, "CUDA device enumeration"."""
    made = create_node(
        tmp_path / "node", cards_asked("A100:3g.40gb×2,H200", FACTS), FACTS.capabilities
    )
    whole, first, second = made.gpus[1:]
    present = present_gpus(made.folder, {})
    assert present == (whole, first, second)
    for value, seen in (
        (None, first),
        (f"{whole.uuid},{second.uuid},{first.uuid}", second),
        (whole.uuid, whole),
        (second.uuid[:12], second),
    ):
        assert visible_gpus(value, present) == (seen,)


def test_a_machine_is_the_same_when_it_is_opened_again(tmp_path: Path) -> None:
    made = create_node(tmp_path / "node", cards_asked("A30×2,T4", FACTS), FACTS.capabilities)
    again = open_node(tmp_path / "node")
    assert made == again
    assert len({gpu.uuid for gpu in again.gpus}) == 3
    assert [gpu.name for gpu in again.gpus] == ["NVIDIA A30", "NVIDIA A30", "Tesla T4"]


@pytest.mark.parametrize("card", FACTS.cards, ids=lambda card: card.short)
def test_the_tables_are_those_of_the_facts(tmp_path: Path, card) -> None:  # type: ignore[no-untyped-def]
    (gpu,) = create_node(tmp_path / "node", [card], FACTS.capabilities).gpus
    capability = FACTS.capability(card.compute_capability)
    assert capability
    for percent in range(1, 101):
        assert gpu.sms_by_percent[percent] == capability.sms_given(percent, card.sms)
    for sms in range(1, card.sms + 1):
        assert gpu.context_mib_by_sms[sms] == capability.context_cost_mib(sms)


def test_a_folder_that_holds_a_machine_is_not_overwritten(node: SimulatedNode) -> None:
    with pytest.raises(FileExistsError):
        create_node(node.folder, cards_asked("T4", FACTS), FACTS.capabilities)


def test_the_programs_know_their_machine_without_its_environment(node: SimulatedNode) -> None:
    done = subprocess.run(
        [node.folder / "bin" / "sim-cuda"], env={}, capture_output=True, text=True, timeout=10
    )
    assert node.gpus[0].uuid in done.stdout


@pytest.mark.parametrize(
    ("value", "ordinals"),
    [
        (None, [0, 1]),
        ("", []),
        ("1", [1]),
        ("1,0", [1, 0]),
        ("0,0", [0]),
        ("1,7,0", [1]),
        ("-1", []),
        ("GPU-", []),
        (" 1 ", [1]),
    ],
)
def test_visible_devices_are_cut_at_the_first_that_is_none(
    node: SimulatedNode, value: str | None, ordinals: list[int]
) -> None:
    assert [gpu.ordinal for gpu in visible_gpus(value, node.gpus)] == ordinals


def test_a_device_is_named_by_its_uuid_or_its_beginning(node: SimulatedNode) -> None:
    for named in (node.gpus[1].uuid, node.gpus[1].uuid[:12]):
        assert [gpu.ordinal for gpu in visible_gpus(named, node.gpus)] == [1]
