"""What was asked for last is kept, and found by what it was made from."""

from hypothesis import given
from hypothesis import strategies as st

from mpsd.scheduler.rules.gpu_table import RecentValues


@given(st.lists(st.integers(0, 6)), st.integers(1, 4))
def test_the_last_different_keys_asked_for_are_kept_and_no_others(keys: list[int], most: int) -> None:
    lately, order = RecentValues[tuple[int], int](most), list[int]()
    for key in keys:
        assert lately.get((key,)) == (key if key in order[:most] else None)
        if key not in order[:most]:
            lately.put((key,), key)
        order = [key, *(one for one in order if one != key)]
        assert list(lately.values()) == order[:most]


def test_the_very_object_is_found_before_one_that_is_equal() -> None:
    lately, first, second = RecentValues[list[int], str](), [1], [1]
    lately.put(first, "first")
    lately.put(second, "second")
    assert (lately.get(first), lately.get(second)) == ("first", "second")
    lately.clear()
    assert lately.get(first) is None
