"""Who keeps a place among the readers of the page."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mpsd.status.page.feed import who_gives_way

ADDRESSES = st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1"])


def test_one_address_that_has_every_place_gives_one_up_and_keeps_those_that_it_had_first() -> None:
    assert who_gives_way(["a", "b", "a", "a"], "c") == 3


def test_who_has_as_many_as_anybody_takes_no_place_from_others() -> None:
    assert who_gives_way(["a", "b"], "a") is None
    assert who_gives_way(["a", "b"], "c") is None
    # else the two would drive each other out for ever
    assert who_gives_way(["a", "a", "b"], "b") is None
    assert who_gives_way([], "a") is None


@given(st.lists(ADDRESSES, min_size=1, max_size=12), ADDRESSES)
def test_a_place_is_taken_only_from_who_still_has_as_many_afterwards(
    there: list[str], newcomer: str
) -> None:
    before, place = Counter(there), who_gives_way(there, newcomer)
    if place is None:
        assert before[newcomer] + 1 >= max(before.values())
    else:
        assert before[there[place]] == max(before.values())
        assert before[there[place]] - 1 >= before[newcomer] + 1
