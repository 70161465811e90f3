"""The states of a domain: the table is complete, reachable and walked as a daemon's life walks
it."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.model.domain import (
    TRANSITIONS,
    DaemonView,
    ServerStatus,
    State,
    events_of,
    next_state,
    restart_delay_s,
)
from tests.model.worlds import POLICY

HEALTHY = DaemonView(alive=True, settled=True, server=ServerStatus.ACTIVE, clients=2)
EMPTY = DaemonView(
    alive=True, settled=True, server=ServerStatus.ACTIVE, clients=0, drain_asked=True
)
SEEN = st.builds(
    DaemonView,
    alive=st.booleans(),
    obstacle=st.sampled_from(["", "MIG is on"]),
    unanswered=st.integers(0, 4),
    settled=st.booleans(),
    server=st.sampled_from([None, *ServerStatus]),
    no_server=st.booleans(),
    clients=st.sampled_from([None, 0, 3]),
    granted=st.booleans(),
    drain_asked=st.booleans(),
)


def walk(state: State, *looks: DaemonView) -> State:
    for seen in looks:
        state = next_state(state, seen)
    return state


def test_a_domain_is_not_ready_before_its_settings_were_read_back() -> None:
    assert (
        next_state(State.STARTING, DaemonView(alive=True, server=ServerStatus.ACTIVE))
        is State.STARTING
    )


@pytest.mark.parametrize("state", [state for state in State if state is not State.DOWN])
def test_the_death_of_the_daemon_leads_down_from_every_state(state: State) -> None:
    assert next_state(state, DaemonView(alive=False)) is State.DOWN


def test_a_fault_ends_when_the_server_is_active_again() -> None:
    fault = DaemonView(alive=True, settled=True, server=ServerStatus.FAULT)
    assert walk(State.READY, fault) is State.FAULT
    assert walk(State.READY, fault, HEALTHY) is State.READY


@pytest.mark.parametrize("state", [State.STARTING, State.WEDGED])
def test_a_daemon_that_is_found_in_a_fault_does_not_serve_for_a_moment(state: State) -> None:
    fault = replace(HEALTHY, server=ServerStatus.FAULT)
    assert walk(state, fault) is State.FAULT
    assert walk(state, replace(fault, settled=False)) is not State.FAULT
    assert walk(state, fault, HEALTHY) is State.READY


def test_a_domain_whose_server_does_not_come_up_does_not_serve_until_one_does() -> None:
    without = replace(HEALTHY, settled=False, no_server=True)
    assert walk(State.READY, without) is State.STARTING
    assert walk(State.READY, without, without) is State.STARTING
    assert walk(State.READY, without, HEALTHY) is State.READY


def test_a_silent_daemon_is_wedged_at_the_third_command_and_not_before() -> None:
    silent = [DaemonView(alive=True, settled=True, unanswered=n) for n in (1, 2, 3)]
    assert walk(State.READY, *silent[:2]) is State.READY
    assert walk(State.READY, *silent) is State.WEDGED
    assert walk(State.READY, *silent, HEALTHY) is State.READY


@pytest.mark.parametrize("state", [one for one in State if one is not State.DOWN])
def test_from_every_state_a_silent_daemon_is_wedged(state: State) -> None:
    silent = DaemonView(alive=True, settled=True, unanswered=3)
    assert walk(state, silent, silent) is State.WEDGED


def test_a_drain_waits_for_the_last_client() -> None:
    draining = replace(EMPTY, clients=1)
    assert walk(State.READY, draining, draining) is State.DRAINING
    assert walk(State.READY, draining, EMPTY) is State.DRAINED


def test_a_drain_waits_for_the_last_grant() -> None:
    granted = replace(EMPTY, granted=True)
    assert walk(State.READY, granted, granted) is State.DRAINING
    assert walk(State.READY, granted, EMPTY) is State.DRAINED


def test_unknown_clients_are_not_no_clients() -> None:
    unknown = replace(EMPTY, clients=None)
    assert walk(State.READY, unknown, unknown) is State.DRAINING


@pytest.mark.parametrize("changes", [{"clients": 1}, {"granted": True}])
def test_a_drained_domain_to_which_somebody_came_is_not_drained(changes: dict[str, Any]) -> None:
    assert next_state(State.DRAINED, replace(EMPTY, **changes)) is State.DRAINING
    assert next_state(State.DRAINED, replace(EMPTY, clients=None)) is State.DRAINED


@pytest.mark.parametrize("state", [State.STARTING, State.WEDGED])
def test_a_domain_that_comes_back_to_a_drain_does_not_serve_first(state: State) -> None:
    assert next_state(state, EMPTY) is State.DRAINING


def test_a_drain_does_not_begin_before_the_settings_were_read_back() -> None:
    unsettled = replace(EMPTY, settled=False)
    assert walk(State.STARTING, unsettled) is State.STARTING
    assert walk(State.WEDGED, unsettled) is State.STARTING


def test_an_obstacle_refuses_and_its_end_starts() -> None:
    assert next_state(State.DOWN, DaemonView(alive=False, obstacle="MIG is on")) is State.REFUSED
    assert next_state(State.REFUSED, DaemonView(alive=True)) is State.STARTING


def test_every_state_can_be_reached_and_left() -> None:
    assert set(TRANSITIONS.values()) == set(State)
    assert {state for state, _event in TRANSITIONS} == set(State)


@given(st.sampled_from(State), SEEN)
def test_every_step_is_in_the_table_and_was_seen(state: State, seen: DaemonView) -> None:
    after = next_state(state, seen)
    if after is not state:
        assert any(TRANSITIONS.get((state, event)) is after for event in events_of(seen))


@given(st.sampled_from(State), st.lists(SEEN, max_size=12))
def test_in_the_end_a_healthy_daemon_serves(state: State, history: list[DaemonView]) -> None:
    assert walk(walk(state, *history), HEALTHY, HEALTHY, HEALTHY) is State.READY


def test_the_first_restart_is_at_once_and_later_ones_double_up_to_the_longest() -> None:
    delays = [restart_delay_s(n, POLICY.restarts) for n in range(9)]
    assert delays == [0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_a_thousand_crashes_make_no_overflow() -> None:
    assert {restart_delay_s(n, POLICY.restarts) for n in range(40, 5000, 7)} == {60}


def test_no_look_is_worse_for_knowing_less_about_clients() -> None:
    for state, server in product(State, ServerStatus):
        unknown = DaemonView(alive=True, settled=True, server=server, clients=None)
        some = DaemonView(alive=True, settled=True, server=server, clients=1)
        assert next_state(state, unknown) is next_state(state, some)
