"""How long something has lasted, for people."""

import pytest

from mpsd.model.quantity import lasting


@pytest.mark.parametrize(
    ("seconds", "said"),
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
def test_a_time_is_one_number_rounded_down_and_never_negative(seconds: float, said: str) -> None:
    assert lasting(seconds) == said
