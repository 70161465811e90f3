"""What is written of a promise is read again, and whatever else stands there is no promise."""

from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.identity import PodName
from mpsd.scheduler.rules.reservations import Reservation, read_reservations, written

_NAMES = st.text("abc-", min_size=1, max_size=5)
_RESERVATIONS = st.builds(
    Reservation,
    st.builds(PodName, _NAMES, _NAMES, _NAMES),
    st.lists(_NAMES, max_size=3).map(tuple),
    st.integers(0, 10**6),
    st.integers(0, 100),
)


@given(st.lists(_RESERVATIONS, unique_by=lambda one: one.pod.uid, max_size=4))
def test_what_is_written_is_read_again(promises: list[Reservation]) -> None:
    assert set(read_reservations(written(promises) or "")) == set(promises)


@given(
    st.text(max_size=40)
    | st.sampled_from(['{"a": 1}', "[1]", '{"a": {"pod": "x/y", "gpus": [1], "mib": 1}}', "[" * 9999])
)
def test_nonsense_is_no_promise(text: str) -> None:
    assert all(isinstance(one, Reservation) for one in read_reservations(text))


def test_no_promise_takes_the_annotation_away() -> None:
    assert written([]) is None
