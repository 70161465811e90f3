"""Events are counted, not repeated: whatever happens, few writes leave, and in the end every count
is told."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsd.model.events import Event, EventCount, Reason, pod_subject
from mpsd.model.times import DAY_S, HOUR_S
from mpsd.status.rules.events import (
    BURST,
    EVERY_S,
    FORGET_S,
    MESSAGES,
    REMEMBERED,
    REPEAT_S,
    SIMILAR,
    EventAggregator,
    Writing,
)
from tests.status.pod_worlds import pod


def happening(name: str, message: str = "a fault") -> Event:
    return Event(pod_subject(pod(name)), Reason.FAULT, message)


def tell(book: EventAggregator, now: float) -> list[Writing]:
    """Takes and tells everything that may be told now."""
    told = []
    while writing := book.take(now):
        told.append(writing)
        book.wrote(writing.seen, now)
    return told


def test_the_first_time_is_told_at_once_and_a_repetition_is_counted_later() -> None:
    book = EventAggregator()
    book.note(happening("a"), 0.0, 0.0)
    (first,) = tell(book, 0.0)
    assert (first.is_new, first.seen.count) == (True, 1)
    for second in range(9):
        book.note(happening("a"), float(second), float(second))
    assert tell(book, 9.0) == []
    assert book.next_due(9.0) == REPEAT_S
    (second_time,) = tell(book, REPEAT_S)
    assert (second_time.is_new, second_time.seen.count, second_time.seen.last) == (False, 10, 8.0)
    assert book.next_due(REPEAT_S) is None


def test_what_goes_on_is_told_less_and_less_often() -> None:
    book = EventAggregator()
    times = []
    for second in range(3000):
        book.note(happening("a"), float(second), float(second))
        times += [second for _writing in tell(book, float(second))]
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert pauses == [*(10, 20, 40, 80, 160, 320), *(600, 600, 600)]


def begun() -> tuple[EventAggregator, EventCount]:
    """Something happened, and is being told."""
    book = EventAggregator()
    book.note(happening("a"), 0.0, 0.0)
    writing = book.take(0.0)
    assert writing
    return book, writing.seen


def test_what_happens_while_it_is_being_told_is_not_lost() -> None:
    book, seen = begun()
    book.note(happening("a"), 0.1, 0.1)
    book.wrote(seen, 0.2)
    (rest,) = tell(book, 60.0)
    assert rest.seen.count == 2


def test_an_event_of_an_earlier_agent_is_counted_on() -> None:
    book, seen = begun()
    book.wrote(seen, 0.0, known=5)  # four of which we knew nothing
    book.note(happening("a"), 1.0, 1.0)
    (rest,) = tell(book, 60.0)
    assert (rest.is_new, rest.seen.count) == (False, 6)


def test_an_event_that_the_api_server_has_forgotten_is_told_as_new() -> None:
    book, seen = begun()
    book.wrote(seen, 0.0)
    book.note(happening("a"), 1.0, 1.0)
    book.gone(seen)
    (again,) = tell(book, 60.0)
    assert again.is_new


def test_many_messages_about_one_thing_become_one_event() -> None:
    book = EventAggregator()
    for number in range(100):
        book.note(happening("a", f"message {number}"), float(number), float(number))
    messages = [writing.seen.event.message for writing in tell(book, 100.0)]
    assert len(messages) == MESSAGES + 1
    assert messages[-1] == f"{SIMILAR}MPSFault"


def test_what_is_refused_is_never_tried_again() -> None:
    book, seen = begun()
    book.refused(seen)
    assert book.next_due(0.0) is None
    assert book.dropped == 1


def test_what_is_told_is_forgotten_after_an_hour_and_what_is_not_told_never() -> None:
    book = EventAggregator()
    book.note(happening("told"), 0.0, 0.0)
    tell(book, 0.0)
    book.note(happening("untold"), 1.0, 1.0)
    book.note(happening("told"), FORGET_S + 2.0, FORGET_S + 2.0)  # as if it were the first time
    assert {writing.seen.count for writing in tell(book, FORGET_S + 2.0)} == {1}


@pytest.mark.parametrize("ahead_s", [-2 * DAY_S, -HOUR_S, HOUR_S, 2 * DAY_S])
def test_a_clock_that_is_set_delays_nothing_and_forgets_nothing(ahead_s: float) -> None:
    book = EventAggregator()
    for second in range(2 * BURST):
        book.note(happening(f"pod{second}"), 0.0, DAY_S)
    assert len(tell(book, 0.0)) == BURST
    book.note(happening("after"), 1.0, DAY_S + ahead_s)
    assert book.next_due(1.0) == 1.0
    assert len(tell(book, 1.0 + BURST * EVERY_S)) == BURST
    book.note(happening("pod0"), 2.0 * BURST, DAY_S + ahead_s)
    assert {one.seen.count for one in tell(book, 200.0) if one.seen.event == happening("pod0")} == {
        2
    }


def test_an_hour_away_costs_bounded_memory_and_what_is_lost_is_counted() -> None:
    book = EventAggregator()
    for number in range(REMEMBERED + 50):
        book.note(happening(f"pod{number}"), float(number), float(number))
    assert book.dropped == 50
    told = [len(tell(book, 4000.0 + minute * 60)) for minute in range(REMEMBERED // 60 + 1)]
    assert sum(told) == REMEMBERED


actions = st.lists(
    st.tuples(
        st.floats(0.0, 30.0), st.sampled_from("abcdefgh"), st.integers(0, 120), st.booleans()
    ),
    max_size=30,
)


@settings(max_examples=40)
@given(actions)
def test_no_sequence_of_happenings_writes_more_than_its_share_and_every_count_is_told_in_the_end(
    sequence: list[tuple[float, str, int, bool]],
) -> None:
    """Each step: a pause, a pod, how many others it happens to as well, and whether the API server
    is there."""
    book, now = EventAggregator(), 0.0
    happened: dict[Event, int] = {}
    told: dict[Event, int] = {}
    times: list[float] = []

    def note(one: Event) -> None:
        book.note(one, now, now)
        happened[one] = happened.get(one, 0) + 1

    for pause_s, name, others, is_there in sequence:
        now += pause_s
        note(happening(name))
        for number in range(others):
            note(happening(f"other{number}"))
        while writing := book.take(now):
            times.append(now)
            if not is_there:
                break
            book.wrote(writing.seen, now)
            told[writing.seen.event] = writing.seen.count
    while (due := book.next_due(now)) is not None:
        now = max(now, due)
        for writing in tell(book, now):
            times.append(now)
            told[writing.seen.event] = writing.seen.count
    assert told == happened
    for first in range(len(times)):
        for last in range(first, len(times)):
            assert last - first + 1 <= BURST + (times[last] - times[first]) / EVERY_S + 1e-3
