"""Memory as `mpsd set` takes it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.problem import Problem
from mpsd.model.quantity import written_mib


@pytest.mark.parametrize(
    ("text", "mib"),
    [("3276", 3276), ("3276MiB", 3276), ("3276 Mi", 3276), ("6GiB", 6144), ("6.5Gi", 6656), ("0.25GiB", 256)],
)
def test_what_is_written_is_read_in_mib(text: str, mib: int) -> None:
    assert written_mib(text, "--mem") == mib


@pytest.mark.parametrize("text", ["", "many", "-1", "0", "0.3GiB", "6GB", "6g", "1e3", "1_000", "6GiBs", "٣", "9" * 40])
def test_what_is_no_amount_or_not_whole_mib_is_a_problem_with_the_remedy(text: str) -> None:
    found = written_mib(text, "--mem")
    assert isinstance(found, Problem)
    assert found.remedy.startswith("write ")


@given(st.text(max_size=30))
def test_whatever_is_written_is_an_amount_or_a_problem(text: str) -> None:
    found = written_mib(text, "--mem")
    assert isinstance(found, Problem) or found >= 1
