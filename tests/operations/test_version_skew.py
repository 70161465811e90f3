"""Which of two versions is the older, and which differences matter."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.operations.doctor.rules.components import SKEWS, Component, compare, skew_of

VERSIONS = st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3}){0,3}(rc[0-9])?", fullmatch=True) | st.text(max_size=8)


@pytest.mark.parametrize(
    ("older", "newer"), [("0.1.0", "0.2.0"), ("0.9", "0.10"), ("1.0rc1", "1.0"), ("0.1", "0.1.1"), ("", "0.1")]
)
def test_numbers_count_as_numbers(older: str, newer: str) -> None:
    assert compare(older, newer) < 0 < compare(newer, older)


def test_zeros_at_the_end_make_no_difference() -> None:
    assert compare("1.0", "1.0.0") == 0


@given(VERSIONS, VERSIONS, VERSIONS)
def test_it_is_an_order(one: str, two: str, three: str) -> None:
    assert compare(one, one) == 0
    assert compare(one, two) == -compare(two, one)
    if compare(one, two) <= 0 and compare(two, three) <= 0:
        assert compare(one, three) <= 0


@given(VERSIONS, VERSIONS)
def test_a_row_is_found_whichever_is_named_first_and_none_for_one_version(one: str, two: str) -> None:
    pair = ((Component.CONTROL, one), (Component.AGENT, two))
    assert skew_of(*pair) == skew_of(*reversed(pair))
    assert (skew_of(*pair) is None) == (compare(one, two) == 0)


def test_control_behind_the_agent_is_normal_and_ahead_of_it_is_not() -> None:
    behind = skew_of((Component.CONTROL, "0.1"), (Component.AGENT, "0.2"))
    ahead = skew_of((Component.CONTROL, "0.3"), (Component.AGENT, "0.2"))
    assert behind is not None and behind.normal and "OnDelete" in behind.why  # noqa: PT018
    assert ahead is not None and not ahead.normal  # noqa: PT018


def test_each_pair_has_one_row() -> None:
    assert len({(row.older, row.newer) for row in SKEWS}) == len(SKEWS)


def test_the_documentation_has_every_row() -> None:
    page = (Path(__file__).parents[2] / "docs/operations/doctor.md").read_text()
    for row in SKEWS:
        normal = "yes" if row.normal else "**no**"
        assert f"| {row.older} | {row.newer} | {normal} | {row.why} | {row.remedy} |" in page
