"""Times as Kubernetes writes them, and how long something has lasted, for people."""

import pytest

from mpsd.model.times import lasting, seconds, stamp


def test_a_time_is_read_as_it_was_written() -> None:
    assert stamp(seconds("2026-11-21T08:30:00Z") or 0) == "2026-11-21T08:30:00Z"
    assert (
        seconds("2026-11-21T09:30:00.500000+01:00") == (seconds("2026-11-21T08:30:00Z") or 0) + 0.5
    )


@pytest.mark.parametrize(
    "text", ["", "T", "2026-11-21", "2026-11-21T08:30:00", "9999-99-99T00:00:00Z", "now"]
)
def test_what_is_no_time_is_none(text: str) -> None:
    assert seconds(text) is None


@pytest.mark.parametrize(
    ("elapsed_s", "text"),
    [
        (0, "0 s"),
        (-5, "0 s"),
        (119.9, "119 s"),
        (120, "2 min"),
        (2 * 3600 - 1, "119 min"),
        (2 * 3600, "2 h"),
        (48 * 3600 - 1, "47 h"),
        (48 * 3600, "2 d"),
        (float("inf"), "11574074 d"),
    ],
)
def test_a_time_is_one_number_rounded_down_and_never_negative(elapsed_s: float, text: str) -> None:
    assert lasting(elapsed_s) == text
