"""The table of docs/decisions/0012: what cluster-autoscaler would add if a node reported sums, or its largest hole.

Its algorithm as its FAQ has it: pods that fit a node that is there are dropped; for the rest copies of a node that is
there are filled one after the other. What is right is counted GPU by GPU.
"""

from dataclasses import dataclass

import pytest

from tests.docs.pages import page

GIB = 139  # of each GPU
PAGE = page("docs/decisions/0012-autoscalers-see-sums.md").text


@dataclass(frozen=True)
class Case:
    """free: of each GPU of the one node that is there. pods: what each requests in all, on `gpus` GPUs."""

    row: str
    free: tuple[int, ...]
    pods: tuple[int, ...]
    right: int
    sums: int
    hole: int
    gpus: int = 1


CASES = (
    Case("| two GPUs, 4 and 3 free | one of 7 | a node | **none** | a node |", (4, 3), (7,), 1, 0, 1),
    Case("| two GPUs, 4 and 4 free | two of 4 | none | none | **a node**", (4, 4), (4, 4), 0, 0, 1),
    Case("| two GPUs, empty | two of 139 | none | none | **a node**", (GIB, GIB), (GIB, GIB), 0, 0, 1),
    Case(
        "| eight GPUs, one in use | fifteen of 139 | a node | a node | **seven**",
        (0, *(GIB,) * 7),
        (GIB,) * 15,
        *(1, 1, 7),
    ),
    Case("| two GPUs, empty | one of 160 on two GPUs | none | none | none,", (GIB, GIB), (160,), 0, 0, 0, gpus=2),
)


def added(free: int, copy: int, pods: tuple[int, ...]) -> int:
    """Nodes that are added. free: of the node that is there, as reported. copy: what a new one is believed to offer."""
    count, left = 0, 0
    for pod in pods:
        if pod <= free:
            free -= pod
        elif pod <= left:
            left -= pod
        elif pod <= copy:
            count, left = count + 1, copy - pod
    return count


def added_rightly(case: Case) -> int:
    """The same where each pod takes the fullest GPUs that have room."""
    there, new, count = [*case.free], list[int](), 0
    for pod in case.pods:
        share = pod // case.gpus
        if not (_take(there, share, case.gpus) or _take(new, share, case.gpus)):
            count, new = count + 1, [GIB] * len(case.free)
            assert _take(new, share, case.gpus)
    return count


def _take(gpus: list[int], share: int, number: int) -> bool:
    fitting = sorted((free, at) for at, free in enumerate(gpus) if free >= share)[:number]
    for _free, at in fitting if len(fitting) == number else ():
        gpus[at] -= share
    return len(fitting) == number


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.row)
def test_each_row_of_the_decision_is_what_the_algorithm_adds(case: Case) -> None:
    requested, hole = GIB * len(case.free) - sum(case.free), max(case.free)
    by_sums = added(sum(case.free), GIB * len(case.free), case.pods)
    by_hole = added(hole, requested + hole, case.pods)
    assert (added_rightly(case), by_sums, by_hole) == (case.right, case.sums, case.hole)
    assert case.row in PAGE
