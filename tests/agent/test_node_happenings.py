"""What two looks at a node tell: on the node each change of a domain, on a pod what it lost."""

from dataclasses import replace

import pytest

from mpsd.agent.rules.node_events import happenings
from mpsd.model.domain import State
from mpsd.model.events import Event, Reason
from mpsd.model.node_view import Canary, NodeView
from mpsd.platform.kube_time import stamp
from tests.status.pod_worlds import client, held, node


def told(before: NodeView | None, now: NodeView) -> list[tuple[str, Reason]]:
    return [(str(one.subject), one.reason) for one in happenings(before, now, "node1", stamp)]


BUSY = node(grants=(held("a"), held("idle"), held("other", gpu=1)), clients=(client("a", 1), client("other", 2, gpu=1)))
DOWN = {"state": State.DOWN, "daemon": None, "restarts_total": 1}


def like(view: NodeView, **records: object) -> NodeView:
    return replace(node(**records), grants=view.grants, clients=view.clients)  # type: ignore[arg-type]


def test_a_domain_that_serves_although_its_canary_found_something_says_so() -> None:
    dear = Canary("a-boot", "580.1", 1.0, "", 172, 12, "gpu0: a context on 12 SMs takes 172 MiB")
    (told_of,) = happenings(like(BUSY, state=State.STARTING), like(BUSY, canary=dear), "node1", stamp)
    assert told_of.message == (
        "MPS domain gpu0 serves, although its canary found: gpu0: a context on 12 SMs takes 172 MiB"
    )


def test_nothing_new_tells_nothing() -> None:
    assert told(BUSY, BUSY) == []


def test_a_daemon_that_goes_down_is_told_on_the_node_and_on_each_pod_that_had_clients_there() -> None:
    gone = replace(like(BUSY, **DOWN), clients=())
    assert told(BUSY, gone) == [("Node node1", Reason.DAEMON_DOWN), ("Pod default/a", Reason.DAEMON_DOWN)]


def test_the_pod_hears_how_many_processes_it_lost_and_what_to_do() -> None:
    before = replace(BUSY, clients=(client("a", 1), client("a", 2)))
    (_node, pod) = happenings(before, like(before, **DOWN), "node1", stamp)
    assert pod.message == (
        "MPS domain gpu0: the end of its MPS control daemon ended 2 GPU processes of this pod; "
        "they see CUDA errors and must be started again"
    )


def test_a_daemon_that_ended_and_came_back_between_two_looks_is_told_all_the_same() -> None:
    back = like(BUSY, restarts_total=1)
    assert told(BUSY, back) == [
        ("Node node1", Reason.DAEMON_DOWN),
        ("Node node1", Reason.READY),
        ("Pod default/a", Reason.DAEMON_DOWN),
    ]


def test_a_fault_of_which_an_older_mpsd_control_says_no_more_is_told_on_every_pod_of_the_gpu() -> None:
    assert told(BUSY, like(BUSY, state=State.FAULT)) == [("Node node1", Reason.FAULT), ("Pod default/a", Reason.FAULT)]


def test_the_node_hears_which_pods_lost_processes() -> None:
    before = replace(BUSY, clients=(client("idle", 3), client("a", 1)))
    (on_node, *_pods) = happenings(before, like(before, **DOWN, reason="killed by signal 9"), "node1", stamp)
    assert on_node.message == (
        "MPS domain gpu0 has no MPS control daemon: killed by signal 9; "
        "pods that lost GPU processes: default/a, default/idle"
    )
    (on_node, *_pods) = happenings(before, like(before, restarts_total=1), "node1", stamp)
    assert on_node.message == (
        "MPS domain gpu0: its MPS control daemon ended; pods that lost GPU processes: default/a, default/idle"
    )


def test_a_wedged_daemon_is_told_on_the_node_and_on_each_pod_that_may_lose_clients() -> None:
    on_node, on_pod = happenings(BUSY, like(BUSY, state=State.WEDGED, reason="no answer"), "node1", stamp)
    assert on_node.message == (
        "MPS domain gpu0 does not answer; programs that run there go on, new ones wait: no answer; "
        "pods there: default/a"
    )
    assert (str(on_pod.subject), on_pod.reason) == ("Pod default/a", Reason.WEDGED)
    assert on_pod.message == (
        "MPS domain gpu0: its MPS control daemon does not answer; 1 GPU process of this pod may go on, and lose the "
        "GPU if it must be started anew"
    )


def test_a_daemon_that_is_restarted_because_it_was_wedged_says_who_lost_clients() -> None:
    wedged = like(BUSY, state=State.WEDGED)
    assert told(wedged, wedged) == []
    assert told(wedged, replace(like(BUSY, **DOWN), clients=())) == [
        ("Node node1", Reason.DAEMON_DOWN),
        ("Pod default/a", Reason.DAEMON_DOWN),
    ]


def test_where_nobody_knows_the_clients_every_pod_there_may_have_lost_some() -> None:
    blind = replace(BUSY, clients=None)
    pods = [one for one in happenings(blind, like(blind, **DOWN), "node1", stamp) if one.subject.kind == "Pod"]
    assert [one.subject.name for one in pods] == ["a", "idle"]
    assert all("may have had" in one.message for one in pods)


@pytest.mark.parametrize("state", [state for state in State if state is not State.STARTING])
def test_every_state_that_is_reached_is_told_on_the_node(state: State) -> None:
    before = like(BUSY, state=State.STARTING)
    (one, *_rest) = happenings(before, like(BUSY, state=state, reason="because"), "node1", stamp)
    assert one.subject.kind == "Node"
    assert ": because" in one.message


def test_a_first_look_tells_of_troubles_alone_and_takes_nothing_for_lost() -> None:
    assert told(None, BUSY) == []
    assert told(None, like(BUSY, **DOWN)) == [("Node node1", Reason.DAEMON_DOWN)]


def test_the_same_change_is_the_same_happening_so_that_it_can_be_counted() -> None:
    def changes() -> tuple[Event, ...]:
        return happenings(BUSY, like(BUSY, **DOWN), "node1", stamp)

    assert changes() == changes()
