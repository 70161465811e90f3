"""What the part of `mpsd bench` that times reactions does, on the simulator: once around, and where
it cannot go on."""

import os
from collections import Counter

import pytest

from mpsd.bench import reactions
from mpsd.bench.rules.rows import Reaction, ReactionRow
from mpsd.bench.testbeds import BenchContext, LimitBroken
from mpsd.platform.limits_files import load_limits
from mpsd.platform.processes import descendants_of


class Timed:
    """All of it, once each, on one A30."""

    def __init__(self) -> None:
        before = set(descendants_of(os.getpid()))
        self.rows: list[ReactionRow] = list(reactions.measure(one_round()))
        self.left_behind = set(descendants_of(os.getpid())) - before


def one_round() -> BenchContext:
    return BenchContext("A30", load_limits(None).facts, 0.1, 1, lambda _what: None)


@pytest.fixture(scope="module")
def timed() -> Timed:
    return Timed()


def test_each_reaction_is_timed_in_each_round(timed: Timed) -> None:
    assert Counter(row.reaction for row in timed.rows) == dict.fromkeys(Reaction, 1)
    assert {row.round for row in timed.rows} == {0}
    assert all(row.seconds > 0 and row.how for row in timed.rows)


def test_a_time_says_which_of_it_is_a_grace(timed: Timed) -> None:
    graces = {row.reaction: row.grace_s for row in timed.rows}
    with_grace = {reaction for reaction, grace_s in graces.items() if grace_s}
    assert with_grace == {Reaction.MEMORY_BACK, Reaction.FAULT}
    assert all(row.seconds >= row.grace_s for row in timed.rows)


def test_a_program_is_stopped_before_its_memory_is_back(timed: Timed) -> None:
    seconds = {row.reaction: row.seconds for row in timed.rows}
    assert seconds[Reaction.STOPPED] < seconds[Reaction.MEMORY_BACK]


def test_nobody_is_left_behind(timed: Timed) -> None:
    assert not timed.left_behind


def test_a_program_that_was_never_over_its_grant_is_told_of_and_not_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reactions, "LIFTS", ("0=100T",))  # no context is made with it
    with pytest.raises(
        LimitBroken, match=r"0=100T ended before it was seen over its grant: .*OUT_OF_MEMORY"
    ):
        next(reactions.measure(one_round()))
