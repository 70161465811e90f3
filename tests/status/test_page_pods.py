"""Pods of a node that do not run yet, as the node's own page shows them."""

from dataclasses import replace
from typing import Any

import pytest

from mpsd.agent.rules.node_events import REFUSED
from mpsd.model.domain import State
from mpsd.model.events import PastEvent, Reason
from mpsd.model.node_view import DomainView, NodeView
from mpsd.model.times import seconds
from mpsd.status.page.rules.pages import (
    MOST_ON_NODE,
    last_warnings,
    node_page,
    own_scene,
    pods_here,
)
from mpsd.status.page.rules.view import Level, PageView, PodsHeard, PodsHere, WaitingCard
from mpsd.status.rules.explanation import explanation_of
from mpsd.status.rules.node_report import node_report
from mpsd.status.rules.pods import Why, read_pod_seen
from tests.model.worlds import GPUS, NOW, POLICY
from tests.page_worlds import GIB, domain, granted, node
from tests.status.test_pod_explanation import pod

BOUND = "2026-11-21T08:00:07Z"
HELD_BACK = "pod default/train, container main waits: gpu0 is down: its start failed 3 times"


def bound(name: str = "train", *containers: Any, **metadata: Any) -> Any:
    """A pod that its scheduler has bound to this node, and that kubelet has not started."""
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": BOUND}
    status = {"conditions": [scheduled], "containerStatuses": list(containers)}
    named = {"name": name, "uid": f"uid-of-{name}", **metadata}
    return pod(7, 30, spec={"nodeName": "gpu-a1"}, status=status, metadata=named)


def down() -> NodeView:
    """A node whose first GPU has no daemon since a minute; the pod `train` has been given devices
    of it."""
    seen = node(GPUS, [granted(GPUS[0], "train", 7 * GIB)], used_mib=0)
    stopped = replace(domain(GPUS[0], State.DOWN, "its start failed 3 times"), since=NOW - 60)
    return replace(seen, domains=(DomainView(stopped, frozenset()), seen.domains[1]))


def here(
    view: NodeView,
    *pods: Any,
    happened: tuple[PastEvent, ...] = (),
    heard: PodsHeard = PodsHeard(),  # noqa: B008
) -> PodsHere:
    around = own_scene("gpu-a1", view, POLICY)
    return pods_here(
        [read_pod_seen(one, POLICY) for one in pods], last_warnings(happened), around, heard
    )


def card(view: NodeView, thing: Any, *happened: PastEvent) -> WaitingCard:
    (one,) = here(view, thing, happened=happened).cards
    return one


def page(pods: PodsHere) -> PageView:
    return node_page(node_report(node(GPUS, []), POLICY), "gpu-a1", pods=pods)


def test_a_pod_waits_with_the_sentence_that_explain_has_for_the_same_mpsnode() -> None:
    one = card(down(), bound())
    around = own_scene("gpu-a1", down(), POLICY)
    assert around.reported["gpu-a1"].unreadable == ()
    assert one.text == explanation_of(read_pod_seen(bound(), POLICY), around).sentence
    assert "its start failed 3 times" in one.text
    assert (one.name, one.why, one.level) == ("default/train", Why.NOT_STARTED.value, Level.WARN)
    request = one.memory_mib, one.thread_percent, one.gpus
    assert (request, one.since) == ((7 * GIB, 30, 1), seconds(BOUND))


def test_a_pod_that_says_nothing_waits_with_the_words_of_its_last_event() -> None:
    def past(ago_s: float, text: str, uid: str = "uid-of-train") -> PastEvent:
        what = Reason.START_HELD_BACK.value
        return PastEvent(NOW - ago_s, what, "default/train", text, uid)

    events = past(1, HELD_BACK), past(9, "an older one"), past(0, "another", "of-an-earlier-train")
    one = card(node(GPUS, []), bound(), *events)
    assert (
        f"its last warning is StartHeldBack: {HELD_BACK}; more in kubectl describe pod train"
        in one.text
    )


@pytest.mark.parametrize("what", [REFUSED, Reason.READY.value])
def test_what_happened_to_no_pod_or_was_no_warning_keeps_no_pod(what: str) -> None:
    uid = "" if what == REFUSED else "uid-of-train"
    assert last_warnings([PastEvent(NOW, what, "default/train", "said", uid)]) == {}


def test_a_pod_whose_time_is_not_told_waits_since_nobody_knows_when() -> None:
    thing = bound()
    del thing["status"]["conditions"]
    assert card(node(GPUS, []), thing).since is None


def test_more_pods_than_anybody_reads_are_counted() -> None:
    shown = page(
        here(node(GPUS, []), *(bound(f"train-{number}") for number in range(MOST_ON_NODE + 3)))
    )
    assert (len(shown.waiting), shown.head.waiting_more) == (MOST_ON_NODE, 3)


def test_a_page_says_whether_pods_come_here_and_how_far_they_are_known() -> None:
    assert node_page(node_report(node(GPUS, []), POLICY), "gpu-a1").head.pods is None
    never = PodsHeard("the API server does not answer")
    assert page(here(node(GPUS, []), heard=never)).head.pods == never
