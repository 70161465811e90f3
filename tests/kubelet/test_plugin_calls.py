"""The containers that the device plugin holds back, counted."""

from mpsd.kubelet.call_counts import PluginCallBook
from mpsd.kubelet.rules.plugin_calls import HELD_BACK_S, Call, Outcome

ONE, OTHER = ("GPU-0/1", "GPU-0/0"), ("GPU-0/2",)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_container_is_held_back_from_its_refusal_until_it_is_let_start() -> None:
    book = PluginCallBook(Clock())
    book.note(Call.PRE_START, ONE, Outcome.HELD_BACK, 0.1)
    book.note(Call.PRE_START, tuple(reversed(ONE)), Outcome.LATE, 25.0)
    book.note(Call.PRE_START, OTHER, Outcome.FAILED, 0.1)
    assert book.now.held_back == 2
    book.note(Call.PRE_START, ONE, Outcome.ANSWERED, 0.1)
    assert book.now.held_back == 1
    book.note(Call.PRE_START, OTHER, Outcome.ANSWERED, 0.1)
    assert book.now.held_back == 0


def test_a_container_that_kubelet_asks_for_no_more_is_not_held_back() -> None:
    clock = Clock()
    book = PluginCallBook(clock)
    book.note(Call.PRE_START, ONE, Outcome.HELD_BACK, 0.1)
    clock.now += HELD_BACK_S
    assert book.now.held_back == 1
    clock.now += 1
    assert book.now.held_back == 0


def test_other_calls_hold_nobody_back() -> None:
    book = PluginCallBook(Clock())
    book.note(Call.ALLOCATE, ONE, Outcome.REFUSED, 0.1)
    book.note(Call.PREFER, ONE, Outcome.LATE, 0.1)
    assert book.now.held_back == 0


def test_every_call_is_counted_by_what_came_of_it_and_timed() -> None:
    book = PluginCallBook(Clock())
    for outcome in Outcome:
        book.note(Call.ALLOCATE, ONE, outcome, 0.5)
    now = book.now
    assert [now.counts[Call.ALLOCATE, outcome] for outcome in Outcome] == [1] * len(Outcome)
    assert (now.times[Call.ALLOCATE].count, now.times[Call.ALLOCATE].sum_s) == (len(Outcome), 0.5 * len(Outcome))
    assert now.times[Call.PRE_START].count == 0
