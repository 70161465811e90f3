"""The rules of an end: a client is stopped before it is killed, and killed in every case."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.identity import ProcessIdentity
from mpsd.model.node_view import Queue
from mpsd.mps.rules.ends import (
    MOST_STOPS,
    EndView,
    Sample,
    Step,
    begun,
    next_step,
    queue_of,
    together,
)

WHO = ProcessIdentity(7, 70, "boot")
END = begun(WHO, ("GPU-1",), "takes too much", 3.0, 100.0)
RUNNING = EndView(100.0, is_alive=True, is_stopped=False, is_hit=False, queue=Queue.UNKNOWN)
STOPPED = replace(RUNNING, is_stopped=True)


def test_a_client_is_stopped_first() -> None:
    step, end = next_step(END, RUNNING)
    assert step is Step.STOP
    assert (end.stops, end.is_held, end.deadline_s) == (1, False, 103.0)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (replace(STOPPED, now_s=102.999), Step.WAIT),
        (replace(STOPPED, now_s=103.0), Step.KILL),
        (replace(STOPPED, queue=Queue.IN_USE), Step.WAIT),
        (replace(STOPPED, queue=Queue.DRY), Step.KILL),
        (replace(STOPPED, is_hit=True), Step.KILL),
        (replace(RUNNING, is_hit=True), Step.KILL),
        (replace(STOPPED, is_alive=False), Step.OVER),
    ],
)
def test_a_stopped_client_is_killed_when_its_queue_is_dry(seen: EndView, expected: Step) -> None:
    _step, end = next_step(END, RUNNING)
    assert next_step(end, seen)[0] is expected


def test_an_end_without_a_drain_is_a_kill() -> None:
    assert next_step(replace(END, drain_s=0.0), RUNNING)[0] is Step.KILL


def test_a_stop_that_does_not_hold_yet_is_sent_again_uncounted() -> None:
    _step, end = next_step(END, RUNNING)
    assert next_step(end, replace(RUNNING, now_s=100.1)) == (Step.STOP, end)


def test_a_continued_client_gets_a_new_drain_twice_and_is_killed_then() -> None:
    end, now_s = END, 100.0
    for stops in range(1, MOST_STOPS + 1):
        step, end = next_step(end, replace(RUNNING, now_s=now_s))
        assert (step, end.stops, end.deadline_s) == (Step.STOP, stops, now_s + 3.0)
        _wait, end = next_step(end, replace(STOPPED, now_s=now_s))
        now_s += 1
    assert next_step(end, replace(RUNNING, now_s=now_s))[0] is Step.KILL


VIEWS = st.builds(
    EndView, st.just(0.0), st.booleans(), st.booleans(), st.booleans(), st.sampled_from(Queue)
)


@given(st.lists(st.tuples(VIEWS, st.floats(0, 1)), min_size=200, max_size=200))
def test_every_end_is_over_within_three_drains(looks: list[tuple[EndView, float]]) -> None:
    end, now_s = END, 100.0
    for seen, later_s in looks:
        step, end = next_step(end, replace(seen, now_s=now_s))
        if step in {Step.KILL, Step.OVER}:
            break
        now_s += max(later_s, 0.1)
    assert step in {Step.KILL, Step.OVER}
    assert now_s <= 100.0 + MOST_STOPS * 3.0 + 1.0


@pytest.mark.parametrize(
    ("samples", "queue"),
    [
        ((), Queue.UNKNOWN),
        (((1, 0),), Queue.UNKNOWN),
        (((1, None), (2, 0)), Queue.UNKNOWN),
        (((1, 0), (2, 0)), Queue.DRY),
        (((1, None), (2, 0), (3, 0)), Queue.DRY),
        (((1, 100), (2, 0), (3, 0)), Queue.DRY),
        (((1, 0), (2, 1)), Queue.IN_USE),
        (((1, 100), (2, 0)), Queue.IN_USE),
        (((1, None), (2, 100)), Queue.IN_USE),
    ],
)
def test_a_queue_is_dry_by_its_servers_last_two_samples(
    samples: tuple[Sample, ...], queue: Queue
) -> None:
    assert queue_of({"GPU-1": samples}, ("GPU-1",)) is queue
    with_another = queue_of({"GPU-1": samples}, ("GPU-1", "GPU-2"))
    assert with_another is (Queue.IN_USE if queue is Queue.IN_USE else Queue.UNKNOWN), (
        "nothing is known of one"
    )


@pytest.mark.parametrize(
    ("queues", "expected"),
    [
        ((), Queue.UNKNOWN),
        ((Queue.DRY, Queue.DRY), Queue.DRY),
        ((Queue.DRY, Queue.UNKNOWN), Queue.UNKNOWN),
        ((Queue.UNKNOWN, Queue.IN_USE, Queue.DRY), Queue.IN_USE),
    ],
)
def test_the_worst_of_a_programs_queues_counts(queues: tuple[Queue, ...], expected: Queue) -> None:
    assert together(queues) is expected
