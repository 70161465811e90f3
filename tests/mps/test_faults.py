"""Faults: who was hit by the log, who is ended so that the server heals, and who was there each time."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.identity import PodName
from mpsd.model.node_status import SuspectStatus
from mpsd.model.node_view import Fault, FaultHit
from mpsd.mps.rules import faults
from mpsd.mps.rules.control_protocol import LogEvent, LogLine, read_line
from mpsd.mps.rules.faults import Reading, last_fault, presence, read_on, suspects, to_end
from tests.model.worlds import NOW, POLICY, identity

GRACES = POLICY.graces
TRANSCRIPT = Path(__file__).parents[1] / "data" / "transcripts" / "h200-r580-4-server-limits-fault-log.txt"
LINES = [line for text in TRANSCRIPT.read_text().splitlines() if (line := read_line(text))]


def hit(pid: int, pod: str | None = None) -> FaultHit:
    return FaultHit(identity(pid), "train", pod)


def fault(*pods: str, at: float = NOW) -> Fault:
    return Fault(at, tuple(hit(number + 10, pod) for number, pod in enumerate(pods)))


def series(*faults_pods: Sequence[str]) -> tuple[Fault, ...]:
    """One fault a minute, of those pods each."""
    return tuple(fault(*pods, at=NOW + 60 * number) for number, pods in enumerate(faults_pods))


LOGGED = st.builds(
    LogLine,
    event=st.sampled_from(LogEvent),
    pid=st.one_of(st.none(), st.integers(1, 9)),
    text=st.just(""),
    when=st.sampled_from(["", "2026-11-21 01:52:04.061", "2026-11-21 01:52:05.000"]),
)
HITS = st.builds(FaultHit, st.integers(1, 6).map(identity), st.just("train"), st.sampled_from([None, "a", "b", "c"]))
FAULTS = st.lists(
    st.builds(
        Fault,
        at=st.floats(NOW, NOW + 100),
        hit=st.lists(HITS, max_size=4).map(tuple),
        healed_at=st.sampled_from([None, NOW + 50]),
    ),
    max_size=6,
)


def read_all(lines: Sequence[LogLine]) -> Reading:
    reading = Reading()
    for line in lines:
        reading = read_on(reading, line)
    return reading


# -- the log -------------------------------------------------------------------------------------------------------


def test_the_real_log_names_both_that_were_hit_and_no_device() -> None:
    reading = read_all(LINES)
    assert reading.of_fault
    assert reading.pids == {996, 997}


@given(st.integers(0, len(LINES)))
def test_however_the_log_is_cut_into_looks_it_says_the_same(cut: int) -> None:
    first = read_all(LINES[:cut])
    for line in LINES[cut:]:
        first = read_on(first, line)
    assert first == read_all(LINES)


@given(st.integers(0, len(LINES)))
def test_whoever_a_look_cuts_off_is_named_at_the_next(cut: int) -> None:
    first = read_all(LINES[:cut])
    then = faults.rest_of(first)
    for line in LINES[cut:]:
        then = read_on(then, line)
    assert first.pids | then.pids == read_all(LINES).pids


def test_whom_the_log_names_later_was_hit_too_and_nobody_twice() -> None:
    (known,) = faults.with_more_hit([Fault(NOW, (hit(1),), strangers=(3,))], [hit(1), hit(2)], [3, 4])
    assert known == Fault(NOW, (hit(1), hit(2)), strangers=(3, 4))


@given(st.lists(LOGGED, max_size=30))
def test_nobody_is_hit_whom_no_line_names(lines: list[LogLine]) -> None:
    assert read_all(lines).pids <= {line.pid for line in lines}


def test_a_number_counts_only_below_its_heading() -> None:
    number = LogLine(LogEvent.PID, 7, "7")
    heading = LogLine(LogEvent.STICKY_ERRORS, None, "")
    other = LogLine(LogEvent.OTHER, 1, "")
    assert read_all([number]).pids == frozenset()
    assert read_all([heading, number]).pids == {7}
    assert read_all([heading, number, other, replace(number, pid=8)]).pids == {7}


@pytest.mark.parametrize(
    ("known_until", "pids"), [("2026-11-21 01:52:04.060", {996, 997}), ("2026-11-21 01:52:04.061", set())]
)
def test_of_a_whole_log_only_a_fault_that_nobody_has_seen_counts(known_until: str, pids: set[int]) -> None:
    assert last_fault(LINES, known_until).pids == pids


@pytest.mark.parametrize(
    ("listed", "confirmed"), [((), True), ((5,), True), ((996,), False), ((5, 996, 997), False), (None, False)]
)
def test_a_server_that_serves_confirms_a_fault_only_where_none_of_those_hit_is_its_client(
    listed: tuple[int, ...] | None, confirmed: bool
) -> None:
    assert faults.is_over(read_all(LINES), listed) == confirmed
    assert not faults.is_over(Reading(of_fault=True), listed)  # it names nobody


def test_of_two_faults_in_a_log_the_last_counts() -> None:
    again = LogLine(LogEvent.FAULT, None, "", "2026-11-21 02:00:00.000")
    torn = LogLine(LogEvent.CLIENT_TORN_DOWN, 5, "", "2026-11-21 02:00:00.000")
    assert last_fault([*LINES, again, torn], "").pids == {5}


# -- healing -------------------------------------------------------------------------------------------------------


def test_nobody_is_ended_within_the_grace_and_those_who_linger_are_after_it() -> None:
    one = Fault(NOW, (hit(1), hit(2)))
    assert to_end([one], {1, 2}, NOW + GRACES.fault_grace_s - 0.01, GRACES) == ()
    assert to_end([one], {1, 2}, NOW + GRACES.fault_grace_s, GRACES) == one.hit


@given(FAULTS, st.frozensets(st.integers(1, 6)), st.floats(NOW, NOW + 200))
def test_only_those_are_ended_whom_an_open_fault_hit_and_the_server_still_names(
    known: list[Fault], listed: frozenset[int], now: float
) -> None:
    for chosen in to_end(known, listed, now, GRACES):
        assert chosen.process.pid in listed
        assert any(chosen in one.hit and one.healed_at is None and one.at < now for one in known)
    assert to_end(faults.healed(known, now), listed, now, GRACES) == ()


@given(FAULTS, st.floats(NOW, NOW + 200))
def test_nobody_is_ended_twice(known: list[Fault], now: float) -> None:
    everyone = set(range(10))
    after: Sequence[Fault] = known
    for chosen in to_end(known, everyone, now, GRACES):
        after = faults.ended(after, chosen.process, now)
    assert to_end(after, everyone, now, GRACES) == ()


def test_what_the_server_says_of_somebody_gone_is_nobodys_end() -> None:
    assert to_end([Fault(NOW, (), strangers=(1,))], {1}, NOW + 60, GRACES) == ()


def test_a_fault_that_does_not_heal_is_said_after_the_grace_and_the_limit_of_a_wedged_daemon() -> None:
    limit_s = GRACES.fault_grace_s + GRACES.wedged_limit_s
    assert faults.why_stuck([fault()], NOW + limit_s - 0.01, GRACES) == ""
    assert faults.why_stuck([fault()], NOW + limit_s, GRACES)
    assert faults.why_stuck(faults.healed([fault()], NOW), NOW + limit_s, GRACES) == ""
    assert faults.why_stuck([], NOW, GRACES) == ""


@given(FAULTS, st.floats(NOW, NOW + 200))
def test_the_next_look_is_not_later_than_the_next_grace_is_over(known: list[Fault], now: float) -> None:
    due_s = faults.next_due_s(known, now, GRACES)
    everyone = set(range(10))
    if due_s is None:
        later = to_end(known, everyone, now + 1000, GRACES)
        assert later == to_end(known, everyone, now, GRACES)
    else:
        assert due_s > 0
        before = to_end(known, everyone, now + due_s * 0.99, GRACES)
        assert before == to_end(known, everyone, now, GRACES)


def test_a_log_that_says_more_of_an_open_fault_tells_of_no_other() -> None:
    known = [Fault(NOW, (hit(1), hit(2)), strangers=(3,))]
    assert faults.is_known(known, {1, 3})
    assert not faults.is_known(known, {1, 4})
    assert not faults.is_known(faults.healed(known, NOW), {1})
    assert not faults.is_known([], ())


def test_only_the_last_faults_are_remembered() -> None:
    known: tuple[Fault, ...] = ()
    for number in range(20):
        known = faults.noted(known, fault(at=NOW + number))
    assert [one.at - NOW for one in known] == list(range(4, 20))


# -- who was there -------------------------------------------------------------------------------------------------


def test_one_fault_makes_nobody_suspect() -> None:
    assert suspects([], {}) == ()
    assert suspects([fault("a", "b")], {}) == ()


def test_whoever_each_of_the_last_faults_hit_is_suspect_with_their_number() -> None:
    known = series(["b"], ["a"], ["a", "b"], ["a", "b", "c"])
    name = PodName("default", "train", "a")
    assert suspects(known, {"a": name}) == (
        SuspectStatus("default/train", "a", 3, NOW + 60),
        SuspectStatus("b", "b", 2, NOW + 120),
    )


def test_whoever_the_last_fault_spared_is_not_suspect() -> None:
    assert suspects(series(["a"], ["a"], ["b"]), {}) == ()


@given(FAULTS)
def test_a_suspect_was_there_each_time_and_nobody_who_was_is_left_out(known: list[Fault]) -> None:
    found = suspects(known, {})
    for one in found:
        assert one.faults >= 2
        assert all(one.uid in each.pods for each in known[-one.faults :])
        assert one.since == known[-one.faults].at
        assert presence(known, one.uid) == one.faults
    always = frozenset.intersection(*(each.pods for each in known[-2:])) if len(known) > 1 else frozenset()
    assert {one.uid for one in found} == always
