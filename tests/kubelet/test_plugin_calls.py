"""The containers that the device plugin holds back, counted."""

from mpsd.model.metrics import HELD_BACK_S, Call, CallOutcome, PluginCalls

ONE, OTHER = ("GPU-0/1", "GPU-0/0"), ("GPU-0/2",)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_container_is_held_back_from_its_refusal_until_it_is_let_start() -> None:
    book = PluginCalls(Clock())
    book.note(Call.PRE_START, ONE, CallOutcome.HELD_BACK, 0.1)
    book.note(Call.PRE_START, tuple(reversed(ONE)), CallOutcome.LATE, 25.0)
    book.note(Call.PRE_START, OTHER, CallOutcome.FAILED, 0.1)
    assert book.held_back == 2
    book.note(Call.PRE_START, ONE, CallOutcome.ANSWERED, 0.1)
    assert book.held_back == 1
    book.note(Call.PRE_START, OTHER, CallOutcome.ANSWERED, 0.1)
    assert book.held_back == 0


def test_a_container_that_kubelet_asks_for_no_more_is_not_held_back() -> None:
    clock = Clock()
    book = PluginCalls(clock)
    book.note(Call.PRE_START, ONE, CallOutcome.HELD_BACK, 0.1)
    clock.now += HELD_BACK_S
    assert book.held_back == 1
    clock.now += 1
    assert book.held_back == 0


def test_every_call_is_counted_by_what_came_of_it_and_timed() -> None:
    book = PluginCalls(Clock())
    for outcome in CallOutcome:
        book.note(Call.ALLOCATE, ONE, outcome, 0.5)
    assert [book.counts[Call.ALLOCATE, outcome] for outcome in CallOutcome] == [1] * len(
        CallOutcome
    )
    assert (book.times[Call.ALLOCATE].count, book.times[Call.ALLOCATE].sum_s) == (
        len(CallOutcome),
        0.5 * len(CallOutcome),
    )
    assert book.times[Call.PRE_START].count == 0
