"""The part of `mpsd bench` that times reactions, on the simulator: once around, and where it cannot
go on."""

import os
from collections import Counter

import pytest

from mpsd.bench import reactions
from mpsd.bench.rules.rows import Reaction
from mpsd.bench.testbeds import BenchContext, LimitBroken
from mpsd.platform.limits_files import load_limits
from mpsd.platform.processes import descendants_of


def one_round() -> BenchContext:
    facts = load_limits(None).facts
    return BenchContext(
        simulate="A30", facts=facts, window_s=0.1, rounds=1, step=lambda _what: None
    )


def test_each_reaction_is_timed_in_each_round_and_nobody_is_left_behind() -> None:
    before = set(descendants_of(os.getpid()))
    rows = list(reactions.measure(one_round()))
    assert Counter(row.reaction for row in rows) == dict.fromkeys(Reaction, 1)
    assert all(row.round == 0 and row.how and row.seconds > 0 for row in rows)
    with_grace = {row.reaction for row in rows if row.grace_s}
    assert with_grace == {Reaction.MEMORY_BACK, Reaction.FAULT}
    took_s = {row.reaction: row.seconds for row in rows}
    assert took_s[Reaction.STOPPED] < took_s[Reaction.MEMORY_BACK]
    assert set(descendants_of(os.getpid())) == before


def test_a_program_that_was_never_over_its_grant_is_told_of_and_not_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reactions, "LIFTS", ("0=100T",))  # no context is made with it
    with pytest.raises(
        LimitBroken, match=r"0=100T ended before it was seen over its grant: .*OUT_OF_MEMORY"
    ):
        next(reactions.measure(one_round()))
