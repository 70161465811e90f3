"""The arithmetic that follows from facts about GPUs, against what was measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.gpu_facts import Capability
from tests.model.manifests import FACTS

_FOUND = FACTS.capability("9.0")
assert _FOUND is not None
MEASURED: Capability = _FOUND
H200_SMS = 132


@pytest.mark.parametrize(
    ("percent", "sms"),
    [
        (1, 8),
        (10, 12),
        (20, 26),
        (25, 32),
        (30, 38),
        (33, 42),
        (40, 52),
        (50, 66),
        (99, 130),
        (100, 132),
    ],
)
def test_a_percentage_gives_the_sms_that_were_measured(percent: int, sms: int) -> None:
    assert MEASURED.sms_given(percent, H200_SMS) == sms


@pytest.mark.parametrize(
    ("sms", "mib"), [(12, 72), (26, 123), (32, 145), (38, 167), (52, 219), (66, 271), (132, 514)]
)
def test_a_context_costs_what_was_measured(sms: int, mib: int) -> None:
    """At 52 SMs 218 MiB were seen; one MiB too many is on the safe side."""
    assert MEASURED.context_cost_mib(sms) == mib


@given(st.integers(1, 100), st.integers(1, 300))
def test_no_percentage_gives_more_sms_than_there_are_or_fewer_than_a_smaller_one(
    percent: int, sms: int
) -> None:
    given_sms = MEASURED.sms_given(percent, sms)
    assert 1 <= given_sms <= sms
    assert given_sms >= MEASURED.sms_given(max(1, percent - 1), sms)
    assert MEASURED.sms_given(100, sms) == sms


def test_every_fact_has_a_source_and_every_measured_card_a_measured_capability() -> None:
    assert all(row.source for row in FACTS.capabilities)
    assert all(card.source for card in FACTS.cards)
    measured = {row.compute_capability for row in FACTS.capabilities if row.measured}
    assert {card.compute_capability for card in FACTS.cards if card.measured} <= measured
